"""Spans: for each query, the keys that it hears as a few disjoint ranges. The canonical form of a mask.

    >>> from rearview import causal, window, prefix
    >>> spans = ((causal() & window(2)) | prefix(1)).spans(4)
    >>> spans.rows()
    [[(0, 1)], [(0, 2)], [(0, 3)], [(0, 1), (2, 4)]]

Canonical means: in each row the ranges are sorted, disjoint and not touching, empty ones stand last as
(k_len, k_len), and there are no more range slots than the fullest row needs. Two Spans of one frame are the
same set exactly when their canonical tensors are equal after broadcasting.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rearview.errors import BadArgument


@dataclass(frozen=True, eq=False)
class Spans:
    """Ranges `[start, end)` of keys: int32 tensors [batch, head, query, range]; axes of size 1 broadcast."""

    starts: Tensor
    ends: Tensor
    q_len: int
    k_len: int

    @classmethod
    def of(cls, starts: Tensor, ends: Tensor, *, q_len: int, k_len: int) -> "Spans":
        """Any ranges, in any order, overlapping or empty, made canonical."""
        if starts.ndim != 4 or ends.ndim != 4:
            raise BadArgument(
                "starts, ends",
                expected="tensors [batch, head, query, range]",
                came=f"{list(starts.shape)} and {list(ends.shape)}",
            )
        if starts.shape[2] not in (1, q_len):
            raise BadArgument("starts", expected=f"{q_len} queries or 1 that broadcasts", came=starts.shape[2])
        starts, ends = torch.broadcast_tensors(starts.int(), ends.int())
        return cls(*_canonical(starts, ends, k_len), q_len=q_len, k_len=k_len)

    @classmethod
    def from_bool(cls, visible: Tensor) -> "Spans":
        """The ranges of a boolean tensor [query, key] or [batch, head, query, key], True = may be heard."""
        if visible.dtype != torch.bool or visible.ndim not in (2, 4):
            raise BadArgument(
                "visible",
                expected="a bool tensor [query, key] or [batch, head, query, key]",
                came=f"{visible.dtype} of shape {list(visible.shape)}",
            )
        visible = visible.view((1,) * (4 - visible.ndim) + visible.shape)
        q_len, k_len = visible.shape[-2:]
        edge = torch.nn.functional.pad(visible.to(torch.int8), (1, 1)).diff(dim=-1)
        # Sorting the edge positions (k_len where there is none) pairs the n-th start with the n-th end.
        position = torch.arange(k_len + 1, dtype=torch.int32, device=visible.device)
        most = int((edge == 1).sum(-1).max()) if edge.numel() else 0
        slots = max(most, 1)
        starts = torch.where(edge == 1, position, k_len).sort(-1).values[..., :slots]
        ends = torch.where(edge == -1, position, k_len).sort(-1).values[..., :slots]
        return cls(starts.int().contiguous(), ends.int().contiguous(), q_len=q_len, k_len=k_len)

    # Set algebra.

    def __and__(self, other: "Spans") -> "Spans":
        a_start, a_end, b_start, b_end = self._aligned(other)
        starts = torch.maximum(a_start.unsqueeze(-1), b_start.unsqueeze(-2)).flatten(-2)
        ends = torch.minimum(a_end.unsqueeze(-1), b_end.unsqueeze(-2)).flatten(-2)
        return Spans(*_canonical(starts, ends, self.k_len), q_len=self.q_len, k_len=self.k_len)

    def __or__(self, other: "Spans") -> "Spans":
        a_start, a_end, b_start, b_end = self._aligned(other)
        starts, ends = torch.cat([a_start, b_start], -1), torch.cat([a_end, b_end], -1)
        return Spans(*_canonical(starts, ends, self.k_len), q_len=self.q_len, k_len=self.k_len)

    def __invert__(self) -> "Spans":
        edge = self.starts.new_full((*self.starts.shape[:-1], 1), 0)
        starts, ends = torch.cat([edge, self.ends], -1), torch.cat([self.starts, edge + self.k_len], -1)
        return Spans(*_canonical(starts, ends, self.k_len), q_len=self.q_len, k_len=self.k_len)

    def _aligned(self, other: "Spans") -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if (self.q_len, self.k_len) != (other.q_len, other.k_len):
            raise BadArgument(
                "spans",
                expected=f"the same frame of {self.q_len} queries and {self.k_len} keys",
                came=f"{other.q_len} queries and {other.k_len} keys",
            )
        rows = torch.broadcast_shapes(self.starts.shape[:-1], other.starts.shape[:-1])
        a, b = (*rows, self.starts.shape[-1]), (*rows, other.starts.shape[-1])
        return self.starts.expand(a), self.ends.expand(a), other.starts.expand(b), other.ends.expand(b)

    # What engines, pictures and the planner read.

    @property
    def batch(self) -> int:
        return self.starts.shape[0]

    @property
    def heads(self) -> int:
        return self.starts.shape[1]

    @property
    def most_ranges(self) -> int:
        """Ranges in the fullest row (at least 1, so that the axis exists)."""
        return self.starts.shape[3]

    @cached_property
    def keys_heard(self) -> Tensor:
        """How many keys each query hears: int64 [batch, head, q_len]."""
        counts = (self.ends - self.starts).sum(-1)
        return counts.expand(*counts.shape[:2], self.q_len)

    @cached_property
    def area(self) -> int:
        """Visible (query, key) pairs, summed over the batch and heads that differ."""
        return int(self.keys_heard.sum())

    @property
    def share(self) -> float:
        """The visible part of all pairs, 0 to 1."""
        return self.area / max(1, self.batch * self.heads * self.q_len * self.k_len)

    @cached_property
    def empty_rows(self) -> Tensor:
        """Queries that hear nothing: bool [batch, head, q_len]."""
        return self.keys_heard == 0

    @cached_property
    def heard_keys(self) -> Tensor:
        """Keys that at least one query hears: bool [batch, head, k_len]."""
        if self.q_len == 0:
            return torch.zeros(self.batch, self.heads, self.k_len, dtype=torch.bool, device=self.starts.device)
        # +1 where a range opens, -1 where it closes; the running sum is how many queries hear each key.
        edges = self.starts.new_zeros(self.batch, self.heads, self.k_len + 1)
        opens, closes = self.starts.flatten(2).long(), self.ends.flatten(2).long()
        edges.scatter_add_(-1, opens, torch.ones_like(opens, dtype=edges.dtype))
        edges.scatter_add_(-1, closes, -torch.ones_like(closes, dtype=edges.dtype))
        return edges[..., :-1].cumsum(-1) > 0

    @cached_property
    def some_key_unheard(self) -> bool:
        return not bool(self.heard_keys.all())

    @cached_property
    def some_row_empty(self) -> bool:
        return bool(self.empty_rows.any())

    @cached_property
    def first_rows(self) -> tuple[tuple[slice, ...], ...]:
        """What the first query of head 0 hears, for each batch item, as slices of the keys.

        >>> from rearview import causal, prefix, window
        >>> ((causal() & window(2)) | prefix(1)).spans(1, 8).first_rows
        ((slice(0, 1, None), slice(6, 8, None)),)
        """
        starts, ends = self.starts[:, 0, 0].tolist(), self.ends[:, 0, 0].tolist()
        items = (zip(item, its_ends, strict=True) for item, its_ends in zip(starts, ends, strict=True))
        return tuple(tuple(slice(start, end) for start, end in item if start < end) for item in items)

    def covers_all(self) -> bool:
        """Does every query hear every key?"""
        return self.most_ranges == 1 and bool((self.starts == 0).all()) and bool((self.ends == self.k_len).all())

    def first_future(self, q_start: int) -> Tensor:
        """For each query the first key after its own position that it hears, or k_len: [batch, head, q_len]."""
        position = torch.arange(q_start, q_start + self.q_len, device=self.starts.device).view(1, 1, -1, 1)
        after = torch.maximum(self.starts, (position + 1).clamp(min=0, max=self.k_len))
        return torch.where(after < self.ends, after, self.k_len).amin(-1).expand(-1, -1, self.q_len)

    def heard_by_any(self, block: int) -> "Spans":
        """One row for each block of `block` queries: the keys that some query of the block hears."""
        starts, ends = self._blocked(block)
        return Spans(*_canonical(starts, ends, self.k_len), q_len=starts.shape[2], k_len=self.k_len)

    def heard_by_all(self, block: int) -> "Spans":
        """One row for each block of `block` queries: the keys that every query of the block hears."""
        return ~((~self).heard_by_any(block))

    def _blocked(self, block: int) -> tuple[Tensor, Tensor]:
        blocks = -(-self.q_len // block)
        if self.starts.shape[2] == 1:
            shape = (-1, -1, blocks, -1)
            return self.starts.expand(shape), self.ends.expand(shape)
        # Rows added to fill the last block hear nothing, so they change no union.
        pad = (0, 0, 0, blocks * block - self.q_len)
        rows = (self.batch, self.heads, blocks, block * self.most_ranges)
        return (
            torch.nn.functional.pad(self.starts, pad, value=self.k_len).view(rows),
            torch.nn.functional.pad(self.ends, pad, value=self.k_len).view(rows),
        )

    def equals(self, other: "Spans") -> bool:
        """The same set of pairs? (Broadcast axes are looked through.)"""
        a_start, a_end, b_start, b_end = self._aligned(other)
        if a_start.shape[-1] != b_start.shape[-1]:
            return False
        return torch.equal(a_start, b_start) and torch.equal(a_end, b_end)

    def to_bool(self) -> Tensor:
        """The dense form: bool [batch, head, q_len, k_len]."""
        key = torch.arange(self.k_len, device=self.starts.device)
        visible = torch.zeros(*self.starts.shape[:3], self.k_len, dtype=torch.bool, device=self.starts.device)
        # Range by range: a [.., query, range, key] tensor would be needlessly large.
        for start, end in zip(self.starts.unbind(-1), self.ends.unbind(-1), strict=True):
            visible |= (key >= start.unsqueeze(-1)) & (key < end.unsqueeze(-1))
        return visible.expand(-1, -1, self.q_len, -1)

    def rows(self, batch: int = 0, head: int = 0) -> list[list[tuple[int, int]]]:
        """The ranges of every query of one batch item and head, as plain Python."""
        shape = (-1, -1, self.q_len, -1)
        starts = self.starts.expand(shape)[min(batch, self.batch - 1), min(head, self.heads - 1)].tolist()
        ends = self.ends.expand(shape)[min(batch, self.batch - 1), min(head, self.heads - 1)].tolist()
        pairs = [list(zip(s, e, strict=True)) for s, e in zip(starts, ends, strict=True)]
        return [[(start, end) for start, end in row if start < end] for row in pairs]


def _canonical(starts: Tensor, ends: Tensor, k_len: int) -> tuple[Tensor, Tensor]:
    starts, ends = starts.clamp(0, k_len), ends.clamp(0, k_len)
    empty = starts >= ends
    starts, ends = starts.masked_fill(empty, k_len), ends.masked_fill(empty, k_len)
    if starts.shape[-1] <= 1:
        return starts, ends
    if starts.shape[-1] == 2:
        return _trimmed(*_merge_two(starts, ends, k_len), k_len)
    starts, order = starts.sort(-1)
    ends = ends.gather(-1, order)
    reach = ends.cummax(-1).values
    # A range opens a new group when it starts beyond everything so far. Both the group's starts and its ends
    # grow along the row, so sorting each with fillers last pairs them up again.
    opens = torch.ones_like(starts, dtype=torch.bool)
    opens[..., 1:] = starts[..., 1:] > reach[..., :-1]
    closes = torch.ones_like(opens)
    closes[..., :-1] = opens[..., 1:]
    starts = starts.masked_fill(~opens, k_len).sort(-1).values
    ends = reach.masked_fill(~closes, k_len).sort(-1).values
    return _trimmed(starts, ends, k_len)


def _merge_two(starts: Tensor, ends: Tensor, k_len: int) -> tuple[Tensor, Tensor]:
    # Two ranges are by far the most common case, and sorting networks of one comparator beat sort and cummax.
    swap = starts[..., 0] > starts[..., 1]
    first, second = starts.amin(-1), starts.amax(-1)
    first_end = torch.where(swap, ends[..., 1], ends[..., 0])
    second_end = torch.where(swap, ends[..., 0], ends[..., 1])
    touch = second <= first_end
    first_end = torch.where(touch, torch.maximum(first_end, second_end), first_end)
    second, second_end = second.masked_fill(touch, k_len), second_end.masked_fill(touch, k_len)
    return torch.stack([first, second], -1), torch.stack([first_end, second_end], -1)


def _trimmed(starts: Tensor, ends: Tensor, k_len: int) -> tuple[Tensor, Tensor]:
    most = max(1, int((starts < k_len).sum(-1).max())) if starts.numel() else 1
    return starts[..., :most].contiguous(), ends[..., :most].contiguous()
