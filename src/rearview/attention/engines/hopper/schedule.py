"""What the kernels read of a mask: made once for a mask, a frame and a device.

Up to two ranges per row are read as ranges, and their tiles are derived on the GPU: nothing waits for it. Other masks
become one bit per pair, and lists of the tiles that are heard.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.hopper.launcher import launch
from rearview.attention.engines.hopper.tiling import GRANULE, KEY_TILE
from rearview.masks import Frame, Mask, Spans
from rearview.masks.document_window import DocumentWindow

MOST_RANGES = 2
# Pairs that are looked at together while bits are packed.
STRIP_PAIRS = 1 << 26
BITS_PER_WORD = 32


@dataclass(frozen=True, eq=False)
class Lists:
    """For each block of one side the tiles of the other: int32 [mask heads, blocks, length] and how many are used.

    For blocks of queries an entry is tile * 2 + (1 where the mask is needed); for tiles of keys it is
    tile * 4 + range * 2 + (1 where the mask is needed).
    """

    entries: Tensor
    counts: Tensor

    @property
    def length(self) -> int:
        return self.entries.shape[-1]


@dataclass(frozen=True, eq=False)
class Schedule:
    """What the kernels read of a mask.

    `both` are the starts and ends, int32 [2, mask heads, ranges, q_len]; without ranges `bits` is [mask heads, q_len,
    words]. `by_item` and `by_head` lead from a batch item and a head to the mask head. `unheard` is bool [items or 1,
    heads or 1, k_len], None where every key is heard by some query.
    """

    frame: Frame
    ranges: int
    by_item: int
    by_head: int
    both: Tensor
    granules: Tensor
    bits: Tensor
    # Of 64 x 64 pairs each: whether some are heard, and whether all are; [mask heads, granules, tiles].
    some: Tensor
    every: Tensor
    unheard: Tensor | None
    # How many keys a query hears on average, where that is known.
    mean_keys: float = math.inf
    made: dict[tuple[str, int, int], Lists] = field(default_factory=dict)

    @property
    def words(self) -> int:
        return self.bits.shape[-1]

    @property
    def n_granules(self) -> int:
        return self.granules.shape[1]

    @cached_property
    def starts(self) -> Tensor:
        return self.both[0]

    @cached_property
    def ends(self) -> Tensor:
        return self.both[1]

    @property
    def edge_lines(self) -> int:
        """How many lines of starts come before those of ends in `edges`."""
        return self.both.shape[1] * self.ranges

    @cached_property
    def edges(self) -> Tensor:
        """Starts and ends as int32 [lines, q_len], lines that TMA can read: they begin at multiples of 16 bytes."""
        lines, q_len = self.both.flatten(0, 2), self.both.shape[3]
        return torch.nn.functional.pad(lines, (0, -q_len % 4))[:, :q_len] if q_len % 4 else lines

    def tensors(self, *lists: Lists) -> tuple[Tensor, ...]:
        """All that the kernels read, with these lists: the same in every call with this schedule."""
        own = (self.starts, self.ends, self.granules, self.bits, *((self.edges,) if self.ranges else ()))
        return (*own, *(each for some in lists for each in (some.entries, some.counts)))

    def query_lists(self, height: int, width: int) -> Lists:
        """For blocks of `height` granules, the tiles of `width` keys; at least one, so that the block is written."""
        if self.ranges:
            return Lists(self.starts.view(-1, 1), self.starts)
        key = ("queries", height, width)
        if key not in self.made:
            some, every = tile_kinds(self.some, self.every, self.frame, height, width)
            self.made[key] = _listed(some, every, step=2, at_least=1)
        return self.made[key]

    def key_lists(self, height: int) -> Lists:
        """For tiles of `KEY_TILE` keys, the tiles of `height` granules of queries."""
        key = ("keys", height, KEY_TILE)
        if key not in self.made:
            if self.ranges:
                self.made[key] = self._key_lists_of_ranges(height)
            else:
                some, every = tile_kinds(self.some, self.every, self.frame, height, KEY_TILE)
                self.made[key] = _listed(some.transpose(1, 2), every.transpose(1, 2), step=4, at_least=0)
        return self.made[key]

    def _key_lists_of_ranges(self, height: int) -> Lists:
        from rearview.attention.engines.hopper.kernels.granules import make_key_lists

        mask_heads = self.granules.shape[0]
        query_tiles, key_tiles = -(-self.n_granules // height), -(-self.frame.k_len // KEY_TILE)
        # The producer reads one entry ahead.
        entries = self.granules.new_empty(mask_heads, key_tiles, query_tiles * self.ranges + 1)
        counts = self.granules.new_empty(mask_heads, key_tiles)
        sizes = (self.n_granules, query_tiles, key_tiles, entries.shape[-1])
        constants = {"RANGES": self.ranges, "HEIGHT": height, "WIDTH": KEY_TILE, "CHUNK": 256}
        launch(make_key_lists, (key_tiles, mask_heads), (self.granules, entries, counts, *sizes), constants)
        return Lists(entries, counts)


# A mask object serves every layer and step of a model; what is made for its ranges goes when they go.
_made: weakref.WeakKeyDictionary[Spans, dict[tuple[torch.device, bool], Schedule]] = weakref.WeakKeyDictionary()


def schedule_of(call: Call, device: torch.device) -> Schedule:
    """The schedule of the call's mask. The call may be without its tensors."""
    if (packing := call.placed.packing_in(call.frame)) is not None:
        key = f"hopper schedule {call.frame} {device}"
        return call.placed._derive(key, lambda: schedule_of_packing(packing, call.frame, device))
    spans = call.placed.spans_in(call.frame, torch.device("cpu")) if call.mask.has_ranges else None
    if spans is None:
        key = f"hopper schedule {call.frame} {device}"
        return call.placed._derive(key, lambda: schedule_of_rule(call.placed, call.frame, device))
    made = _made.setdefault(spans, {})
    in_bits = is_read_as_bits(spans, call)
    key = (device, in_bits)
    if key not in made:
        rule = call.placed
        make = schedule_of_rule(rule, call.frame, device) if in_bits else schedule_of_ranges(spans, call.frame, device)
        made[key] = make
    return made[key]


