"""Where the documents of packed rows lie: the runs of each id.

>>> found = DocumentRuns.of(torch.tensor([[5, 5, 7, 5]]))
>>> found.start.tolist(), found.end.tolist(), found.most
([0, 3, 2], [2, 4, 3], 2)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class DocumentRuns:
    """The runs of all documents, sorted by document and then by place. Documents are counted over the whole batch."""

    document: Tensor
    """The document of each position: [batch, T]."""
    start: Tensor
    """Positions [runs]; a run ends before `end`."""
    end: Tensor
    first: Tensor
    """The first run of each document: [documents]."""
    count: Tensor
    """How many runs each document has: [documents]."""

    @classmethod
    def of(cls, ids: Tensor) -> DocumentRuns:
        """The runs of `ids` [batch, T]."""
        length = ids.shape[1]
        changes = torch.ones_like(ids, dtype=torch.bool)
        changes[:, 1:] = ids[:, 1:] != ids[:, :-1]
        row, start = changes.nonzero(as_tuple=True)
        end = torch.cat([start[1:], start.new_tensor([0])])
        end[torch.cat([row[1:] != row[:-1], row.new_ones(1, dtype=torch.bool)])] = length
        # Equal ids in two items of the batch are two documents.
        _, small = torch.unique(ids[row, start], return_inverse=True)
        _, owner = torch.unique(row * (small.max() + 1) + small, return_inverse=True)
        order = owner.argsort(stable=True)
        count = torch.bincount(owner)
        document = owner[changes.flatten().cumsum(0) - 1].view_as(ids)
        return cls(document, start[order], end[order], count.cumsum(0) - count, count)

    @cached_property
    def most(self) -> int:
        """How many runs the most scattered document has."""
        return int(self.count.max())

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Starts and ends of the runs of the document at these positions: int32 [batch, rows, most], in order."""
        document = self.document[:, rows].unsqueeze(-1)
        slot = torch.arange(self.most, device=rows.device)
        run = (self.first[document] + slot).clamp(max=len(self.start) - 1)
        there = slot < self.count[document]
        # Runs that are missing are empty.
        return tuple((edge[run] * there).int() for edge in (self.start, self.end))  # pyright: ignore[reportReturnType]


def documents_in_order(ids: Tensor) -> int:
    """How many documents there are over the batch if ids never fall in a row of `ids`; otherwise 0.

    >>> documents_in_order(torch.tensor([5, 5, 7])), documents_in_order(torch.tensor([5, 7, 5]))
    (2, 0)
    """
    steps = ids[..., 1:] - ids[..., :-1]
    if steps.numel() and int(steps.min()) < 0:
        return 0
    return int(steps.count_nonzero()) + ids.numel() // ids.shape[-1]


def positions_in_documents(ids: Tensor) -> Tensor:
    """The place of each position in its document: int64, of the shape of `ids` [batch, T].

    >>> positions_in_documents(torch.tensor([[5, 5, 7, 5]])).tolist()
    [[0, 1, 0, 2]]
    """
    group, order = ids.sort(dim=-1, stable=True)
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    opens = torch.nn.functional.pad(group[:, 1:] != group[:, :-1], (1, 0), value=True)
    first = torch.where(opens, place, 0).cummax(-1).values
    return torch.zeros_like(ids).scatter(-1, order, place - first)
