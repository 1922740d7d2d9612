"""What the kernels share: the tiles that a block of queries visits, and what is done with the scores of a tile.

Index tensors are [queries, 1] and [1, keys], or transposed for a transposed tile. Scores are in units of log 2, so a
weight is 2^(score - lse). RANGES is the number of ranges per row, 1 or 2, which are visited one after the other; with
0 a list names the tiles to visit, and the pairs of partial tiles are packed into bits.
"""

from triton.experimental import gluon  # pyright: ignore[reportMissingImports]
from triton.experimental.gluon import language as gl  # pyright: ignore[reportMissingImports]
from triton.experimental.gluon.language.nvidia.hopper import mbarrier  # pyright: ignore[reportMissingImports]

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)
NOTHING = gl.constexpr(float("-inf"))
# The numbers that the producer leaves for the consumers about a block.
FIELDS = gl.constexpr(12)
# Queries of a granule, and what stands for "no edge" in one.
GRANULE = gl.constexpr(64)
BEYOND = gl.constexpr(1 << 30)
ONE_EACH = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def put(memory, index, number):
    memory.index(index).store(gl.full([1], number, gl.int32, ONE_EACH))


@gluon.jit
def get(memory, index):
    return gl.max(memory.index(index).load(ONE_EACH), 0)


