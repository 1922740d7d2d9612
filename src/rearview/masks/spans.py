"""Spans: the keys that each query hears, as a few disjoint ranges. The canonical form of a mask.

    >>> from rearview import causal, window, prefix
    >>> spans = ((causal() & window(2)) | prefix(1)).spans(4)
    >>> spans.rows()
    [[(0, 1)], [(0, 2)], [(0, 3)], [(0, 1), (2, 4)]]

Canonical means: in each row the ranges are sorted, disjoint and not touching, empty ones come last as
(k_len, k_len), and there are no more range slots than the fullest row needs. Two Spans of one frame are the
same set exactly when their canonical tensors are equal after broadcasting.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.grouping import ranks
from rearview.masks.runs import runs_of


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
                got=f"{list(starts.shape)} and {list(ends.shape)}",
            )
        if starts.shape[2] not in (1, q_len):
            raise BadArgument("starts", expected=f"{q_len} queries or 1 that broadcasts", got=starts.shape[2])
        starts, ends = torch.broadcast_tensors(starts.int(), ends.int())
        return cls(*_canonical(starts, ends, k_len), q_len=q_len, k_len=k_len)

    @classmethod
    def in_order(cls, starts: Tensor, ends: Tensor, *, q_len: int, k_len: int) -> "Spans":
        """int32 ranges that are sorted, disjoint, not touching and not empty, except for missing ones at the end.

        A missing range is one that starts and ends beyond all keys. The tensors are clipped in place.
        """
        return cls(*_trimmed(starts.clamp_(max=k_len), ends.clamp_(max=k_len), k_len), q_len=q_len, k_len=k_len)

    @classmethod
    def from_bool(cls, visible: Tensor) -> "Spans":
        """The ranges of a boolean tensor [query, key] or [batch, head, query, key], True = may be heard."""
        if visible.dtype != torch.bool or visible.ndim not in (2, 4):
            raise BadArgument(
                "visible",
                expected="a bool tensor [query, key] or [batch, head, query, key]",
                got=f"{visible.dtype} of shape {list(visible.shape)}",
            )
        visible = visible[(None,) * (4 - visible.ndim)]
        q_len, k_len = visible.shape[-2:]
        return cls(*runs_of(visible), q_len=q_len, k_len=k_len)

    @classmethod
    def stacked(cls, parts: Sequence["Spans"], *, dim: int, q_len: int, k_len: int) -> "Spans":
        """The heads (dim 1) or the queries (dim 2) of several Spans, one after the other; other axes broadcast."""
        slots = max(spans.most_ranges for spans in parts)
        shapes = [[*spans.starts.shape[:dim], 1, *spans.starts.shape[dim + 1 : 3]] for spans in parts]
        sizes = _broadcast(shapes)

        def joined(edges: Iterable[Tensor]) -> Tensor:
            # Missing range slots are empty ranges at the end, as in any canonical row.
            filled = (torch.nn.functional.pad(edge, (0, slots - edge.shape[-1]), value=k_len) for edge in edges)
            return torch.cat([edge.expand(*sizes[:dim], -1, *sizes[dim + 1 :], -1) for edge in filled], dim)

        starts, ends = joined(spans.starts for spans in parts), joined(spans.ends for spans in parts)
        return cls(starts, ends, q_len=q_len, k_len=k_len)

    # Set algebra.

    def __and__(self, other: "Spans") -> "Spans":
        # Every pair of ranges is made below. Where that is many more than there are ranges, De Morgan's law is cheaper.
        if self.most_ranges * other.most_ranges > 2 * (self.most_ranges + other.most_ranges):
            return ~(~self | ~other)
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
                got=f"{other.q_len} queries and {other.k_len} keys",
            )
        rows = _broadcast([self.starts.shape[:-1], other.starts.shape[:-1]])
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
    def same_for_all_heads(self) -> bool:
        return self.equals(Spans(self.starts[:, :1], self.ends[:, :1], q_len=self.q_len, k_len=self.k_len))

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
    def columns(self) -> "Spans":
        """For each key the ranges of queries that hear it: the transpose, whose rows are keys.

        >>> from rearview import causal
        >>> causal().spans(3).columns.rows()
        [[(0, 3)], [(1, 3)], [(2, 3)]]
        """
        from rearview.masks.columns import columns_of

        return columns_of(self)

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
        """Whether two Spans are the same set of pairs; axes of size 1 broadcast."""
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


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The shape that shapes of the same number of axes broadcast to.

    torch.broadcast_shapes imports sympy, and takes seconds when it is called first.
    """
    sizes = [{size for size in axis if size != 1} or {1} for axis in zip(*shapes, strict=True)]
    if any(len(known) > 1 for known in sizes):
        got = " and ".join(str(list(shape)) for shape in shapes)
        raise BadArgument("spans", expected="[batch, head, query] of equal sizes, or 1", got=got)
    return [known.pop() for known in sizes]


def _canonical(starts: Tensor, ends: Tensor, k_len: int) -> tuple[Tensor, Tensor]:
    starts, ends = starts.clamp(0, k_len), ends.clamp(0, k_len)
    empty = starts >= ends
    starts, ends = starts.masked_fill(empty, k_len), ends.masked_fill(empty, k_len)
    if starts.shape[-1] <= 1:
        return starts, ends
    if starts.shape[-1] == 2:
        return _trimmed(*_merge_two(starts, ends, k_len), k_len)
    # What families and operators make is mostly in order already, and comparing costs less than sorting.
    if not _in_order(starts, ends, k_len):
        starts, ends = _without_empty(starts, ends, ~empty, k_len)
    if not _in_order(starts, ends, k_len):
        starts, ends = _merge_many(starts, ends, k_len)
    return _trimmed(starts, ends, k_len)


def _in_order(starts: Tensor, ends: Tensor, k_len: int) -> bool:
    return bool(((starts[..., 1:] > ends[..., :-1]) | (starts[..., 1:] == k_len)).all())


def _without_empty(starts: Tensor, ends: Tensor, there: Tensor, k_len: int) -> tuple[Tensor, Tensor]:
    """The ranges that are `there`, moved to the first slots of their rows in the order that they have."""
    count = there.sum(-1).flatten()
    slots = max(1, int(count.max())) if count.numel() else 1
    place = there.flatten().nonzero().flatten()
    row = place // there.shape[-1]
    slot = ranks(row, count)
    found = []
    for edge in (starts, ends):
        moved = edge.new_full((len(count), slots), k_len)
        moved[row, slot] = edge.flatten()[place]
        found.append(moved.view(*starts.shape[:-1], slots))
    return found[0], found[1]


def _merge_many(starts: Tensor, ends: Tensor, k_len: int) -> tuple[Tensor, Tensor]:
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
    return starts, reach.masked_fill(~closes, k_len).sort(-1).values


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
    # Rows are filled from the left, so the slots that some row uses come first: the last of them is found by bisection.
    used, unused = 1, starts.shape[-1]
    while used < unused:
        middle = (used + unused) // 2
        if bool((starts[..., middle] < k_len).any()):
            used = middle + 1
        else:
            unused = middle
    return starts[..., :used].contiguous(), ends[..., :used].contiguous()
