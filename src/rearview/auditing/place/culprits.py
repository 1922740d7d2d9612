"""From a leak to its places: find the ops to blame, repair them, and keep those that are needed.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing import audit
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

from rearview.auditing.checks.train_mode import in_training
from rearview.auditing.evidence.leak import Leak
from rearview.auditing.evidence.probe import difference
from rearview.auditing.model.decoding import StepwiseCall
from rearview.auditing.place.hints import hint_for, softmax_before
from rearview.auditing.place.positions import PositionTracker
from rearview.auditing.place.recording import Change, Op, OpRecorder
from rearview.auditing.place.views import BatchView, LengthView, TimeView, View
from rearview.auditing.place.walk import Repair, Walk
from rearview.auditing.reporting.report import Hears, Place
from rearview.auditing.user_code import text_of

# Up to this many groups of culprits, each of one line and class, are tested for being needed.
MOST_GROUPS = 8
# Below this fraction of its size a leak is gone: runs of different lengths round differently.
GONE = 1e-3

Key = tuple[str, str, str, int]


@dataclass(frozen=True, eq=False)
class Scene:
    """A leak with its clean run recorded, against which the other run can be repeated with repairs."""

    leak: Leak
    view: View
    clean: Sequence[Op]
    output: Tensor

    @classmethod
    def of(cls, leak: Leak) -> Scene:
        leak = leak.of_one_item() or leak
        clean = OpRecorder(leak.subject.model, tracker=tracker_of(leak))
        with _its_mode(leak):
            output = replace(leak.subject, around=clean).run(leak.clean)
        return cls(leak, view_of(leak), clean.ops, output)

    def play(self, change: Change) -> float:
        """Run the other input with ops changed; the size of the leak that remains."""
        recorder = OpRecorder(self.leak.subject.model, change)
        with _its_mode(self.leak):
            after = replace(self.leak.subject, around=recorder).run(self.leak.other)
        length = min(self.output.shape[1], after.shape[1])
        amounts, _ = difference(self.output[:, :length], after[:, :length])
        if self.leak.kind == "batch":
            return float(amounts[self.leak.watched].max())
        return float(amounts[self.leak.item].masked_fill(~self.leak.watched[:length], 0.0).max())

    def is_gone(self, ops: Sequence[int]) -> bool:
        """Whether the leak is gone when these ops are given their clean outputs."""
        left = self.play(Repair(self.clean, self.view, frozenset(ops)))
        return left <= (GONE * self.leak.amount if self.leak.kind == "length" else 0.0)

    def is_ambiguous(self, blamed: Sequence[int]) -> bool:
        """Whether an op was blamed by the size of an axis alone, and another axis of the model has that size."""
        time = self.leak.clean.shape[1]
        if self.leak.kind != "time" or not any(
            maps is None for n in blamed if n < len(self.clean) for maps in self.clean[n].positions
        ):
            return False
        return any(
            size == time and all(one.shape[axis] == 1 for one in maps)
            for op in self.clean
            for output, maps in zip(op.outputs, op.positions, strict=True)
            if maps
            for axis, size in enumerate(output.shape)
        )


def view_of(leak: Leak) -> View:
    if leak.kind == "batch":
        return BatchView(leak.watched)
    if leak.kind == "length":
        return LengthView(leak.watched[: min(leak.clean.shape[1], leak.other.shape[1])])
    call = leak.subject.call
    return TimeView(leak.watched, batch=len(leak.clean), steps=call.steps if isinstance(call, StepwiseCall) else ())


def tracker_of(leak: Leak) -> PositionTracker:
    """What follows the positions, or the batch items, through the clean run."""
    subject, batch = leak.subject, len(leak.clean)
    given = leak.clean.movedim((0, 1), (subject.batch_axis, subject.time_axis))
    if leak.kind == "batch":
        return PositionTracker(given, subject.batch_axis, ordered=False)
    return PositionTracker(given, subject.time_axis, batch=batch)


def places_of(leak: Leak, forbidden: Tensor, hears: Hears | None) -> tuple[Place, ...]:
    """The places where the leak begins; empty where no op could be blamed."""
    scene = Scene.of(leak)
    walk = Walk(scene.clean, scene.view)
    scene.play(walk)
    if not walk.culprits:
        return ()
    roots = sorted({root for culprit in walk.culprits for root in culprit.roots})
    chosen, confirmed = roots, walk.parted_at is None and scene.is_gone(roots)
    if not confirmed and walk.parted_at is None:
        # Where the time axis is lost and restored, the op that restored it may be to blame.
        consumers = sorted({culprit.at for culprit in walk.culprits})
        if scene.is_gone(consumers):
            chosen, confirmed = consumers, True
    groups = grouped([scene.clean[n] for n in chosen if n < len(scene.clean)], scene.clean)
    if confirmed:
        groups = _needed(scene, groups)
    doubt = "after it the two runs take different paths" if walk.parted_at is not None else ""
    if not doubt and scene.is_ambiguous([culprit.at for culprit in walk.culprits]):
        # A repair of the wrong axis may hide the leak too, so it confirms nothing.
        doubt = f"ambiguous: {leak.clean.shape[1]} is also another size of the model. Audit it at another length"
        confirmed = False
    return tuple(_place(scene, ops, confirmed, doubt, forbidden, hears) for ops in groups.values())


def grouped(ops: Sequence[Op], run: Sequence[Op]) -> dict[Key, list[Op]]:
    """Group ops of the same line, module class and name: the same fault in every layer.

    Attention weights that hear too much are to blame twice, in the softmax, whose denominator hears it, and in the
    product with the values. That is one fault, and its place is the softmax.
    """
    found: dict[Key, list[Op]] = {}
    blamed = {op.index for op in ops}
    for op in ops:
        softmax = softmax_before(op, run)
        head = softmax if softmax is not None and softmax.index in blamed else op
        found.setdefault((head.module_class, head.name, head.file, head.line), []).append(op)
    return found


def _needed(scene: Scene, groups: dict[Key, list[Op]]) -> dict[Key, list[Op]]:
    """Drop the groups that need no repair: the leak is gone when only the others are repaired."""
    # Later ones first: they are more often consequences of the leak.
    for key in list(reversed(groups)) if 1 < len(groups) <= MOST_GROUPS else ():
        rest = [op.index for other, ops in groups.items() if other != key for op in ops]
        if len(groups) > 1 and scene.is_gone(rest):
            groups = {other: ops for other, ops in groups.items() if other != key}
    return groups


def _place(
    scene: Scene, ops: Sequence[Op], confirmed: bool, doubt: str, forbidden: Tensor, hears: Hears | None
) -> Place:
    op = ops[0]
    modules = list(dict.fromkeys(other.module for other in ops))
    evidence = "its inputs are clean and its output is not"
    evidence += "; with its clean output the leak is gone" if confirmed else f"; {doubt}" if doubt else ""
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
    """The mode, train or eval, in which the leak shows."""
    model = leak.subject.model
    with in_training(model) if leak.subject.training and isinstance(model, nn.Module) else nullcontext():
        yield
