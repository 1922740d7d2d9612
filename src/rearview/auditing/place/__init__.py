"""The place of a leak: the module, the op and the line where it begins, found by comparing two runs op by op.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing import audit
>>> conv = torch.nn.Conv1d(4, 4, 3, padding=1)
>>> report = audit(conv, torch.randn(1, 4, 16), causal(), time_axis=2)
>>> report.place.hint
'the convolution pads the future: its kernel of 3 reaches 1 step ahead. Pad 2 on the left only'

`recording.py` records a run op by op, `views.py` says where two tensors differ, `walk.py` finds the ops to blame,
`culprits.py` confirms them by repair, `hints.py` explains them in words; `divergence.py` is for two forms of one call.
"""

from __future__ import annotations

from collections.abc import Sequence

from rearview.auditing.context import AuditContext
from rearview.auditing.evidence.leak import Leak
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.place.culprits import places_of
from rearview.auditing.place.divergence import divergence
from rearview.auditing.reporting.report import Place


def find_places(context: AuditContext, leaks: Sequence[Leak]) -> tuple[Place, ...]:
    """The places of the leaks. One leak of each kind is examined: others of that kind have the same place."""
    if getattr(context.subject.model, "needs_every_rank", False):
        why = "the search repeats other ops on each rank, and the model runs on all of them at once"
        context.conditions.append(f"the place of the leak was not searched for: {why}")
        return ()
    found: list[Place] = []
    kinds: set[str] = set()

    # A leak with one source says more than one with a whole suffix, one in eval mode more than one in train mode.
    def clarity(leak: Leak) -> tuple[bool, ...]:
        return leak.kind != "time", leak.subject.training, leak.weights != "given", len(leak.sources) > 1

    for leak in sorted(leaks, key=clarity):
        if leak.kind == "form":
            found += _diverging(context, leak)
            continue
        if leak.kind in kinds or (leak.kind == "length" and "time" in kinds):
            continue
        kinds.add(leak.kind)
        try:
            found += [
                place
                for place in places_of(
                    leak, context.contract.forbidden[min(leak.item, context.subject.batch - 1)], context.hears
                )
                if not _known(place, found)
            ]
        except Exception as error:
            # The model may raise anything while its ops are changed. The leak stands without its place.
            context.conditions.append(f"the place of the leak was not found: {brief(error)}")
    return tuple(found)


def _diverging(context: AuditContext, leak: Leak) -> tuple[Place, ...]:
    try:
        return divergence(leak)
    except Exception as error:
        # As above: the difference stands without its place.
        context.conditions.append(f"the place where two forms of the call differ was not found: {brief(error)}")
        return ()


def _known(place: Place, found: Sequence[Place]) -> bool:
    def spot(one: Place) -> tuple[str, str, str, int]:
        return one.module_class, one.op, one.file, one.line

    return any(spot(other) == spot(place) for other in found)


__all__ = ["find_places"]
