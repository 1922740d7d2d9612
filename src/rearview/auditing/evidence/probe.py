"""One experiment: change some sources, run both inputs in the same way, and compare the outputs bit for bit.

>>> import torch
>>> from rearview.auditing.evidence.probe import Prober
>>> from rearview.auditing.model.subject import Subject
>>> prober = Prober(Subject.of(lambda x: x.cumsum(1), torch.randn(1, 4)))
>>> moved = prober.change(torch.tensor([[False, False, True, False]]), torch.Generator().manual_seed(0))
>>> moved.moved.tolist()
[[False, False, True, True]]

The two runs have the same shapes, and each row stands at the same place in the batch, so the same kernels add in the
same order: what a row does not hear cannot change it by even one bit. (A few models group their work by value, as
mixtures of experts do; `rounding.py` handles those.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rearview.auditing.model.sampling import Draw
from rearview.auditing.model.subject import Subject

# The most values that the outputs of one run may hold: larger batches are split.
MOST_VALUES = 1 << 24
MOST_POSITIONS = 1 << 14


@dataclass(frozen=True, eq=False)
class Moved:
    """The result of an experiment, with one entry per row."""

    items: Tensor
    """The batch item of each row."""
    clean: Tensor
    """[rows, time, ...]: the inputs as given."""
    other: Tensor
    """[rows, time, ...]: the inputs with their sources changed."""
    changed: Tensor
    """bool [rows, time]: the sources."""
    amounts: Tensor
    """float64 [rows, time]: the largest change of an output; inf where NaN appeared or disappeared."""
    moved: Tensor
    """bool [rows, time]"""
    scale: float
    """The magnitude of an ordinary output."""
    broken: Tensor
    """bool [rows, time]: outputs that were finite and no longer are."""

    def usable(self, watched: Tensor) -> Tensor:
        """bool [rows]: whether what may hear the sources stayed finite. Otherwise 0 x inf could reach the others."""
        return ~(self.broken & ~watched).any(-1)


@dataclass
class Prober:
    """Runs experiments on a subject. With `alone`, rows run one at a time, each within the given batch."""

    subject: Subject
    alone: bool = False
    _clean: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def change(self, changed: Tensor, generator: torch.Generator, *, draw: Draw = "ordinary", item: int = 0) -> Moved:
        """Draw other values at `changed`, bool [rows, time], for rows that all stand for one batch item."""
        items = torch.full((len(changed),), item)
        clean = self.subject.x[items.to(self.subject.x.device)]
        other = self.subject.sampler.change(clean, changed, generator, draw)
        return self.compare(clean, other, changed, items, given=True)

    def compare(self, clean: Tensor, other: Tensor, changed: Tensor, items: Tensor, *, given: bool = False) -> Moved:
        """Run both inputs in the same batches; `given` says that `clean` holds the given items unchanged."""
        amounts, moved, broken, scale = [], [], [], 0.0
        for rows in self._batches(len(clean)):
            before = self.outputs(clean[rows], items[rows], remember=given)
            after = self.outputs(other[rows], items[rows])
            part, differs = difference(before, after)
            amounts.append(part)
            moved.append(differs)
            broken.append(finite(before) & ~finite(after))
            scale = max(scale, scale_of(before))
        return Moved(
            items=items,
            clean=clean,
            other=other,
            changed=changed,
            amounts=torch.cat(amounts),
            moved=torch.cat(moved),
            scale=scale,
            broken=torch.cat(broken),
        )

    def outputs(self, x: Tensor, items: Tensor, *, remember: bool = False) -> Tensor:
        # The clean rows are the given items repeated, so only a few different batches occur.
        key = (x.shape[1], *items.tolist())
        if remember and key in self._clean:
            return self._clean[key]
        found = self._one_by_one(x, items) if self.alone else self.subject.run(x, items)
        if remember and found.numel() <= MOST_VALUES // 8:
            if len(self._clean) >= 4:
                self._clean.clear()
            self._clean[key] = found
        return found

    def _one_by_one(self, x: Tensor, items: Tensor) -> Tensor:
        rows = []
        for row, item in zip(x, items.tolist(), strict=True):
            whole = self.subject.x.clone()
            whole[item] = row
            rows.append(self.subject.run(whole)[item])
        return torch.stack(rows)

    def _batches(self, rows: int) -> Iterator[slice]:
        width = max(1, self._features)
        most = max(1, min(MOST_VALUES // (width * self.subject.time), MOST_POSITIONS // self.subject.time))
        for first in range(0, rows, most):
            yield slice(first, first + most)

    @property
    def _features(self) -> int:
        return max((run.shape[-1] for run in self._clean.values()), default=1024)


def difference(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """The largest change at each position, float64 [rows, time], and where anything changed, bool [rows, time].

    >>> difference(torch.zeros(1, 2, 3), torch.tensor([[[0.0, 0, 0], [0, 2, 0]]]))
    (tensor([[0., 2.]], dtype=torch.float64), tensor([[False,  True]]))
    """
    moved = (before != after).any(-1)
    amounts = torch.zeros(moved.shape, dtype=torch.float64, device=moved.device)
    # Most rows do not change, and a vocabulary is wide: only the rows that changed are measured.
    if bool(moved.any()):
        a, b = (run[moved] if run.is_floating_point() else run[moved].double() for run in (before, after))
        largest = (b - a).abs().amax(-1).double()
        if bool(largest.isnan().any()):
            # NaN in both runs is no difference; in one of them, or between infinities, the difference has no size.
            same = (a == b) | (a.isnan() & b.isnan())
            largest = (b - a).abs().masked_fill(same, 0.0).nan_to_num(nan=float("inf")).amax(-1).double()
            moved[moved.clone()] = ~same.all(-1)
            largest = largest[~same.all(-1)]
        amounts[moved] = largest
    return amounts.cpu(), moved.cpu()


def finite(output: Tensor) -> Tensor:
    """bool [rows, time]: whether every feature is finite.

    >>> finite(torch.tensor([[[1.0, 2.0], [1.0, float("nan")]]])).tolist()
    [[True, False]]
    """
    if not output.is_floating_point():
        return torch.ones(output.shape[:2], dtype=torch.bool)
    # The maximum norm is NaN or infinite if any feature is; this is faster than testing each.
    return torch.linalg.vector_norm(output, ord=float("inf"), dim=-1).isfinite().cpu()


def scale_of(output: Tensor) -> float:
    """The magnitude of an ordinary output: the mean over the finite values of a sample of the features.

    >>> scale_of(torch.tensor([[[3.0, -1.0, float("inf")]]]))
    2.0
    """
    some = output[..., :: max(1, output.shape[-1] // 512)]
    some = some[some.isfinite()]
    return float(some.abs().double().mean()) if len(some) else 0.0