@gluon.jit
def visits_of_range(granules, first, count, WIDTH: gl.constexpr, HEIGHT: gl.constexpr, RANGES: gl.constexpr):
    """The tiles of keys that a block visits for one range: the first, and the one after the last.

    Between them: the first that begins after the last start, and the first that ends after the first end. Tiles from
    the former on need no look at the starts, and tiles before the latter none at the ends.
    """
    low = first * 0 + BEYOND
    high = first * 0
    inner_low = high
    inner_high = low
    for step in gl.static_range(HEIGHT):
        place = granules + (first + step) * (4 * RANGES)
        there = first + step < count
        low = gl.minimum(low, gl.load(place, mask=there, other=BEYOND))
        inner_low = gl.maximum(inner_low, gl.load(place + 1, mask=there, other=0))
        inner_high = gl.minimum(inner_high, gl.load(place + 2, mask=there, other=BEYOND))
        high = gl.maximum(high, gl.load(place + 3, mask=there, other=0))
    tile = gl.where(high > 0, low // WIDTH, 0)
    end = (high + WIDTH - 1) // WIDTH
    full = (inner_low + WIDTH - 1) // WIDTH
    full_end = gl.maximum(inner_high, 0) // WIDTH
    return tile, full, full_end, end


@gluon.jit
def block_at(work, sizes, mask, lists, HEIGHT: gl.constexpr, WIDTH: gl.constexpr, RANGES: gl.constexpr):
    """The block of queries of a work item, the last blocks first, and the tiles that it visits; at least one."""
    n_blocks, n_work, group, heads, n_granules = sizes
    granules, by_item, by_head = mask
    entries, counts, list_length = lists
    work = gl.minimum(work, n_work - 1)
    place = work % (group * n_blocks)
    block = n_blocks - 1 - place // group
    head = work // (group * n_blocks) * group + place % group
    mask_head = head // heads * by_item + head % heads * by_head
    tile = block * 0
    full = tile
    full_end = tile
    first_count = tile
    tile_b = tile
    full_b = tile
    full_end_b = tile
    if RANGES == 0:
        row = mask_head * n_blocks + block
        count = gl.load(counts + row)
        tile = row * list_length
    else:
        rows = granules + mask_head * n_granules * (4 * RANGES)
        tile, full, full_end, end = visits_of_range(rows, block * HEIGHT, n_granules, WIDTH, HEIGHT, RANGES)
        first_count = end - tile
        count = first_count
        if RANGES == 2:
            tile_b, full_b, full_end_b, end_b = visits_of_range(
                rows + 4, block * HEIGHT, n_granules, WIDTH, HEIGHT, RANGES
            )
            count = first_count + end_b - tile_b
        # A block that hears nothing visits one tile, in which everything is masked.
        first_count = gl.where(count == 0, 1, first_count)
        full = gl.where(count == 0, 1, full)
        full_end = gl.where(count == 0, 0, full_end)
        count = gl.maximum(count, 1)
    return block, head, mask_head, count, tile, full, full_end, first_count, tile_b, full_b, full_end_b


@gluon.jit
def put_block(memory, slot, found, RANGES: gl.constexpr):
    block, head, mask_head, count, tile, full, full_end, first_count, tile_b, full_b, full_end_b = found
    put(memory, slot, count)
    put(memory, slot + 1, block)
    put(memory, slot + 2, head)
    put(memory, slot + 3, mask_head)
    put(memory, slot + 4, tile)
    if RANGES > 0:
        put(memory, slot + 5, full)
        put(memory, slot + 6, full_end)
        if RANGES == 2:
            put(memory, slot + 7, first_count)
            put(memory, slot + 8, tile_b)
            put(memory, slot + 9, full_b)
            put(memory, slot + 10, full_end_b)


@gluon.jit
def get_visits(memory, slot, RANGES: gl.constexpr):
    """What `tile_at` needs to know of a block."""
    tile = get(memory, slot + 4)
    full = tile
    full_end = tile
    first_count = tile
    tile_b = tile
    full_b = tile
    full_end_b = tile
    if RANGES > 0:
        full = get(memory, slot + 5)
        full_end = get(memory, slot + 6)
        if RANGES == 2:
            first_count = get(memory, slot + 7)
            tile_b = get(memory, slot + 8)
            full_b = get(memory, slot + 9)
            full_end_b = get(memory, slot + 10)
    return tile, full, full_end, first_count, tile_b, full_b, full_end_b


@gluon.jit
def next_block(
    memory, told, heard, turn, ranges, q_len,
    HEIGHT: gl.constexpr, CONSUMERS: gl.constexpr, RANGES: gl.constexpr, ME: gl.constexpr, ROW: gl.constexpr,
):  # fmt: skip
    """The block that the producer tells of: how many tiles it visits, 0 at the end, and the ranges of its rows."""
    starts, ends = ranges
    mbarrier.wait(told.index(turn & 1), (turn >> 1) & 1)
    slot = (turn & 1) * FIELDS
    count = get(memory, slot)
    block = get(memory, slot + 1)
    head = get(memory, slot + 2)
    mask_head = get(memory, slot + 3)
    visits = get_visits(memory, slot, RANGES)
    mbarrier.arrive(heard.index(turn & 1), count=1)
    rows = (block * CONSUMERS + ME) * HEIGHT + gl.arange(0, HEIGHT, layout=ROW)
    start = rows
    end = rows
    start_b = rows
    end_b = rows
    if RANGES > 0:
        place = mask_head * (RANGES * q_len) + rows
        # At the end the numbers are those of an earlier block, or none.
        inside = (rows < q_len) & (count > 0)
        start = gl.load(starts + place, mask=inside, other=0)
        end = gl.load(ends + place, mask=inside, other=0)
        if RANGES == 2:
            start_b = gl.load(starts + q_len + place, mask=inside, other=0)
            end_b = gl.load(ends + q_len + place, mask=inside, other=0)
    return count, block, head, mask_head, visits, start, end, start_b, end_b


@gluon.jit
def tile_at(step, visits, entries, RANGES: gl.constexpr):
    """The tile of keys of a step, whether some query starts after its first key, or ends before its last (from bits:
    whether it needs them), and whether it is visited for the first range."""
    tile, full, full_end, first_count, tile_b, full_b, full_end_b = visits
    in_first = step >= 0
    if RANGES == 0:
        entry = gl.load(entries + tile + step)
        here = entry >> 1
        from_below = (entry & 1) != 0
        from_above = from_below
    elif RANGES == 1:
        here = tile + step
        from_below = here < full
        from_above = here >= full_end
    else:
        in_first = step < first_count
        here = gl.where(in_first, tile + step, tile_b + step - first_count)
        from_below = here < gl.where(in_first, full, full_b)
        from_above = here >= gl.where(in_first, full_end, full_end_b)
    return here, from_below, from_above, in_first


@gluon.jit
def heard_bits(bits, row, words, query, key, q_len, k_len):
    """Whether a pair is visible, from one bit per pair: 32 keys per word, `words` per query."""
    inside = (query < q_len) & (key < k_len)
    word = gl.load(bits + row + query * words + (key >> 5), mask=inside, other=0)
    return ((word >> (key & 31)) & 1) != 0


@gluon.jit
def score_of(product, query, key, numbers, pointers, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, BIAS: gl.constexpr):
    """The score and, for its derivative, tanh. With a softcap `scale` is scale / cap, otherwise scale x log2(e)."""
    q_len, k_len, q_start, scale, cap, slope, bias_query, bias_key = numbers
    score = product * scale
    bend = score
    if SOFTCAP:
        bend = 1.0 - 2.0 / (gl.exp2(score * (2.0 * LOG2_E)) + 1.0)
        score = bend * cap
    if ALIBI:
        distance = query + q_start - key
        score -= slope * gl.maximum(distance, -distance).to(gl.float32)
    if BIAS:
        inside = (query < q_len) & (key < k_len)
        place = query.to(gl.int64) * bias_query + key.to(gl.int64) * bias_key
        score += gl.load(pointers + place, mask=inside, other=0.0).to(gl.float32) * LOG2_E
    return score, bend


@gluon.jit
def mixed(x):
    """A 32-bit hash (Wellons' lowbias32), the one of the CPU kernel."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@gluon.jit
def kept_factor(row, key, seed_low, seed_high, limit, kept):
    """0 where the weight is dropped, else what makes up for the dropped ones. `row` counts all queries of the call."""
    low = mixed(row.to(gl.uint32)) ^ seed_low.to(gl.uint32)
    # The upper half of the row's number is 0: hashed, it is a constant.
    row_hash = mixed(mixed(low) ^ seed_high.to(gl.uint32) ^ mixed(gl.full([], 0x9E3779B9, gl.uint32)))
    salt = mixed(key.to(gl.uint32) * 0x9E3779B1 + 1)
    return gl.where((mixed(row_hash ^ salt) >> 8).to(gl.int32) < limit, 0.0, kept)
