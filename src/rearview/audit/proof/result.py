"""What a proof says: who may hear whom, on which conditions, and what stood in its way.

>>> import torch
>>> from rearview.audit.proof import prove
>>> proof = prove(lambda x: x.flip(1), torch.rand(1, 3, 2))
>>> causal = torch.ones(3, 3).tril().bool()
>>> proof.within(causal), proof.violations(causal)
(False, [(0, 0, 0, 2)])
>>> print(proof.origin(0, 2).op)
flip
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rearview.errors import BadArgument, RearviewError


class ProofFailed(RearviewError):
    """The program could not be run on sets, so nothing is known; the message says why."""


@dataclass(frozen=True)
class Place:
    """An op, the module that ran it and the line of source that called it."""

    op: str
    module: str = ""
    line: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (self.op, self.module and f"in {self.module}", self.line) if part)


@dataclass(frozen=True)
class Condition:
    """A finite number hides keys here as long as scores stay at least `bound` above it."""

    place: Place
    fill: float
    margin: float
    bound: float = 104.0
    count: int = 1

    def __str__(self) -> str:
        return (
            f"{self.place}: masked scores ({self.fill:.3g} here) stay at least {self.bound:g} below the largest "
            f"visible score of their row; now they are {self.margin:.3g} below it"
        )


@dataclass(frozen=True)
class UnknownOp:
    """An op without a rule: it counts as hearing all of its inputs everywhere."""

    place: Place
    count: int = 1

    def __str__(self) -> str:
        return f"{self.place} (x{self.count})"


@dataclass(frozen=True)
class Escape:
    """A value that heard the input left the tensors: an `if`, an .item(), a shape. What depends on it is not seen."""

    place: Place
    count: int = 1

    def __str__(self) -> str:
        return f"{self.place} (x{self.count})"


@dataclass(frozen=True)
class Step:
    """What one op's output heard, by time position: [batch or 1, time, sources]."""

    place: Place
    relation: Tensor


ASSUMPTIONS = (
    "ops do what their documentation says: kernels are not proven",
    "activations are finite: 0 times inf or NaN is not 0",
    "it holds at these shapes and in this mode (train or eval, backend, arguments), for every input and all weights",
    "no state is hidden from the run: what was computed from the input before it, or outside of torch, is not seen",
)


@dataclass(frozen=True)
class Proof:
    """Sound: whatever is not in `hears` cannot be heard, if nothing escaped and the conditions hold."""

    traced: Tensor
    """[batch, T_out, batch, T], bool: along the path that ran, may output (b, i) hear source (c, j)?"""
    conditions: tuple[Condition, ...] = ()
    unknown_ops: tuple[UnknownOp, ...] = ()
    value_escapes: tuple[Escape, ...] = ()
    assumptions: tuple[str, ...] = ASSUMPTIONS
    steps: tuple[Step, ...] = field(default=(), repr=False)

    @property
    def hears(self) -> Tensor:
        """[batch, T_out, batch, T], bool. After an escape everyone may hear everyone."""
        return torch.ones_like(self.traced) if self.value_escapes else self.traced

    def matrix(self) -> Tensor:
        """[T_out, T], bool: in any batch item, within it."""
        return torch.stack([self.hears[b, :, b] for b in range(self.hears.shape[0])]).any(dim=0)

    @property
    def isolated(self) -> bool:
        """Does no batch item hear another?"""
        hears = self.hears
        return not any(bool(hears[b, :, c].any()) for b in range(len(hears)) for c in range(len(hears)) if b != c)

    def forbidden(self, visible: Tensor) -> Tensor:
        """[batch, T_out, T], bool: what an output may hear in its own batch item and `visible` does not allow."""
        batch, t_out, _, time = self.hears.shape
        if visible.dtype is not torch.bool or visible.shape not in ((t_out, time), (batch, t_out, time)):
            raise BadArgument(
                "visible",
                expected=f"a bool tensor [{t_out}, {time}] or [{batch}, {t_out}, {time}]",
                came=f"{visible.dtype} {list(visible.shape)}",
            )
        own = torch.stack([self.hears[b, :, b] for b in range(batch)])
        return own & ~visible.to(own.device)

    def within(self, visible: Tensor, *, isolated: bool = True) -> bool:
        """Is every dependence allowed by `visible` ([T_out, T] or [batch, T_out, T]), and no other batch item heard?"""
        return not bool(self.forbidden(visible).any()) and (not isolated or self.isolated)

    def violations(self, visible: Tensor) -> list[tuple[int, int, int, int]]:
        """(batch, i, batch of the source, j) for all that is not allowed; other batch items are never allowed."""
        batch = self.hears.shape[0]
        bad = self.hears.clone()
        own = self.forbidden(visible)
        for b in range(batch):
            bad[b, :, b] = own[b]
        return [tuple(where) for where in bad.nonzero().tolist()]

    def origin(
        self, out_position: int, source: int, *, batch: int = 0, source_batch: int | None = None
    ) -> Place | None:
        """The first op whose output, at time `out_position`, had heard `source`; None if it was not seen.

        Seen are outputs with one axis of the length of time, so choose a length that no other axis has.
        """
        time = self.traced.shape[-1]
        column = (batch if source_batch is None else source_batch) * time + source
        for step in self.steps:
            row = step.relation[batch if step.relation.shape[0] > 1 else 0]
            if out_position < row.shape[0] and bool(row[out_position, column]):
                return step.place
        return None
