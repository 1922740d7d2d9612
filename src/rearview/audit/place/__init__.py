"""The place of a leak: the module, the op and the line where it gets in, found by two runs in lockstep.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit import audit
>>> conv = torch.nn.Conv1d(4, 4, 3, padding=1)
>>> report = audit(conv, torch.randn(1, 4, 16), causal(), time_axis=2)
>>> report.place.hint
'the convolution pads the future: its kernel of 3 reaches 1 step ahead. Pad 2 on the left only'

`record.py` runs op by op, `views.py` sees what differs where, `walk.py` finds who is to blame, `find.py` confirms it by
repair, `hints.py` says it in words.
"""

from __future__ import annotations

from collections.abc import Sequence

from rearview.audit.leak import Leak
from rearview.audit.noise import brief
from rearview.audit.place.diverge import divergence
from rearview.audit.place.find import places_of
from rearview.audit.report import Place
from rearview.audit.trial import Trial


def find_places(trial: Trial, leaks: Sequence[Leak]) -> tuple[Place, ...]:
    """The places of the leaks, one set a kind: what a later check finds in the same way is the same place."""
    found: list[Place] = []
    kinds: set[str] = set()

    # One source says more than a whole suffix; what is seen in eval mode is not looked for again in train mode.
    def clarity(leak: Leak) -> tuple[bool, ...]:
        return leak.kind != "time", leak.subject.training, leak.weights != "given", len(leak.sources) > 1

    for leak in sorted(leaks, key=clarity):
        kind = "time" if leak.kind == "time" else leak.kind
        if kind == "form":
            found += _diverging(trial, leak)
            continue
        if kind in kinds or (leak.kind == "length" and "time" in kinds):
            continue
        kinds.add(kind)
        try:
            found += [
                place
                for place in places_of(
                    leak, trial.contract.forbidden[min(leak.item, trial.subject.batch - 1)], trial.hears
                )
                if not _known(place, found)
            ]
        except Exception as error:
            trial.conditions.append(f"the place of the leak was not found: {brief(error)}")
    return tuple(found)


def _diverging(trial: Trial, leak: Leak) -> tuple[Place, ...]:
    try:
        return divergence(leak)
    except Exception as error:
        trial.conditions.append(f"the place where two forms part was not found: {brief(error)}")
        return ()


def _known(place: Place, found: Sequence[Place]) -> bool:
    def spot(one: Place) -> tuple[str, str, str, int]:
        return one.module_class, one.op, one.file, one.line

    return any(spot(other) == spot(place) for other in found)


__all__ = ["find_places"]
