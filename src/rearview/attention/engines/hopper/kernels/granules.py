"""The ranges of a mask by the block: small kernels on the GPU, so that the host need not wait for a new mask.

A granule is 64 queries. For each of their ranges it holds four keys: the first start, the last start, the first end and
the last end. A row without that range leaves the first start and the last end as they are, and sets the others so that
no tile is heard in full. From granules the attention kernels derive their tiles, whatever their height and width.

The gradients of keys need the transposed form: for each tile of keys the list of query tiles that hear some of it.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

GRANULE = 64
BEYOND = tl.constexpr(1 << 30)


@triton.jit(do_not_specialize=["q_len", "n_granules"], do_not_specialize_on_alignment=["starts", "ends", "granules"])
def make_granules(starts, ends, granules, q_len, n_granules, RANGES: tl.constexpr, SIZE: tl.constexpr):
    """int32 [mask heads, granules, ranges, 4] from [mask heads, ranges, q_len]; one program per granule."""
    granule = tl.program_id(0)
    mask_head = tl.program_id(1)
    row = granule * SIZE + tl.arange(0, SIZE)
    there = row < q_len
    for index in tl.static_range(RANGES):
        line = (mask_head * RANGES + index) * q_len
        start = tl.load(starts + line + row, mask=there, other=0)
        end = tl.load(ends + line + row, mask=there, other=0)
        heard = there & (start < end)
        deaf = there & (start >= end)
        place = granules + ((mask_head * n_granules + granule) * RANGES + index) * 4
        tl.store(place, tl.min(tl.where(heard, start, BEYOND), 0))
        tl.store(place + 1, tl.max(tl.where(heard, start, tl.where(deaf, BEYOND, 0)), 0))
        tl.store(place + 2, tl.min(tl.where(heard, end, tl.where(deaf, -1, BEYOND)), 0))
        tl.store(place + 3, tl.max(tl.where(heard, end, 0), 0))


@triton.jit(
    do_not_specialize=["length", "ids_row", "n_granules", "halvings", "back", "ahead"],
    do_not_specialize_on_alignment=["ids", "starts", "ends", "granules"],
)
def make_packed(ids, starts, ends, granules, length, ids_row, n_granules, halvings, back, ahead, SIZE: tl.constexpr):
    """The ranges [items, length] of queries in packed documents, and their granules; one program per granule.

    The ids of an item never fall, so the first and the last position of a document are found by halving. Of its
    document a query hears `back` positions, its own included, and `ahead` positions after it.
    """
    granule = tl.program_id(0)
    item = tl.program_id(1)
    row = granule * SIZE + tl.arange(0, SIZE)
    there = row < length
    ids += item * ids_row
    own = tl.load(ids + row, mask=there, other=0)
    # The first position with this id lies in [low, high]; the first with a larger one in [after, beyond].
    low = row * 0
    high = row
    after = row
    beyond = row * 0 + length
    for _ in range(halvings):
        middle = (low + high) // 2
        is_before = tl.load(ids + middle, mask=there, other=0) < own
        low = tl.where(is_before, tl.minimum(middle + 1, high), low)
        high = tl.where(is_before, high, middle)
        middle = (after + beyond) // 2
        is_within = tl.load(ids + middle, mask=there & (middle < length), other=0) <= own
        is_within = is_within & (middle < length)
        after = tl.where(is_within, tl.minimum(middle + 1, beyond), after)
        beyond = tl.where(is_within, beyond, middle)
    start = tl.maximum(low, row - back + 1)
    end = tl.minimum(after, row + ahead + 1)
    tl.store(starts + item * length + row, start, mask=there)
    tl.store(ends + item * length + row, end, mask=there)
    place = granules + (item * n_granules + granule) * 4
    tl.store(place, tl.min(tl.where(there, start, BEYOND), 0))
    tl.store(place + 1, tl.max(tl.where(there, start, 0), 0))
    tl.store(place + 2, tl.min(tl.where(there, end, BEYOND), 0))
    tl.store(place + 3, tl.max(tl.where(there, end, 0), 0))


@triton.jit(
    do_not_specialize=["n_granules", "n_query_tiles", "n_key_tiles", "list_length"],
    do_not_specialize_on_alignment=["granules", "entries", "counts"],
)
def make_key_lists(
    granules, entries, counts, n_granules, n_query_tiles, n_key_tiles, list_length,
    RANGES: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """For each tile of keys, the tiles of queries that hear some of it: tile * 4 + range * 2 + (1 where not in full).

    A tile of queries is HEIGHT granules. One program per tile of keys.
    """
    tile = tl.program_id(0)
    mask_head = tl.program_id(1)
    line = mask_head * n_key_tiles + tile
    count = 0
    for first in range(0, n_query_tiles * RANGES, CHUNK):
        visit = first + tl.arange(0, CHUNK)
        query_tile = visit // RANGES
        index = visit % RANGES
        there = query_tile < n_query_tiles
        low = tl.full([CHUNK], BEYOND, tl.int32)
        inner_low = tl.zeros([CHUNK], tl.int32)
        inner_high = tl.full([CHUNK], BEYOND, tl.int32)
        high = tl.zeros([CHUNK], tl.int32)
        for step in tl.static_range(HEIGHT):
            granule = query_tile * HEIGHT + step
            exists = there & (granule < n_granules)
            place = granules + ((mask_head * n_granules + granule) * RANGES + index) * 4
            low = tl.minimum(low, tl.load(place, mask=exists, other=BEYOND))
            inner_low = tl.maximum(inner_low, tl.load(place + 1, mask=exists, other=0))
            inner_high = tl.minimum(inner_high, tl.load(place + 2, mask=exists, other=BEYOND))
            high = tl.maximum(high, tl.load(place + 3, mask=exists, other=0))
        visited = there & (low < (tile + 1) * WIDTH) & (high > tile * WIDTH)
        full = (inner_low <= tile * WIDTH) & (inner_high >= (tile + 1) * WIDTH)
        entry = query_tile * 4 + index * 2 + tl.where(full, 0, 1)
        taken = visited.to(tl.int32)
        slot = count + tl.cumsum(taken, 0) - taken
        tl.store(entries + line * list_length + slot, entry, mask=visited)
        count += tl.sum(taken, 0)
    tl.store(counts + line, count)
