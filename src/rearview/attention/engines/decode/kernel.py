"""The two kernels of decoding: one reads the keys in splits, the other joins the splits.

Legend: a program of the first kernel owns a tile of rows (queries x the query heads that share a key head) of one item
and one key head, and one of the `splits` of the tiles of keys that these rows hear. Scores are in units of log 2.

Which keys a row hears is read from a table of ranges, or is one range for all rows that the host knows (ONE_RANGE).
The length of an item may be read on the device (LENGTHS), and its keys may lie in blocks (PAGE is the block size).
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
NOTHING = tl.constexpr(float("-inf"))
FAR = tl.constexpr(1 << 30)

# Numbers that change from step to step.
UNSPECIALISED = [
    "range_item", "range_head", "range_row", "table_item", "q_len", "k_len", "q_start", "first_row", "ranges",
    "only_start", "only_end", "blocks", "splits",
]  # fmt: skip


@triton.jit
def edges_of(starts, ends, place, there, index, limit, only_start, only_end, ONE_RANGE: tl.constexpr):
    """The range of this index for each row, within the keys of the item: start, end."""
    if ONE_RANGE:
        start, end = tl.where(there, only_start, 0), tl.where(there, only_end, 0)
    else:
        start = tl.load(starts + place + index, mask=there, other=0)
        end = tl.load(ends + place + index, mask=there, other=0)
    return start, tl.minimum(end, limit)


@triton.jit
def tiles_of(start, end, KEYS: tl.constexpr):
    """The tiles of keys from the first to the last that some row hears in its range: the first, and how many."""
    hears = end > start
    first = tl.min(tl.where(hears, start, FAR), 0) // KEYS
    after = (tl.max(tl.where(hears, end, 0), 0) + KEYS - 1) // KEYS
    return first, tl.maximum(after - first, 0)


@triton.jit
def finished(total, top, sink, SINKS: tl.constexpr):
    """What the sum of weighted values is multiplied by, and the log-sum-exp."""
    # A maximum may drop NaN, but the total keeps it, so NaN stays visible.
    hears = (total > 0.0) | (total != total)
    lse = tl.where(hears, tl.where(hears, top, 0.0) + tl.log2(tl.where(hears, total, 1.0)), NOTHING)
    factor = tl.where(hears, 1.0 / tl.where(hears, total, 1.0), 0.0)
    if SINKS:
        larger = tl.maximum(lse, sink)
        anchor = tl.where(larger == NOTHING, 0.0, larger)
        every = anchor + tl.log2(tl.exp2(lse - anchor) + tl.exp2(sink - anchor))
        every = tl.where(larger == NOTHING, NOTHING, every)
        factor = tl.where(hears, factor * tl.exp2(lse - tl.where(every == NOTHING, 0.0, every)), 0.0)
        lse = tl.where(total != total, lse, every)
    return factor, lse * LN_2


@triton.jit
def read_tiles(
    top, total, gathered, rows, key, value, bias, table, start, end, position, slope, begin, stop,
    key_item, key_row, value_item, value_row, bias_key, scale, cap,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_VALUE: tl.constexpr,
    KEYS: tl.constexpr, STAGES: tl.constexpr, SAME_ROWS: tl.constexpr, PAGE: tl.constexpr, PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The running softmax of the rows after the tiles [begin, stop); row n hears the keys [start[n], end[n])."""
    dims, value_dims = tl.arange(0, BLOCK_DIM), tl.arange(0, BLOCK_VALUE)
    # The keys from the first to the last that some row hears.
    nearest = tl.min(tl.where(end > start, start, FAR), 0)
    furthest = tl.max(tl.where(end > start, end, 0), 0)
    for tile in tl.range(begin, stop, num_stages=STAGES):
        keys = tile * KEYS + tl.arange(0, KEYS)
        inside = (keys >= nearest) & (keys < furthest)
        seen = (keys[None, :] >= start[:, None]) & (keys[None, :] < end[:, None])
        if PAGE:
            at = tl.load(table + keys // PAGE, mask=inside, other=0).to(tl.int64)
            key_at = at * key_item + (keys % PAGE) * key_row
            value_at = at * value_item + (keys % PAGE) * value_row
        else:
            key_at, value_at = keys.to(tl.int64) * key_row, keys.to(tl.int64) * value_row
        wanted = inside
        if not SAME_ROWS:
            # What no row hears may hold NaN, and 0 x NaN is NaN.
            wanted = tl.max(seen.to(tl.int32), 0) > 0
        if DIM == BLOCK_DIM:
            k = tl.load(key + key_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        else:
            within = inside[:, None] & (dims < DIM)[None, :]
            k = tl.load(key + key_at[:, None] + dims[None, :], mask=within, other=0.0)
        if VALUE_DIM == BLOCK_VALUE:
            v = tl.load(value + value_at[:, None] + value_dims[None, :], mask=wanted[:, None], other=0.0)
        else:
            within = wanted[:, None] & (value_dims < VALUE_DIM)[None, :]
            v = tl.load(value + value_at[:, None] + value_dims[None, :], mask=within, other=0.0)
        score = tl.dot(rows, tl.trans(k), input_precision=PRECISION) * scale
        if SOFTCAP:
            # tanh from functions that every GPU and the interpreter have.
            score = cap * (1.0 - 2.0 / (tl.exp2(score * (2.0 * LOG2_E)) + 1.0))
        if ALIBI:
            score -= slope[:, None] * tl.abs(position[:, None] - keys[None, :]).to(tl.float32)
        if BIAS:
            added = tl.load(bias + keys[None, :].to(tl.int64) * bias_key, mask=seen, other=0.0)
            score += added.to(tl.float32) * LOG2_E
        score = tl.where(seen, score, NOTHING)
        largest = tl.maximum(top, tl.max(score, 1))
        anchor = tl.where(largest == NOTHING, 0.0, largest)
        weight = tl.exp2(score - anchor[:, None])
        shrink = tl.exp2(top - anchor)
        total = total * shrink + tl.sum(weight, 1)
        gathered = tl.dot(weight.to(v.dtype), v, gathered * shrink[:, None], input_precision=PRECISION)
        top = largest
    return top, total, gathered


@triton.jit(do_not_specialize=UNSPECIALISED)
def split_kernel(
    query, key, value, bias, slopes, sinks, starts, ends, lengths, table, partial, sums, out, lse,
    query_item, query_head, query_row, key_item, key_head, key_row, value_item, value_head, value_row,
    bias_item, bias_head, bias_query, bias_key, range_item, range_head, range_row, table_item,
    q_len, k_len, q_start, first_row, ranges, only_start, only_end, blocks, splits, scale, cap,
    KEY_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, BLOCK_VALUE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr, SINGLE: tl.constexpr, ONE_RANGE: tl.constexpr, SAME_ROWS: tl.constexpr,
    LENGTHS: tl.constexpr, PAGE: tl.constexpr, CHUNK: tl.constexpr, DIRECT: tl.constexpr, PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, BIAS: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0)
    which = tl.program_id(1)
    block = which % blocks
    item_head = which // blocks
    item = (item_head // KEY_HEADS).to(tl.int64)
    head = item_head % KEY_HEADS

    row = block * ROWS + tl.arange(0, ROWS)
    there = row < q_len * GROUP
    token, query_of = row // GROUP, head * GROUP + row % GROUP
    limit = k_len
    position = q_start
    if LENGTHS:
        limit = tl.load(lengths + item).to(tl.int32)
        position = limit - q_len
        limit = tl.minimum(limit, k_len)
    place = (position + first_row + token).to(tl.int64)
    heard = there & (place >= 0)
    place = item * range_item + query_of * range_head + place * range_row
    position = position + token

    dims, value_dims = tl.arange(0, BLOCK_DIM), tl.arange(0, BLOCK_VALUE)
    query += item * query_item + query_of[:, None].to(tl.int64) * query_head + token[:, None].to(tl.int64) * query_row
    rows = tl.load(query + dims[None, :], mask=there[:, None] & (dims < DIM)[None, :], other=0.0)
    slope = tl.load(slopes + query_of, mask=there, other=0.0) * LOG2_E if ALIBI else 0.0
    if BIAS:
        bias += item * bias_item + query_of[:, None].to(tl.int64) * bias_head + token[:, None].to(tl.int64) * bias_query
    key += head.to(tl.int64) * key_head
    value += head.to(tl.int64) * value_head
    if not PAGE:
        key += item * key_item
        value += item * value_item
    table += item * table_item

    top = tl.full([ROWS], NOTHING, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    gathered = tl.zeros([ROWS, BLOCK_VALUE], tl.float32)
    # Which of the tiles are those of this split: an equal share, or the tiles of a fixed chunk of keys.
    low, high = split * CHUNK, split * CHUNK + CHUNK
    if SINGLE:
        start, end = edges_of(starts, ends, place, heard, 0, limit, only_start, only_end, ONE_RANGE)
        first, count = tiles_of(start, end, KEYS)
        if CHUNK:
            begin, stop = tl.maximum(first, low), tl.minimum(first + count, high)
        else:
            share = (count + splits - 1) // splits
            begin, stop = first + split * share, first + tl.minimum(split * share + share, count)
        top, total, gathered = read_tiles(
            top, total, gathered, rows, key, value, bias, table, start, end, position, slope, begin, stop,
            key_item, key_row, value_item, value_row, bias_key, scale, cap, DIM, BLOCK_DIM, VALUE_DIM, BLOCK_VALUE,
            KEYS, STAGES, SAME_ROWS, PAGE, PRECISION, SOFTCAP, ALIBI, BIAS,
        )  # fmt: skip
    else:
        if not CHUNK:
            every = split * 0
            for index in range(ranges):
                start, end = edges_of(starts, ends, place, heard, index, limit, only_start, only_end, ONE_RANGE)
                first, count = tiles_of(start, end, KEYS)
                every += count
            share = (every + splits - 1) // splits
            low = split * share
            high = low + share
        before = split * 0
        for index in range(ranges):
            start, end = edges_of(starts, ends, place, heard, index, limit, only_start, only_end, ONE_RANGE)
            first, count = tiles_of(start, end, KEYS)
            if CHUNK:
                begin, stop = tl.maximum(first, low), tl.minimum(first + count, high)
            else:
                begin, stop = first + tl.maximum(low - before, 0), first + tl.minimum(high - before, count)
            before += count
            top, total, gathered = read_tiles(
                top, total, gathered, rows, key, value, bias, table, start, end, position, slope, begin, stop,
                key_item, key_row, value_item, value_row, bias_key, scale, cap, DIM, BLOCK_DIM, VALUE_DIM, BLOCK_VALUE,
                KEYS, STAGES, SAME_ROWS, PAGE, PRECISION, SOFTCAP, ALIBI, BIAS,
            )  # fmt: skip

    if DIRECT:
        sink = tl.load(sinks + query_of, mask=there, other=0.0) * LOG2_E if SINKS else 0.0
        factor, row_lse = finished(total, top, sink, SINKS)
        place = (item * KEY_HEADS * GROUP + query_of) * q_len + token
        gathered = gathered * factor[:, None]
        inside_out = there[:, None] & (value_dims < VALUE_DIM)[None, :]
        tl.store(
            out + place[:, None] * VALUE_DIM + value_dims[None, :], gathered.to(out.dtype.element_ty), mask=inside_out
        )
        tl.store(lse + place, row_lse, mask=there)
    else:
        place = (which.to(tl.int64) * splits + split) * ROWS + tl.arange(0, ROWS)
        tl.store(partial + place[:, None] * BLOCK_VALUE + value_dims[None, :], gathered, mask=there[:, None])
        tl.store(sums + place * 2, top, mask=there)
        tl.store(sums + place * 2 + 1, total, mask=there)


@triton.jit(do_not_specialize=["q_len", "blocks", "splits"])
def combine_kernel(
    partial, sums, sinks, out, lse, q_len, blocks, splits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_VALUE: tl.constexpr, ROWS: tl.constexpr,
    MOST_SPLITS: tl.constexpr, IN_ORDER: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """One program per row of the output. IN_ORDER adds up one split after the other, which no size changes."""
    program = tl.program_id(0)
    token = program % q_len
    head = (program // q_len) % HEADS
    item = program // (q_len * HEADS)
    row = token * GROUP + head % GROUP
    which = (item * (HEADS // GROUP) + head // GROUP).to(tl.int64) * blocks + row // ROWS
    first = which * splits * ROWS + row % ROWS
    dims = tl.arange(0, BLOCK_VALUE)
    if IN_ORDER:
        top = tl.max(tl.full([1], NOTHING, tl.float32), 0)
        total = tl.sum(tl.zeros([1], tl.float32), 0)
        gathered = tl.zeros([BLOCK_VALUE], tl.float32)
        for split in range(splits):
            place = first + split * ROWS
            own_top, own_total = tl.load(sums + place * 2), tl.load(sums + place * 2 + 1)
            own = tl.load(partial + place * BLOCK_VALUE + dims)
            largest = tl.maximum(top, own_top)
            anchor = tl.where(largest == NOTHING, 0.0, largest)
            shrink, share = tl.exp2(top - anchor), tl.exp2(own_top - anchor)
            # NaN in a split without a largest score stays NaN.
            share = tl.where(own_total != own_total, 1.0, share)
            total = total * shrink + own_total * share
            gathered = gathered * shrink + own * share
            top = largest
    else:
        split = tl.arange(0, MOST_SPLITS)
        there = split < splits
        place = first + split.to(tl.int64) * ROWS
        tops = tl.load(sums + place * 2, mask=there, other=NOTHING)
        totals = tl.load(sums + place * 2 + 1, mask=there, other=0.0)
        parts = tl.load(
            partial + place[:, None] * BLOCK_VALUE + dims[None, :], mask=(there & (totals != 0.0))[:, None], other=0.0
        )
        top = tl.max(tops, 0)
        anchor = tl.where(top == NOTHING, 0.0, top)
        shares = tl.where(totals != totals, 1.0, tl.exp2(tops - anchor))
        total = tl.sum(shares * totals, 0)
        gathered = tl.sum(parts * shares[:, None], 0)
    sink = tl.load(sinks + head) * LOG2_E if SINKS else 0.0
    factor, row_lse = finished(total, top, sink, SINKS)
    at = program.to(tl.int64)
    tl.store(out + at * VALUE_DIM + dims, (gathered * factor).to(out.dtype.element_ty), mask=dims < VALUE_DIM)
    tl.store(lse + at, row_lse)
