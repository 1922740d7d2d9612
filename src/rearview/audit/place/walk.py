"""The walk through the other run: the ops whose outputs first hear what they must not, each repaired on the way.

>>> import torch
>>> from rearview.audit.place.record import Recorder
>>> from rearview.audit.place.views import TimeView
>>> from rearview.audit.place.walk import Walk
>>> def model(x):
...     return x + x.mean(1, keepdim=True)
>>> x = torch.zeros(1, 4)
>>> with Recorder(None) as clean:
...     _ = model(x)
>>> x[0, 3] = 1
>>> walk = Walk(clean.ops, TimeView(torch.tensor([True, True, True, False])))
>>> with Recorder(None, walk) as other:
...     out = model(x)
>>> [clean.ops[n].name for culprit in walk.culprits for n in culprit.roots], out.tolist()
(['aten.mean.dim'], [[0.0, 0.0, 0.0, 1.25]])

An op is to blame when its inputs differ only where they may and its output differs where it must not. When an input has
lost its time axis (a mean, a top-k, a scalar), the blame goes back to the op that lost it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rearview.audit.place.record import Op, aligned, base_name
from rearview.audit.place.views import State, View

CHOOSES = ("topk", "sort", "argsort", "kthvalue", "nonzero", "masked_select", "multinomial", "_unique2")
READS_A_VALUE = ("aten._local_scalar_dense.default", "aten.nonzero.default", "aten.masked_select.default")


@dataclass(frozen=True)
class Culprit:
    """The op whose output is dirty, and the ops it goes back to: often the same one."""

    at: int
    roots: tuple[int, ...]


@dataclass(eq=False)
class Walk:
    """The change that a Recorder makes in the other run; afterwards it knows the culprits."""

    clean: Sequence[Op]
    view: View
    culprits: list[Culprit] = field(default_factory=list)
    states: dict[tuple[int, int], State] = field(default_factory=dict)
    parted_at: int | None = None
    """Where the two runs took different ways, if they did."""
    _seen: list[Op] = field(default_factory=list)

    def __call__(self, op: Op) -> list[Tensor] | None:
        if self.parted_at is not None:
            return None
        if op.index >= len(self.clean) or not aligned(self.clean[op.index], op):
            self.parted_at = op.index
            reads = [seen for seen in self._seen if seen.name in READS_A_VALUE and self._input_differs(seen)]
            self.culprits += [Culprit(op.index, self._roots(reads[-1]))] if reads else []
            return None
        reference = self.clean[op.index]
        self._seen.append(op)
        states: list[State] = [self.view.state(a, b) for a, b in zip(reference.outputs, op.outputs, strict=True)]
        if "guessed" in states:
            # What is chosen or sorted has no order in time, nor has what is made of something that lost its time.
            lost = base_name(op.name) in CHOOSES or "lost" in self._input_states(op)
            states = [("lost" if lost else "clean") if state == "guessed" else state for state in states]
        for number, state in enumerate(states):
            after: State = "clean" if state == "dirty" else state
            self.states[op.index, number] = after
        if "dirty" not in states:
            return None
        self.culprits.append(Culprit(op.index, self._roots(op)))
        return [
            self.view.repair(a, b) if state == "dirty" else b
            for a, b, state in zip(reference.outputs, op.outputs, states, strict=True)
        ]

    def _input_states(self, op: Op) -> list[State]:
        reference = self.clean[op.index]
        found: list[State] = []
        for origin, a, b in zip(op.origins, reference.inputs, op.inputs, strict=True):
            state = self.states[origin] if origin is not None else self.view.state(a, b)
            found.append("clean" if state == "guessed" else state)
        return found

    def _input_differs(self, op: Op) -> bool:
        return any(state != "same" for state in self._input_states(op))

    def _roots(self, op: Op) -> tuple[int, ...]:
        """Where the time was lost that this op's output is dirty with; the op itself if it was not lost before."""
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
        """The ops that made those inputs of an op which have lost their time, or the scalars that it was given."""
        found: list[int] = []
        for origin, state, storage in zip(op.origins, self._input_states(op), op.input_storages, strict=True):
            if origin is not None and state == "lost":
                found.append(origin[0])
            elif origin is None and state in ("lost", "dirty"):
                # Written to since it was made: through a slice, most often.
                found += [
                    seen.index
                    for seen in self._seen
                    if seen.index < op.index and seen.writes and storage in seen.output_storages and self._lost(seen)
                ]
        if not found and repr(op.arguments) != repr(self.clean[op.index].arguments):
            reads = [
                seen for seen in self._seen[: op.index] if seen.name in READS_A_VALUE and self._input_differs(seen)
            ]
            found += [reads[-1].index] if reads else []
        return [self._seen[n] for n in found if n < len(self._seen)]

    def _lost(self, op: Op) -> bool:
        return any(self.states.get((op.index, n)) in ("lost", "dirty") for n in range(len(op.outputs)))


@dataclass(eq=False)
class Repair:
    """The change that gives some ops their clean output: where it must not differ, or all of it where that is lost."""

    clean: Sequence[Op]
    view: View
    ops: frozenset[int]

    def __call__(self, op: Op) -> list[Tensor] | None:
        if op.index not in self.ops or not aligned(self.clean[op.index], op):
            return None
        pairs = zip(self.clean[op.index].outputs, op.outputs, strict=True)
        return [
            b if a.shape != b.shape and self.view.state(a, b) == "lost" else self.view.repair(a, b) for a, b in pairs
        ]
