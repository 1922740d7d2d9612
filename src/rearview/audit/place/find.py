"""From a leak to its places: walk, repair, and keep those that are needed.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit import audit
>>> def model(x):
...     return x + x.flip(1)
>>> place = audit(model, torch.randn(1, 8), causal()).place
>>> place.op, place.confirmed
('aten.flip.default', True)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from torch import Tensor, nn

from rearview.audit.decoding import InSteps
from rearview.audit.leak import Leak
from rearview.audit.place.hints import hint_for, softmax_before
from rearview.audit.place.record import Change, Op, Recorder
from rearview.audit.place.views import BatchView, LengthView, TimeView, View
from rearview.audit.place.walk import Repair, Walk
from rearview.audit.probe import difference
from rearview.audit.report import Hears, Place
from rearview.audit.source import text_of

# Groups of culprits, each of one line and class, that are tried without.
MOST_GROUPS = 8
# A difference that is this much smaller than the leak is gone: lengths differ, and so does rounding.
GONE = 1e-3

Key = tuple[str, str, str, int]


@dataclass(frozen=True, eq=False)
class Scene:
    """A leak with the clean run recorded: other runs can be played on it, with repairs."""

    leak: Leak
    view: View
    clean: Sequence[Op]
    output: Tensor

    @classmethod
    def of(cls, leak: Leak) -> Scene:
        leak = leak.of_one_item() or leak
        clean = Recorder(leak.subject.model)
        with _its_mode(leak):
            output = replace(leak.subject, around=clean).run(leak.clean)
        return cls(leak, view_of(leak), clean.ops, output)

    def play(self, change: Change) -> float:
        """Run the other input with ops changed; how much of the leak is left."""
        recorder = Recorder(self.leak.subject.model, change)
        with _its_mode(self.leak):
            after = replace(self.leak.subject, around=recorder).run(self.leak.other)
        length = min(self.output.shape[1], after.shape[1])
        amounts, _ = difference(self.output[:, :length], after[:, :length])
        if self.leak.kind == "batch":
            return float(amounts[self.leak.watched].max())
        return float(amounts[self.leak.item].masked_fill(~self.leak.watched[:length], 0.0).max())

    def is_gone(self, ops: Sequence[int]) -> bool:
        """Does nothing forbidden move any more when these ops are given their clean outputs?"""
        left = self.play(Repair(self.clean, self.view, frozenset(ops)))
        return left <= (GONE * self.leak.amount if self.leak.kind == "length" else 0.0)


def view_of(leak: Leak) -> View:
    if leak.kind == "batch":
        return BatchView(leak.watched)
    if leak.kind == "length":
        return LengthView(leak.watched[: min(leak.clean.shape[1], leak.other.shape[1])])
    call = leak.subject.call
    return TimeView(leak.watched, batch=len(leak.clean), steps=call.steps if isinstance(call, InSteps) else ())


def places_of(leak: Leak, forbidden: Tensor, hears: Hears | None) -> tuple[Place, ...]:
    """Every line that lets it through; empty where no op could be blamed."""
    scene = Scene.of(leak)
    walk = Walk(scene.clean, scene.view)
    scene.play(walk)
    if not walk.culprits:
        return ()
    roots = sorted({root for culprit in walk.culprits for root in culprit.roots})
    chosen, confirmed = roots, walk.parted_at is None and scene.is_gone(roots)
    if not confirmed and walk.parted_at is None:
        # Where the time is lost and found again, the op that found it may be the one.
        consumers = sorted({culprit.at for culprit in walk.culprits})
        if scene.is_gone(consumers):
            chosen, confirmed = consumers, True
    groups = grouped([scene.clean[n] for n in chosen if n < len(scene.clean)], scene.clean)
    if confirmed:
        groups = _needed(scene, groups)
    parted = "the two runs take different ways after it" if walk.parted_at is not None else ""
    return tuple(_place(scene, ops, confirmed, parted, forbidden, hears) for ops in groups.values())


def grouped(ops: Sequence[Op], run: Sequence[Op]) -> dict[Key, list[Op]]:
    """Ops of one line, class and name together: the same fault in every layer.

    Weights that hear too much let it through twice, in the softmax that divides by what they hear and in the product
    with the values. That is one fault, and its place is the softmax.
    """
    found: dict[Key, list[Op]] = {}
    blamed = {op.index for op in ops}
    for op in ops:
        softmax = softmax_before(op, run)
        head = softmax if softmax is not None and softmax.index in blamed else op
        found.setdefault((head.module_class, head.name, head.file, head.line), []).append(op)
    return found


def _needed(scene: Scene, groups: dict[Key, list[Op]]) -> dict[Key, list[Op]]:
    """Without those whose repair changes nothing: the leak is gone when only the others are repaired."""
    # Later ones first: what looks odd after a leak is more often its consequence.
    for key in list(reversed(groups)) if 1 < len(groups) <= MOST_GROUPS else ():
        rest = [op.index for other, ops in groups.items() if other != key for op in ops]
        if len(groups) > 1 and scene.is_gone(rest):
            groups = {other: ops for other, ops in groups.items() if other != key}
    return groups


def _place(
    scene: Scene, ops: Sequence[Op], confirmed: bool, parted: str, forbidden: Tensor, hears: Hears | None
) -> Place:
    op = ops[0]
    modules = list(dict.fromkeys(other.module for other in ops))
    evidence = "its inputs are clean and its output is not"
    evidence += "; with its clean output the leak is gone" if confirmed else f"; {parted}" if parted else ""
    model = scene.leak.subject.model
    module = dict(model.named_modules()).get(op.module) if isinstance(model, nn.Module) else None
    return Place(
        module=modules[0],
        module_class=op.module_class,
        op=op.name,
        file=op.file,
        line=op.line,
        source=text_of(op.file, op.line),
        hint=hint_for(op, scene.clean, scene.leak, module, forbidden, hears),
        confirmed=confirmed,
        evidence=evidence,
        check=scene.leak.check,
        also=tuple(modules[1:]),
    )


@contextmanager
def _its_mode(leak: Leak) -> Iterator[None]:
    from rearview.audit.checks.training import in_training

    model = leak.subject.model
    with in_training(model) if leak.subject.training and isinstance(model, nn.Module) else nullcontext():
        yield
