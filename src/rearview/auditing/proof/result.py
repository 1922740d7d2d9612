"""The result of a proof: who may hear whom, under which conditions, and what could not be followed.

>>> import torch
>>> from rearview.auditing.proof import prove
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

from rearview.auditing.proof.sets import EXTRA, heard
from rearview.errors import BadArgument, RearviewError


class ProofFailed(RearviewError):
    """The proof could not run the program, so nothing is known; the message says why."""


@dataclass(frozen=True)
class OpLocation:
    """An op, the module that ran it and the line of source that called it."""

    op: str
    module: str = ""
    line: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (self.op, self.module and f"in {self.module}", self.line) if part)


@dataclass(frozen=True)
class Condition:
    """A finite number masks keys here, as long as scores stay at least `bound` above it."""

    place: OpLocation
    fill: float
    margin: float
    bound: float
    count: int = 1

    def __str__(self) -> str:
        return (
            f"{self.place}: masked scores ({self.fill:.3g} here) stay at least {self.bound:g} below the largest "
            f"visible score of their row; now they are {self.margin:.3g} below it"
        )


@dataclass(frozen=True)
class UnknownOp:
    """An op without a rule, whose outputs count as hearing all of its inputs."""

    place: OpLocation
    count: int = 1

    def __str__(self) -> str:
        return f"{self.place} (x{self.count})"


@dataclass(frozen=True)
class Escape:
    """A value that heard the input left the tensors: an `if`, an .item(), a shape. The proof cannot follow it."""

    place: OpLocation
    count: int = 1
    times: tuple[int, ...] = ()
    """The positions that the value has heard, where they are known."""

    def __str__(self) -> str:
        return f"{self.place} (x{self.count})"


@dataclass(frozen=True)
class OpRelation:
    """What one op's output heard, by time position: [batch or 1, time, times + items]."""

    place: OpLocation
    relation: Tensor


def relation_by_time(tensor: Tensor, sets: Tensor, *, batch: int, time: int) -> Tensor | None:
    """[batch or 1, time, times + items], where one axis of the tensor is as long as time or batch times time, or None.

    Scores have two such axes: each of them has heard a query and a key, which says nothing before the softmax.

    >>> from rearview.auditing.proof.sets import sources
    >>> heard_by = sources(batch=1, time=3).unsqueeze(2)
    >>> relation_by_time(torch.zeros(1, 3, 7), heard_by, batch=1, time=3).int().tolist()
    [[[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1]]]
    >>> relation_by_time(torch.zeros(1, 3, 3), heard_by, batch=1, time=3) is None    # scores
    True
    """
    axes = [dim for dim, size in enumerate(tensor.shape) if size == time]
    flat = [dim for dim, size in enumerate(tensor.shape) if size == batch * time and batch > 1]
    if len(axes) + len(flat) != 1 or not heard(sets):
        return None
    keep = flat or axes
    if not flat and batch > 1 and axes[0] > 0 and tensor.shape[0] == batch:
        keep = [0, *axes]
    others = [dim for dim in range(tensor.dim()) if dim not in keep]
    rows = sets[..., :-EXTRA].any(dim=others) if others else sets[..., :-EXTRA]
    if flat:
        return rows.expand(batch * time, -1).reshape(batch, time, -1)
    per_item = len(keep) == 2
    rows = rows if per_item else rows.unsqueeze(0)
    return rows.expand(batch if per_item else 1, time, -1)


ASSUMPTIONS = (
    "ops do what their documentation says: kernels and rounding are not proven",
    "activations are finite: 0 times inf or NaN is not 0, nor is 0 / 0",
    "nothing that was computed from the input before the run enters it, as another argument or as state",
    "numbers and arrays that the program holds outside of tensors are part of the program",
    "the program does the same whether or not a torch dispatch mode watches it",
    "native code that is called without an op does not pass over null pointers",
    "of the ops with a rule, only those that index, search, sample, factorize or divide integers raise exceptions that "
    "depend on values",
)


@dataclass(frozen=True)
class Proof:
    """Whatever is not in `hears` cannot be heard, where nothing escaped and the conditions hold."""

    traced: Tensor
    """bool [batch, T_out, batch, T]: whether output (b, i) may hear source (c, j), along the path that ran."""
    conditions: tuple[Condition, ...] = ()
    unknown_ops: tuple[UnknownOp, ...] = ()
    value_escapes: tuple[Escape, ...] = ()
    assumptions: tuple[str, ...] = ASSUMPTIONS
    relations: tuple[OpRelation, ...] = field(default=(), repr=False)

    @property
    def hears(self) -> Tensor:
        """bool [batch, T_out, batch, T]. After an escape every output may hear every source."""
        return torch.ones_like(self.traced) if self.value_escapes else self.traced

    def matrix(self) -> Tensor:
        """bool [T_out, T]: who may hear whom within a batch item, in any of them."""
        return torch.stack([self.hears[b, :, b] for b in range(self.hears.shape[0])]).any(dim=0)

    @property
    def isolated(self) -> bool:
        """Whether no batch item can hear another."""
        hears = self.hears
        return not any(bool(hears[b, :, c].any()) for b in range(len(hears)) for c in range(len(hears)) if b != c)

    def forbidden(self, visible: Tensor) -> Tensor:
        """bool [batch, T_out, T]: what an output may hear in its own batch item although `visible` forbids it."""
        batch, t_out, _, time = self.hears.shape
        if visible.dtype is not torch.bool or visible.shape not in ((t_out, time), (batch, t_out, time)):
            raise BadArgument(
                "visible",
                expected=f"a bool tensor [{t_out}, {time}] or [{batch}, {t_out}, {time}]",
                got=f"{visible.dtype} {list(visible.shape)}",
            )
        own = torch.stack([self.hears[b, :, b] for b in range(batch)])
        return own & ~visible.to(own.device)

    def within(self, visible: Tensor, *, isolated: bool = True) -> bool:
        """Whether `visible`, [T_out, T] or [batch, T_out, T], allows all that may be heard, and no other item is."""
        return not bool(self.forbidden(visible).any()) and (not isolated or self.isolated)

    def violations(self, visible: Tensor) -> list[tuple[int, int, int, int]]:
        """(item, position, item of the source, its position) for all that is forbidden, as other batch items are."""
        batch = self.hears.shape[0]
        bad = self.hears.clone()
        own = self.forbidden(visible)
        for b in range(batch):
            bad[b, :, b] = own[b]
        return [tuple(where) for where in bad.nonzero().tolist()]

    def origin(
        self, out_position: int, source: int, *, batch: int = 0, source_batch: int | None = None
    ) -> OpLocation | None:
        """The first op whose output, at time `out_position`, had heard `source`; None where there is none.

        Only outputs with a single axis as long as time are examined, so choose a length that no other axis has.
        """
        item = self.traced.shape[-1] + (batch if source_batch is None else source_batch)
        for entry in self.relations:
            row = entry.relation[batch if entry.relation.shape[0] > 1 else 0]
            if out_position < row.shape[0] and bool(row[out_position, [source, item]].all()):
                return entry.place
        return None
