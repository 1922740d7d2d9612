"""The kernel over keys: the mass that each key received, and its distribution over the map and over distances.

A program owns a block of keys of one head and reads the queries that hear some of them, in tiles [keys, queries]. No
other program adds to the memory that it adds to, so the result is bit for bit the same in every run.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from rearview.attention.stats.gpu.tile import LOG2_E, block_of, heard, in_bits

# Larger than every position; twice that is still an int32.
NEVER = tl.constexpr(2**30)
UNSPECIALISED = [
    "q_len", "k_len", "q_start", "first_bin_start", "blocks", "q_padded", "bin_width", "map_rows", "edges",
    "most_ranges", "plain_runs", "compared_runs",
]  # fmt: skip


@triton.jit
def distance_bin(distance):
    """0 for the future, 1 for the position itself, 2 for 1, 3 for 2 and 3, 4 for 4 to 7, ..."""
    # The exponent of a float64, which represents every position exactly.
    bits = distance.to(tl.float64).to(tl.int64, bitcast=True)
    exponent = ((bits >> 52) - 1023).to(tl.int32)
    return tl.where(distance < 0, 0, tl.where(distance == 0, 1, exponent + 2))


@triton.jit
def distance_end(index):
    """The end of a bin of distances: one more than its largest distance."""
    return tl.where(index <= 0, 0, 1 << tl.maximum(index - 1, 0))


@triton.jit
def add_to_map(map_ptr, row, blocks, mass, first_key, bin_width, SLOTS: tl.constexpr):
    """Add the mass of each key to a row of the map, in which each block of keys has its own SLOTS bins."""
    slots = tl.arange(0, SLOTS)
    start = (first_key // bin_width + slots[:, None]) * bin_width
    keys = first_key + tl.arange(0, mass.shape[0])[None, :]
    sums = tl.sum(tl.where((keys >= start) & (keys < start + bin_width), mass[None, :], 0.0), 1)
    tl.atomic_add(map_ptr + row * blocks * SLOTS + slots, sums, sem="relaxed")


@triton.jit(do_not_specialize=UNSPECIALISED)
def columns_kernel(
    query_ptr, key_ptr, bias_ptr, slopes, starts, ends,
    plain_starts, plain_ends, compared_starts, compared_ends, lse_bits_ptr,
    received_ptr, histogram_ptr, map_ptr,
    query_batch, query_head, query_row, key_batch, key_head, key_row,
    bias_batch, bias_head, bias_query, bias_key, range_batch, range_head, range_row,
    plain_batch, plain_head, compared_batch, compared_head,
    q_len, k_len, q_start, first_bin_start, blocks, q_padded, bin_width, map_rows, edges,
    most_ranges, plain_runs, compared_runs, scale, cap,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SLOTS: tl.constexpr, RANGES: tl.constexpr, PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    block = program % blocks
    item_head = (program // blocks).to(tl.int64)
    item, head = item_head // HEADS, item_head % HEADS
    query_ptr += item * query_batch + head * query_head
    bias_ptr += item * bias_batch + head * bias_head
    starts += item * range_batch + head * range_head
    ends += item * range_batch + head * range_head
    plain = item * plain_batch + head * plain_head + block * plain_runs
    compared = item * compared_batch + head * compared_head + block * compared_runs
    slope = tl.load(slopes + head) * LOG2_E if ALIBI else 0.0
    lse_bits_ptr += item_head * q_padded
    histogram_ptr += (item_head * blocks + block) * edges
    # [item and head, row of the map, block of keys, slot]
    map_ptr += (item_head * map_rows * blocks + block) * SLOTS

    dims = tl.arange(0, BLOCK_DIM)
    first_key = block * KEYS
    keys = first_key + tl.arange(0, KEYS)
    key_ptr += item * key_batch + head // GROUP * key_head
    key = block_of(key_ptr, first_key, k_len, key_row, dims, DIM, KEYS, False)
    # The bin of a row is counted from the start of the first bin, which is at or before the first query.
    row_shift = q_start - first_bin_start
    received = tl.zeros([KEYS], tl.float32)

    for run in range(plain_runs):
        first, last = tl.load(plain_starts + plain + run), tl.load(plain_ends + plain + run)
        # Each of these tiles lies in one bin of distance and one row of the map; sums are written when either changes.
        index = distance_bin(first * QUERIES + q_start - first_key - KEYS + 1)
        next_edge = distance_end(index)
        map_row, next_row = -1, NEVER
        if SLOTS > 0:
            map_row = (first * QUERIES + row_shift) // bin_width
            next_row = (map_row + 1) * bin_width - row_shift
        mass = tl.zeros([KEYS], tl.float32)
        for tile in range(first, last):
            first_row = tile * QUERIES
            rows = first_row + tl.arange(0, QUERIES)
            query = block_of(query_ptr, first_row, q_len, query_row, dims, DIM, QUERIES, False)
            lse = tl.load(lse_bits_ptr + rows)
            product = tl.dot(key, tl.trans(query), input_precision=PRECISION)
            score = in_bits(
                product, rows[None, :], keys[:, None], q_len, k_len, q_start, scale, cap, slope,
                bias_ptr, bias_query, bias_key, SOFTCAP, ALIBI, BIAS,
            )  # fmt: skip
            nearest = first_row + q_start - first_key - KEYS + 1
            if (nearest >= next_edge) | (first_row >= next_row):
                tl.atomic_add(histogram_ptr + index, tl.sum(mass, 0), sem="relaxed")
                index = distance_bin(nearest)
                next_edge = distance_end(index)
                if SLOTS > 0:
                    add_to_map(map_ptr, map_row, blocks, mass, first_key, bin_width, SLOTS)
                    map_row = (first_row + row_shift) // bin_width
                    next_row = (map_row + 1) * bin_width - row_shift
                received += mass
                mass = tl.zeros([KEYS], tl.float32)
            mass += tl.sum(tl.exp2(score - lse[None, :]), 1)
        if first < last:
            tl.atomic_add(histogram_ptr + index, tl.sum(mass, 0), sem="relaxed")
            if SLOTS > 0:
                add_to_map(map_ptr, map_row, blocks, mass, first_key, bin_width, SLOTS)
            received += mass

    for run in range(compared_runs):
        for tile in range(tl.load(compared_starts + compared + run), tl.load(compared_ends + compared + run)):
            first_row = tile * QUERIES
            rows = first_row + tl.arange(0, QUERIES)
            query = block_of(query_ptr, first_row, q_len, query_row, dims, DIM, QUERIES, False)
            lse = tl.load(lse_bits_ptr + rows)
            product = tl.dot(key, tl.trans(query), input_precision=PRECISION)
            score = in_bits(
                product, rows[None, :], keys[:, None], q_len, k_len, q_start, scale, cap, slope,
                bias_ptr, bias_query, bias_key, SOFTCAP, ALIBI, BIAS,
            )  # fmt: skip
            seen = heard(
                starts, ends, rows[None, :], keys[:, None], first_key, first_key + KEYS - 1, q_len,
                range_row, most_ranges, RANGES,
            )  # fmt: skip
            weight = tl.where(seen, tl.exp2(score - lse[None, :]), 0.0)
            received += tl.sum(weight, 1)
            last_row = tl.minimum(first_row + QUERIES, q_len) - 1
            furthest = distance_bin(last_row + q_start - first_key)
            for index in range(distance_bin(first_row + q_start - first_key - KEYS + 1), furthest + 1):
                # The first query, and the end of the queries, at this distance from each key.
                start = keys + (tl.where(index == 0, -NEVER, distance_end(index - 1)) - q_start)
                end = keys + (distance_end(index) - q_start)
                here = (rows[None, :] >= start[:, None]) & (rows[None, :] < end[:, None])
                at_index = tl.sum(tl.sum(tl.where(here, weight, 0.0), 1), 0)
                tl.atomic_add(histogram_ptr + index, at_index, sem="relaxed")
            if SLOTS > 0:
                last_bin = (last_row + row_shift) // bin_width
                for map_row in range((first_row + row_shift) // bin_width, last_bin + 1):
                    start = map_row * bin_width - row_shift
                    here = (rows >= start) & (rows < start + bin_width)
                    in_row = tl.sum(tl.where(here[None, :], weight, 0.0), 1)
                    add_to_map(map_ptr, map_row, blocks, in_row, first_key, bin_width, SLOTS)

    tl.store(received_ptr + item_head * k_len + keys, received, mask=keys < k_len)