def is_read_as_bits(spans: Spans, call: Call) -> bool:
    # Two ranges in one tile are two visits, and one if it is bits: a row must not change with its neighbours.
    return spans.most_ranges > (1 if call.batch_invariant else MOST_RANGES)


def schedule_of_ranges(spans: Spans, frame: Frame, device: torch.device) -> Schedule:
    from rearview.attention.engines.hopper.kernels.granules import GRANULE, make_granules

    edges = torch.stack([spans.starts, spans.ends]).expand(-1, -1, -1, spans.q_len, -1)
    edges = edges.transpose(-1, -2).flatten(1, 2).contiguous()
    if device.type == "cuda":
        # From pinned memory the copy does not wait for the GPU.
        edges = edges.pin_memory().to(device, non_blocking=True)
    mask_heads, count = edges.shape[1:3]
    n_granules = -(-frame.q_len // GRANULE)
    granules = edges.new_empty(mask_heads, n_granules, count, 4)
    arguments = (edges[0], edges[1], granules, frame.q_len, n_granules)
    launch(make_granules, (n_granules, mask_heads), arguments, {"RANGES": count, "SIZE": GRANULE}, warps=1)
    unheard = (~spans.heard_keys).to(device) if spans.some_key_unheard else None
    nothing = edges.new_empty(0, 0, 0)
    by_item, by_head = _steps(spans.batch, spans.heads)
    mean_keys = spans.area / (spans.batch * spans.heads * spans.q_len)
    return Schedule(frame, count, by_item, by_head, edges, granules, nothing, nothing, nothing, unheard, mean_keys)


def schedule_of_packing(packing: DocumentWindow, frame: Frame, device: torch.device) -> Schedule:
    """Made on the GPU, so that a new packing at every step costs the host little."""
    from rearview.attention.engines.hopper.kernels.granules import GRANULE, make_packed

    assert packing.ids is not None, "a packing has documents"
    length, rows = frame.q_len, packing.ids.view(-1, packing.ids.shape[-1])
    # Narrowed while they are pinned: from pinned memory the copy does not wait for the GPU.
    ids = torch.empty(rows.shape, dtype=torch.int32, pin_memory=device.type == "cuda").copy_(rows)
    ids = ids.to(device, non_blocking=True)
    items, n_granules = len(rows), -(-length // GRANULE)
    both, granules = ids.new_empty(2, items, 1, length), ids.new_empty(items, n_granules, 1, 4)
    sizes = (length, rows.shape[1], n_granules, length.bit_length() + 1, packing.back, packing.ahead)
    launch(make_packed, (n_granules, items), (ids, both[0], both[1], granules, *sizes), {"SIZE": GRANULE}, warps=2)
    nothing = both.new_empty(0, 0, 0)
    by_item, by_head = _steps(items, 1)
    return Schedule(frame, 1, by_item, by_head, both, granules, nothing, nothing, nothing, None, packing.mean_keys)


def schedule_of_rule(mask: Mask, frame: Frame, device: torch.device) -> Schedule:
    """From the rule of a mask, strip by strip."""
    items, heads = mask.batch or 1, mask.heads or 1
    words = -(-frame.k_len // BITS_PER_WORD)
    n_granules, n_tiles = -(-frame.q_len // GRANULE), -(-frame.k_len // GRANULE)
    bits = torch.empty(items * heads, frame.q_len, words, dtype=torch.int32, device=device)
    some = torch.empty(items * heads, n_granules, n_tiles, dtype=torch.bool, device=device)
    every = torch.empty_like(some)
    heard = torch.zeros(items * heads, frame.k_len, dtype=torch.bool, device=device)
    height = max(1, STRIP_PAIRS // (items * heads * frame.k_len * GRANULE)) * GRANULE
    for first in range(0, frame.q_len, height):
        rows = torch.arange(first, min(first + height, frame.q_len), device=device)
        visible = mask.visible_in(frame, device, rows).flatten(0, 1)
        heard |= visible.any(1)
        bits[:, first : first + height] = pack(visible)
        strip = slice(first // GRANULE, first // GRANULE + -(-len(rows) // GRANULE))
        # Beyond the edges nothing is heard; queries beyond the edge have no say in what is heard in full.
        grid = _tiles_of(visible, False)
        some[:, strip] = grid.any(-1).any(2)
        every[:, strip] = _tiles_of(visible, True, keys_beyond=False).all(-1).all(2)
    unheard = ~heard.view(items, heads, -1)
    nothing = bits.new_empty(2, 0, 0, 0)
    by_item, by_head = _steps(items, heads)
    unheard = unheard if bool(unheard.any()) else None
    granules = bits.new_empty(1, n_granules, 0)
    return Schedule(frame, 0, by_item, by_head, nothing, granules, bits, some, every, unheard)


def pack(visible: Tensor) -> Tensor:
    """Bool [..., keys] as int32 [..., words], key n in bit n % 32 of word n // 32.

    >>> pack(torch.tensor([True, False, True])).tolist()
    [5]
    """
    words = -(-visible.shape[-1] // BITS_PER_WORD)
    padded = torch.nn.functional.pad(visible, (0, words * BITS_PER_WORD - visible.shape[-1]))
    place = torch.arange(BITS_PER_WORD, device=visible.device)
    sums = (padded.unflatten(-1, (words, BITS_PER_WORD)).long() << place).sum(-1)
    # The last bit is the sign of an int32.
    return torch.where(sums >= 1 << 31, sums - (1 << 32), sums).int()


def _tiles_of(visible: Tensor, filler: bool, *, keys_beyond: bool | None = None) -> Tensor:
    """[mask heads, rows, keys] as [mask heads, granules, 64, tiles, 64], filled up beyond the edges."""
    rows, keys = visible.shape[1:]
    beyond = filler if keys_beyond is None else keys_beyond
    padded = torch.nn.functional.pad(visible, (0, -keys % GRANULE), value=beyond)
    padded = torch.nn.functional.pad(padded, (0, 0, 0, -rows % GRANULE), value=filler)
    return padded.unflatten(2, (-1, GRANULE)).unflatten(1, (-1, GRANULE))


def tile_kinds(some: Tensor, every: Tensor, frame: Frame, height: int, width: int) -> tuple[Tensor, Tensor]:
    """From tiles of 64 x 64 pairs to tiles of `height` granules x `width` keys."""
    if width < GRANULE:
        # Half a tile of 64 keys is heard if the tile is: not exact, and the bits decide.
        times = GRANULE // width
        tiles = -(-frame.k_len // width)
        some, every = (each.repeat_interleave(times, 2)[..., :tiles] for each in (some, every))
    down, across = -some.shape[1] % height, -some.shape[2] % max(1, width // GRANULE)
    shape = ((-1, height), (-1, max(1, width // GRANULE)))
    some = torch.nn.functional.pad(some, (0, across, 0, down))
    # A tile that reaches over the last key is never full; granules beyond the last query have no say.
    every = torch.nn.functional.pad(torch.nn.functional.pad(every, (0, across)), (0, 0, 0, down), value=True)
    some, every = (each.unflatten(2, shape[1]).unflatten(1, shape[0]) for each in (some, every))
    return some.any(-1).any(2), every.all(-1).all(2)


def _listed(some: Tensor, every: Tensor, *, step: int, at_least: int) -> Lists:
    tiles = some.shape[-1]
    number = torch.arange(tiles, dtype=torch.int32, device=some.device)
    # Those that are visited, in their order, before the others.
    order = torch.where(some, number, number + tiles).argsort(-1)
    entries = (number * step + (~every).int()).gather(-1, order)
    counts = some.sum(-1, dtype=torch.int32)
    if at_least:
        # A block that hears nothing visits tile 0, in which everything is masked.
        entries[..., 0] = torch.where(counts == 0, 1, entries[..., 0])
        counts = counts.clamp(min=at_least)
    # The producer reads one entry ahead.
    return Lists(torch.nn.functional.pad(entries, (0, 1)).contiguous(), counts.contiguous())


def _steps(items: int, heads: int) -> tuple[int, int]:
    """What a batch item and a head count in the number of the mask head; 0 where all have the same mask."""
    return (heads if items > 1 else 0), (1 if heads > 1 else 0)
