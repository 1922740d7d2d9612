"""The work that a mask leaves: strips of queries, each with the keys that they hear, cut into tiles.

    >>> from rearview import causal, window
    >>> from rearview.attention.engines.blocks.schedule import TileSizes, schedule_spans
    >>> spans = (causal() & window(2)).spans(4)
    >>> for strip in schedule_spans(spans, TileSizes(rows=2, keys=8)):
    ...     print(strip.rows, [tile.keys for tile in strip.tiles])
    slice(0, 2, None) [(slice(0, 2, None),)]
    slice(2, 4, None) [(slice(1, 4, None),)]

Only the key ranges that some query of the strip hears are in its tiles, and only the columns where its queries
differ carry a boolean piece. Everything here is plain integers on the CPU: made once for a mask and a frame.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.masks import Frame, Mask, Spans

# Two key ranges closer than this become one: a few hidden columns cost less than another slice.
BRIDGED_GAP = 32

# Measured on CPUs (bench/): short rows waste least in small strips, long ones feed the matrix product better.
SHORT_ROW_KEYS = 256
SHORT_ROW_STRIP, LONG_ROW_STRIP = 64, 128
KEYS_PER_TILE = 1024


@dataclass(frozen=True)
class TileSizes:
    """At most `rows` queries per strip and `keys` keys per tile."""

    rows: int
    keys: int


@dataclass(frozen=True, eq=False)
class HiddenColumns:
    """Columns of a tile (counted in the tile) where not every query hears the key; `hidden` is bool [rows, columns]."""

    columns: slice
    hidden: Tensor


@dataclass(frozen=True, eq=False)
class Tile:
    """Key ranges, laid side by side, and where they are hidden."""

    keys: tuple[slice, ...]
    pieces: tuple[HiddenColumns, ...]


@dataclass(frozen=True, eq=False)
class Strip:
    """Queries `rows` of the batch items and heads that share this part of the mask."""

    items: slice
    heads: slice
    rows: slice
    tiles: tuple[Tile, ...]


# A mask object serves every layer and step of a model; its strips are made once and dropped together with its ranges.
_strips: weakref.WeakKeyDictionary[Spans, dict[tuple[TileSizes, torch.device], list[Strip]]] = (
    weakref.WeakKeyDictionary()
)


def strips_of(call: Call) -> Iterable[Strip]:
    """The strips of a call, in the sizes that suit its mask."""
    spans, device = call.spans, call.device
    if spans is None:
        return schedule_rule(call.mask, call.frame, TileSizes(LONG_ROW_STRIP, KEYS_PER_TILE), device)
    keys_per_row = spans.area / max(1, spans.batch * spans.heads * spans.q_len)
    sizes = TileSizes(SHORT_ROW_STRIP if keys_per_row <= SHORT_ROW_KEYS else LONG_ROW_STRIP, KEYS_PER_TILE)
    made = _strips.setdefault(spans, {})
    if (sizes, device) not in made:
        made[sizes, device] = schedule_spans(spans, sizes, device)
    return made[sizes, device]


def schedule_spans(spans: Spans, sizes: TileSizes, device: torch.device | None = None) -> list[Strip]:
    """The strips of a mask that has ranges."""
    some, every = spans.heard_by_any(sizes.rows), spans.heard_by_all(sizes.rows)
    patterns: dict[tuple[int, ...], Tensor] = {}
    strips = []
    for items, heads in _runs_of_equal_masks(spans):
        edges = torch.stack([spans.starts[items.start, heads.start], spans.ends[items.start, heads.start]])
        heard_by_some, heard_by_all = (each.rows(items.start, heads.start) for each in (some, every))
        for index, (ranges, common) in enumerate(zip(heard_by_some, heard_by_all, strict=True)):
            rows = slice(index * sizes.rows, min((index + 1) * sizes.rows, spans.q_len))
            # Without a query axis one row stands for all.
            own = edges[:, rows] if edges.shape[1] > 1 else edges
            tiles = tuple(
                Tile(keys, tuple(_pieces(keys, common, own, patterns, device)))
                for keys in _cut(_bridge(ranges), sizes.keys)
            )
            strips.append(Strip(items, heads, rows, tiles))
    return strips


def reaches_unheard_keys(spans: Spans) -> bool:
    """Does some tile hold a key that no query hears? Only a bridge brings one in: a short gap between heard keys."""
    if not spans.some_key_unheard:
        return False
    heard = Spans.from_bool(spans.heard_keys.unsqueeze(2))
    gaps = heard.starts[..., 1:] - heard.ends[..., :-1]
    return bool(((gaps < BRIDGED_GAP) & (heard.starts[..., 1:] < spans.k_len)).any())


def schedule_rule(mask: Mask, frame: Frame, sizes: TileSizes, device: torch.device) -> Iterator[Strip]:
    """The strips of a mask with no range form, one dense strip at a time."""
    for first in range(0, frame.q_len, sizes.rows):
        rows = slice(first, min(first + sizes.rows, frame.q_len))
        visible = mask.visible_in(frame, device, torch.arange(rows.start, rows.stop, device=device))
        heard = Spans.from_bool(visible.any(-2, keepdim=True))
        for b in range(visible.shape[0]):
            for h in range(visible.shape[1]):
                hidden = ~visible[b, h]
                tiles = []
                for keys in _cut(_bridge(heard.rows(b, h)[0]), sizes.keys):
                    piece = torch.cat([hidden[:, part] for part in keys], dim=-1)
                    pieces = (HiddenColumns(slice(0, piece.shape[-1]), piece),) if bool(piece.any()) else ()
                    tiles.append(Tile(keys, pieces))
                items = slice(b, b + 1) if visible.shape[0] > 1 else slice(0, None)
                heads = slice(h, h + 1) if visible.shape[1] > 1 else slice(0, None)
                yield Strip(items, heads, rows, tuple(tiles))


def _runs_of_equal_masks(spans: Spans) -> Iterator[tuple[slice, slice]]:
    """Neighbouring batch items, and in them neighbouring heads, whose ranges are the same."""
    for first, last in _runs(spans, axis=0):
        # Items that share one mask for all heads go together; heads that differ are taken item by item, so that
        # a group is always one block of memory.
        if spans.heads == 1:
            yield slice(first, last if spans.batch > 1 else None), slice(0, None)
            continue
        one = Spans(
            spans.starts[first : first + 1],
            spans.ends[first : first + 1],
            q_len=spans.q_len,
            k_len=spans.k_len,
        )
        for h_first, h_last in _runs(one, axis=1):
            yield slice(first, last if spans.batch > 1 else None), slice(h_first, h_last)


def _runs(spans: Spans, axis: int) -> Iterator[tuple[int, int]]:
    starts, ends = spans.starts.movedim(axis, 0).flatten(1), spans.ends.movedim(axis, 0).flatten(1)
    changes = ((starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1])).any(1).nonzero().flatten() + 1
    edges = [0, *changes.tolist(), len(starts)]
    yield from pairwise(edges)


def _bridge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    bridged: list[tuple[int, int]] = []
    for start, end in ranges:
        if bridged and start - bridged[-1][1] < BRIDGED_GAP:
            start = bridged.pop()[0]
        bridged.append((start, end))
    return bridged


def _cut(ranges: list[tuple[int, int]], most: int) -> Iterator[tuple[slice, ...]]:
    """Ranges dealt into tiles of at most `most` keys."""
    tile, room = [], most
    for start, end in ranges:
        while start < end:
            take = min(end - start, room)
            tile.append(slice(start, start + take))
            start, room = start + take, room - take
            if room == 0:
                yield tuple(tile)
                tile, room = [], most
    if tile:
        yield tuple(tile)


def _pieces(
    keys: tuple[slice, ...],
    common: list[tuple[int, int]],
    edges: Tensor,
    patterns: dict[tuple[int, ...], Tensor],
    device: torch.device | None,
) -> Iterator[HiddenColumns]:
    """Where a tile needs a boolean: its columns that not every query hears. `edges`: starts, ends [2, rows, ranges]."""
    offset = 0
    for part in keys:
        for start, end in _without(common, part.start, part.stop):
            inside = (edges - start).clamp_(0, end - start)
            # The same diagonal comes back in strip after strip: one tensor a pattern, not one a strip.
            pattern = (end - start, *inside.flatten().tolist())
            if pattern not in patterns:
                patterns[pattern] = _hidden(inside, end - start).to(device)
            yield HiddenColumns(slice(offset + start - part.start, offset + end - part.start), patterns[pattern])
        offset += part.stop - part.start


def _without(ranges: list[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) outside the sorted `ranges`."""
    for a, b in ranges:
        if a >= end:
            break
        if a > start:
            yield start, a
        start = max(start, b)
    if start < end:
        yield start, end


def _hidden(edges: Tensor, width: int) -> Tensor:
    column, (starts, ends) = torch.arange(width), edges.unsqueeze(-1)
    return ~((column >= starts) & (column < ends)).any(-2)
