"""The kernel over queries: log-sum-exp, entropy, distance and the mass on the first keys, in one pass.

A program owns a block of queries of one head and reads the tiles of keys that they hear. Sums are relative to the
largest score so far; when a larger one appears, they are multiplied by 2^(old - new).
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from rearview.attention.stats.gpu.tile import LN_2, LOG2_E, NOTHING, block_of, heard, in_bits

UNSPECIALISED = ["q_len", "k_len", "q_start", "blocks", "q_padded", "most_ranges", "plain_runs", "compared_runs"]


@triton.jit
def absorbed(score, back, top, total, below, distance, CUT: tl.constexpr):
    """The running sums after one more tile; `back` is the distance from each query to the first key of the tile."""
    largest = tl.maximum(top, tl.max(score, 1))
    moved = tl.where(top == NOTHING, 0.0, top - largest)
    anchor = tl.where(largest == NOTHING, 0.0, largest) if CUT else largest
    gap = score - anchor[:, None]
    weight = tl.exp2(gap)
    if CUT:
        # 0 x -inf is NaN.
        gap = tl.maximum(gap, -1e30)
    mass = tl.sum(weight, 1)
    shrink = tl.exp2(moved)
    below = shrink * (below + moved * total) + tl.sum(weight * gap, 1)
    steps = tl.arange(0, score.shape[1]).to(tl.float32)
    distance = shrink * distance + back * mass - tl.sum(weight * steps[None, :], 1)
    return largest, shrink * total + mass, below, distance


@triton.jit(do_not_specialize=UNSPECIALISED)
def rows_kernel(
    query_ptr, key_ptr, bias_ptr, slopes, sinks, starts, ends,
    plain_starts, plain_ends, compared_starts, compared_ends,
    lse_ptr, entropy_ptr, top_ptr, distance_ptr, first_ptr, lse_bits_ptr,
    query_batch, query_head, query_row, key_batch, key_head, key_row,
    bias_batch, bias_head, bias_query, bias_key, range_batch, range_head, range_row,
    plain_batch, plain_head, compared_batch, compared_head,
    q_len, k_len, q_start, blocks, q_padded, most_ranges, plain_runs, compared_runs, scale, cap,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, RANGES: tl.constexpr, PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, BIAS: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    # Under a causal mask late queries hear most, so they start first.
    block = blocks - 1 - program % blocks
    item_head = (program // blocks).to(tl.int64)
    item, head = item_head // HEADS, item_head % HEADS
    key_ptr += item * key_batch + head // GROUP * key_head
    bias_ptr += item * bias_batch + head * bias_head
    starts += item * range_batch + head * range_head
    ends += item * range_batch + head * range_head
    plain = item * plain_batch + head * plain_head + block * plain_runs
    compared = item * compared_batch + head * compared_head + block * compared_runs
    slope = tl.load(slopes + head) * LOG2_E if ALIBI else 0.0

    dims = tl.arange(0, BLOCK_DIM)
    first_row = block * QUERIES
    rows = first_row + tl.arange(0, QUERIES)
    query_ptr += item * query_batch + head * query_head
    query = block_of(query_ptr, first_row, q_len, query_row, dims, DIM, QUERIES, False)

    top = tl.full([QUERIES], NOTHING, tl.float32)
    total, below = tl.zeros([QUERIES], tl.float32), tl.zeros([QUERIES], tl.float32)
    distance = tl.zeros([QUERIES], tl.float32)
    position = rows + q_start
    for run in range(plain_runs):
        for tile in range(tl.load(plain_starts + plain + run), tl.load(plain_ends + plain + run)):
            first_key = tile * KEYS
            keys = first_key + tl.arange(0, KEYS)
            key = block_of(key_ptr, first_key, k_len, key_row, dims, DIM, KEYS, True)
            product = tl.dot(query, tl.trans(key), input_precision=PRECISION)
            score = in_bits(
                product, rows[:, None], keys[None, :], q_len, k_len, q_start, scale, cap, slope,
                bias_ptr, bias_query, bias_key, SOFTCAP, ALIBI, BIAS,
            )  # fmt: skip
            back = (position - first_key).to(tl.float32)
            top, total, below, distance = absorbed(score, back, top, total, below, distance, BIAS)
    for run in range(compared_runs):
        for tile in range(tl.load(compared_starts + compared + run), tl.load(compared_ends + compared + run)):
            first_key = tile * KEYS
            keys = first_key + tl.arange(0, KEYS)
            key = block_of(key_ptr, first_key, k_len, key_row, dims, DIM, KEYS, False)
            product = tl.dot(query, tl.trans(key), input_precision=PRECISION)
            score = in_bits(
                product, rows[:, None], keys[None, :], q_len, k_len, q_start, scale, cap, slope,
                bias_ptr, bias_query, bias_key, SOFTCAP, ALIBI, BIAS,
            )  # fmt: skip
            seen = heard(
                starts, ends, rows[:, None], keys[None, :], first_key, first_key + KEYS - 1, q_len,
                range_row, most_ranges, RANGES,
            )  # fmt: skip
            score = tl.where(seen, score, NOTHING)
            back = (position - first_key).to(tl.float32)
            top, total, below, distance = absorbed(score, back, top, total, below, distance, True)

    # A maximum may drop NaN, but the total keeps it, so NaN stays visible. Rows after the last query hear nothing.
    hears = ((top > NOTHING) | (total != total)) & (rows < q_len)
    total = tl.where(hears, total, 1.0)
    top = tl.where(hears, top, 0.0)
    log_total = tl.log2(total)
    lse = tl.where(hears, top + log_total, NOTHING)
    mass = tl.where(hears, 1.0, 0.0)
    entropy = log_total - below / total
    if SINKS:
        # The sink is one more score in the softmax, and takes its share of the weight.
        sink = tl.load(sinks + head) * LOG2_E
        larger = tl.maximum(top + log_total, sink)
        every = larger + tl.log2(tl.exp2(top + log_total - larger) + tl.exp2(sink - larger))
        lse = tl.where(hears, every, sink)
        mass_bits = top + log_total - every
        mass = tl.where(hears, tl.exp2(mass_bits), 0.0)
        entropy -= mass_bits
    # The weight of the largest score is 2^0 / total.
    share = mass / total

    # The first keys again, now that the total is known.
    few = tl.arange(0, 16)
    key = block_of(key_ptr, first_row * 0, k_len, key_row, dims, DIM, 16, False)
    product = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    score = in_bits(
        product, rows[:, None], few[None, :], q_len, k_len, q_start, scale, cap, slope,
        bias_ptr, bias_query, bias_key, SOFTCAP, ALIBI, BIAS,
    )  # fmt: skip
    seen = heard(starts, ends, rows[:, None], few[None, :], 0, 15, q_len, range_row, most_ranges, RANGES)
    weight = tl.exp2(tl.where(seen, score, NOTHING) - top[:, None]) * share[:, None]

    out = item_head * q_len + rows
    inside = rows < q_len
    tl.store(lse_ptr + out, lse * LN_2, mask=inside)
    tl.store(entropy_ptr + out, tl.maximum(entropy * mass * LN_2, 0.0), mask=inside)
    tl.store(top_ptr + out, share, mask=inside)
    tl.store(distance_ptr + out, distance * share, mask=inside)
    tl.store(first_ptr + out * 3, tl.sum(tl.where(few[None, :] < 1, weight, 0.0), 1), mask=inside)
    tl.store(first_ptr + out * 3 + 1, tl.sum(tl.where(few[None, :] < 4, weight, 0.0), 1), mask=inside)
    tl.store(first_ptr + out * 3 + 2, tl.sum(tl.where(few[None, :] < 8, weight, 0.0), 1), mask=inside)
    # For the kernel over keys: with lse = inf, the weights of a row that hears nothing are 0.
    tl.store(lse_bits_ptr + item_head * q_padded + rows, tl.where(hears, lse, float("inf")))
