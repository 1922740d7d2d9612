"""Walk through the other run and find the ops whose outputs first hear what they must not, repairing each.

>>> import torch
>>> from rearview.auditing.place.recording import OpRecorder
>>> from rearview.auditing.place.views import TimeView
>>> from rearview.auditing.place.walk import Walk
>>> def model(x):
...     return x + x.mean(1, keepdim=True)
>>> x = torch.zeros(1, 4)
>>> with OpRecorder(None) as clean:
...     _ = model(x)
>>> x[0, 3] = 1
>>> walk = Walk(clean.ops, TimeView(torch.tensor([True, True, True, False])))
>>> with OpRecorder(None, walk) as other:
...     out = model(x)
>>> [clean.ops[n].name for culprit in walk.culprits for n in culprit.roots], out.tolist()
(['aten.mean.dim'], [[0.0, 0.0, 0.0, 1.25]])

An op is to blame when its inputs differ only where they may and its output differs where it must not. Where an input
has lost its time axis (a mean, a top-k, a scalar), the blame goes back to the op that lost it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rearview.auditing.place.recording import Op, aligned, base_name
from rearview.auditing.place.views import State, View

CHOOSES = ("topk", "sort", "argsort", "kthvalue", "nonzero", "masked_select", "multinomial", "_unique2")
READS_VALUES = ("aten._local_scalar_dense.default", "aten.nonzero.default", "aten.masked_select.default")


@dataclass(frozen=True)
class Culprit:
    """The op whose output is dirty, and the ops that are to blame for it, often the same one."""

    at: int
    roots: tuple[int, ...]


@dataclass(eq=False)
class Walk:
    """A change for an OpRecorder of the other run; afterwards `culprits` holds the ops to blame."""

    clean: Sequence[Op]
    view: View
    culprits: list[Culprit] = field(default_factory=list)
    states: dict[tuple[int, int], State] = field(default_factory=dict)
    parted_at: int | None = None
    """The op at which the two runs took different paths; None where they did not."""
    _seen: list[Op] = field(default_factory=list)

    def __call__(self, op: Op) -> list[Tensor] | None:
        if self.parted_at is not None:
            return None
        if op.index >= len(self.clean) or not aligned(self.clean[op.index], op):
            self.parted_at = op.index
            reads = [seen for seen in self._seen if seen.name in READS_VALUES and self._input_differs(seen)]
            self.culprits += [Culprit(op.index, self._roots(reads[-1]))] if reads else []
            return None
        reference = self.clean[op.index]
        self._seen.append(op)
        states: list[State] = [
            self.view.state(a, b, maps)
            for a, b, maps in zip(reference.outputs, op.outputs, reference.positions, strict=True)
        ]
        if "guessed" in states:
            # What is chosen or sorted is not in order of time, nor is what is computed from a tensor without time.
            lost = base_name(op.name) in CHOOSES or "lost" in self._input_states(op)
            states = [("lost" if lost else "clean") if state == "guessed" else state for state in states]
        for number, state in enumerate(states):
            after: State = "clean" if state == "dirty" else state
            self.states[op.index, number] = after
        if "dirty" not in states:
            return None
        self.culprits.append(Culprit(op.index, self._roots(op)))
        return [
            self.view.repair(a, b, maps) if state == "dirty" else b
            for a, b, maps, state in zip(reference.outputs, op.outputs, reference.positions, states, strict=True)
        ]

    def _input_states(self, op: Op) -> list[State]:
        reference = self.clean[op.index]
        found: list[State] = []
        tensors = zip(op.origins, reference.inputs, op.inputs, reference.input_positions, strict=True)
        for origin, a, b, maps in tensors:
            state = self.states[origin] if origin is not None else self.view.state(a, b, maps)
            found.append("clean" if state == "guessed" else state)
        return found

    def _input_differs(self, op: Op) -> bool:
        return any(state != "same" for state in self._input_states(op))

    def _roots(self, op: Op) -> tuple[int, ...]:
        """The ops that lost the time axis before this op; the op itself where none did."""
        found: set[int] = set()
        seen: set[int] = set()
        stack = [op]
        while stack:
            here = stack.pop()
            if here.index in seen:
                continue
            seen.add(here.index)
            before = self._producers(here)
            stack += before
            if not before:
                found.add(here.index)
        return tuple(sorted(found))

    def _producers(self, op: Op) -> list[Op]:
        """The ops that made those inputs of an op which have lost their time axis, or that read its scalars."""
        found: list[int] = []
        for origin, state, storage in zip(op.origins, self._input_states(op), op.input_storages, strict=True):
            if origin is not None and state == "lost":
                found.append(origin[0])
            elif origin is None and state in ("lost", "dirty"):
                # It was written to after it was made, most often through a slice.
                found += [
                    seen.index
                    for seen in self._seen
                    if seen.index < op.index and seen.writes and storage in seen.output_storages and self._lost(seen)
                ]
        if not found and repr(op.arguments) != repr(self.clean[op.index].arguments):
            reads = [seen for seen in self._seen[: op.index] if seen.name in READS_VALUES and self._input_differs(seen)]
            found += [reads[-1].index] if reads else []
        return [self._seen[n] for n in found if n < len(self._seen)]

    def _lost(self, op: Op) -> bool:
        return any(self.states.get((op.index, n)) in ("lost", "dirty") for n in range(len(op.outputs)))


@dataclass(eq=False)
class Repair:
    """A change for an OpRecorder that gives some ops their clean outputs wherever these must not differ."""

    clean: Sequence[Op]
    view: View
    ops: frozenset[int]

    def __call__(self, op: Op) -> list[Tensor] | None:
        if op.index not in self.ops or not aligned(self.clean[op.index], op):
            return None
        reference = self.clean[op.index]
        pairs = zip(reference.outputs, op.outputs, reference.positions, strict=True)
        return [
            b if a.shape != b.shape and self.view.state(a, b, maps) == "lost" else self.view.repair(a, b, maps)
            for a, b, maps in pairs
        ]
