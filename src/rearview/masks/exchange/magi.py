"""Masks to and from MagiAttention's slices: `q_ranges`, `k_ranges` and `attn_type_map`.

    >>> from rearview import causal, window
    >>> found = to_magi(causal() & window(3), 8)
    >>> [found[name].tolist() for name in ("q_ranges", "k_ranges", "attn_type_map")]
    [[[0, 3], [3, 8]], [[0, 3], [1, 8]], [1, 3]]

A slice is a rectangle of queries and keys with a type: 0 full, 1 causal (aligned at the bottom right), 2 inverse causal
(aligned at the top left), 3 both. The pairs of all slices together are the mask.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from typing import TypedDict

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported
from rearview.masks.data import as_data, as_device, check_readable, is_whole
from rearview.masks.exchange.batch import batch_of
from rearview.masks.exchange.rows import ranged, rows_as_mask
from rearview.masks.frame import Frame, whole_number
from rearview.masks.grouping import ranks
from rearview.masks.mask import Mask
from rearview.masks.spans import Spans

FULL, CAUSAL, INVERSE_CAUSAL, BOTH_CAUSAL = range(4)
# By how many keys the start and the end of a range move from one row to the next.
STEPS = {FULL: (0, 0), CAUSAL: (0, 1), INVERSE_CAUSAL: (1, 0), BOTH_CAUSAL: (1, 1)}


class MagiArguments(TypedDict):
    """Arguments for `flex_flash_attn_func(q, k, v, **arguments)`: int32 [slices, 2] twice, and [slices]."""

    q_ranges: Tensor
    k_ranges: Tensor
    attn_type_map: Tensor


def to_magi(
    mask: Mask,
    q_len: int,
    k_len: int | None = None,
    *,
    q_start: int | None = None,
    batch: int | None = None,
    device: torch.device | str | None = None,
) -> MagiArguments:
    """The slices that mean exactly this mask, for the whole batch laid out as one row; `Unsupported` if heads differ.

    No two slices hold the same pair.

    >>> from rearview import causal
    >>> to_magi(causal(), 2, batch=2)["q_ranges"].tolist()
    [[0, 2], [2, 4]]
    """
    frame = Frame.of(q_len, k_len, q_start)
    spans = ranged(mask, frame)
    if not spans.same_for_all_heads:
        reason = "all heads share one mask there, but differ here"
        raise Unsupported(f"to_magi: MagiAttention cannot express {mask!r}", [reason])
    slices: list[tuple[int, int, int, int, int]] = []
    for item in range(batch_of(mask, batch)):
        starts, ends = (edge[min(item, spans.batch - 1), 0] for edge in (spans.starts, spans.ends))
        for start, end in zip(starts.unbind(-1), ends.unbind(-1), strict=True):
            for first, last, kind in _stretches(start.expand(frame.q_len).long(), end.expand(frame.q_len).long()):
                query, key = item * frame.q_len, item * frame.k_len
                keys = (key + int(start[min(first, len(start) - 1)]), key + int(end[min(last, len(end) - 1)]))
                slices.append((query + first, query + last + 1, *keys, kind))
    table = torch.tensor(sorted(slices), dtype=torch.int32, device=as_device(device)).view(-1, 5)
    return {"q_ranges": table[:, :2], "k_ranges": table[:, 2:4], "attn_type_map": table[:, 4]}


def _stretches(start: Tensor, end: Tensor) -> Iterator[tuple[int, int, int]]:
    """Rows from first to last in which the range `[start, end)` moves as one type of slice does, and that type."""
    heard = start < end
    steps = torch.stack([start.diff(), end.diff()], -1)
    kind = torch.full((max(0, len(start) - 1),), -1)
    for each, step in STEPS.items():
        kind[(steps == torch.tensor(step)).all(-1) & heard[1:] & heard[:-1]] = each
    kinds, lengths = torch.unique_consecutive(kind, return_counts=True)
    is_heard = heard.tolist()
    # The first row that no slice holds yet, and the first row of the stretch: n steps of one kind join n + 1 rows.
    row, first = 0, 0
    for each, length in zip(kinds.tolist(), lengths.tolist(), strict=True):
        last = first + length
        if each < 0:
            yield from ((alone, alone, FULL) for alone in range(row, last) if is_heard[alone])
            row = max(row, last)
        elif row < last:
            yield row, last, each
            row = last + 1
        first = last
    yield from ((alone, alone, FULL) for alone in range(row, len(is_heard)) if is_heard[alone])


def from_magi(
    q_ranges: Sequence[Sequence[int]] | Tensor,
    k_ranges: Sequence[Sequence[int]] | Tensor,
    attn_type_map: Sequence[int] | Tensor | None = None,
    *,
    q_len: int,
    k_len: int,
) -> Mask:
    """The mask that these slices mean over `q_len` queries and `k_len` keys; all are full without `attn_type_map`.

    The rows are at the last positions of the keys. Slices that hold the same pair raise `Unsupported`:
    MagiAttention would count it twice.

    >>> from_magi([[0, 2], [2, 4]], [[0, 2], [2, 4]], [1, 0], q_len=4, k_len=4).spans(4).rows()
    [[(0, 1)], [(0, 2)], [(2, 4)], [(2, 4)]]
    """
    q_len, k_len = whole_number(q_len, "q_len", at_least=1), whole_number(k_len, "k_len", at_least=1)
    queries, keys = _pairs(q_ranges, "q_ranges", q_len), _pairs(k_ranges, "k_ranges", k_len)
    expected = f"a type from 0 to 3 and a range of keys for each of the {len(queries)} slices"
    named = [FULL] * len(queries) if attn_type_map is None else attn_type_map
    kinds = as_data(named, "attn_type_map, k_ranges", expected=expected)
    check_readable(kinds, "attn_type_map, k_ranges", expected=expected)
    kinds = kinds.cpu()
    # Without slices there is nothing that could be no integer.
    whole = kinds.shape == (len(queries),) and (is_whole(kinds) or not len(kinds))
    are_known = whole and bool(((kinds >= 0) & (kinds < 4)).all())
    if len(keys) != len(queries) or not are_known:
        got = f"{reprlib.repr(kinds.tolist())} and {len(keys)} ranges of keys"
        raise BadArgument("attn_type_map, k_ranges", expected=expected, got=got)
    step = torch.tensor(list(STEPS.values()))[kinds.long()]
    # Every row of every slice, and the place of the slice among those of its row.
    lengths = queries[:, 1] - queries[:, 0]
    each = torch.arange(len(queries)).repeat_interleave(lengths)
    inside = ranks(each, lengths)
    row, order = (queries[each, 0] + inside).sort(stable=True)
    each, inside = each[order], inside[order]
    start = keys[each, 0] + step[each, 0] * inside
    end = keys[each, 1] - step[each, 1] * (lengths[each] - 1 - inside)
    count = torch.bincount(row, minlength=q_len)
    slot = ranks(row, count)
    edges = torch.zeros(2, q_len, max(1, int(count.max())), dtype=torch.long)
    edges[0, row, slot], edges[1, row, slot] = start, end
    spans = Spans.of(*edges.view(2, 1, 1, q_len, -1), q_len=q_len, k_len=k_len)
    if spans.area != int((end - start).clamp(min=0).sum()):
        reason = "two of them hold the same pair, and MagiAttention would count it twice"
        raise Unsupported("from_magi: these slices do not form a mask", [reason])
    return rows_as_mask(spans)


def _pairs(values: Sequence[Sequence[int]] | Tensor, argument: str, length: int) -> Tensor:
    expected = f"integers [slices, 2] from 0 to {length}, start before end"
    pairs = as_data(values, argument, expected=expected)
    check_readable(pairs, argument, expected=expected)
    pairs = pairs.cpu()
    if pairs.numel() == 0:
        return pairs.new_empty(0, 2, dtype=torch.long)
    whole = pairs.ndim == 2 and pairs.shape[1] == 2 and is_whole(pairs)
    if not whole or bool((pairs[:, 0] < 0).any() | (pairs[:, 0] > pairs[:, 1]).any() | (pairs[:, 1] > length).any()):
        raise BadArgument(argument, expected=expected, got=reprlib.repr(pairs.tolist()))
    return pairs.long()
