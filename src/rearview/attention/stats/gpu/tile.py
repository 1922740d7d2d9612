"""What both kernels do with a tile of scores: load, scale, cap, add the bias, and test the ranges of the mask.

Scores are in units of log 2, so a weight is 2^(score - lse). Index tensors are [queries, 1] and [1, keys], or
transposed for a transposed tile.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def block_of(base, first, size, stride, dims, DIM: tl.constexpr, SIZE: tl.constexpr, WHOLE: tl.constexpr):
    """Rows first .. first + SIZE of a matrix with DIM columns; zeros beyond `size` rows and DIM columns."""
    rows = tl.arange(0, SIZE)
    pointers = base + first.to(tl.int64) * stride + rows[:, None] * stride + dims[None, :]
    if WHOLE:
        if dims.shape[0] == DIM:
            return tl.load(pointers)
        return tl.load(pointers, mask=dims[None, :] < DIM, other=0.0)
    return tl.load(pointers, mask=((first + rows) < size)[:, None] & (dims[None, :] < DIM), other=0.0)


@triton.jit
def in_bits(
    product, query, key, q_len, k_len, q_start, scale, cap, slope, bias, bias_query, bias_key,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The score from the product of query and key. `cap`, `slope` and, without a cap, `scale` are in units of log 2."""
    score = product * scale
    if SOFTCAP:
        # tanh from functions that every GPU and the interpreter have.
        score = cap * (1.0 - 2.0 / (tl.exp2(score * (2.0 * LOG2_E)) + 1.0))
    if ALIBI:
        score -= slope * tl.abs(query + q_start - key).to(tl.float32)
    if BIAS:
        inside = (query < q_len) & (key < k_len)
        place = query.to(tl.int64) * bias_query + key.to(tl.int64) * bias_key
        score += tl.load(bias + place, mask=inside, other=0.0).to(tl.float32) * LOG2_E
    return score


@triton.jit
def heard(starts, ends, query, key, first_key, last_key, q_len, range_row, most_ranges, RANGES: tl.constexpr):
    """Whether the key is in a range of the query. RANGES is the number per row, or 0 to search among many."""
    inside = query < q_len
    row = query.to(tl.int64) * range_row
    found = (key < 0) & inside
    if RANGES > 0:
        for index in tl.static_range(RANGES):
            start = tl.load(starts + row + index, mask=inside, other=0)
            end = tl.load(ends + row + index, mask=inside, other=0)
            found = found | ((key >= start) & (key < end))
    else:
        # Ranges are sorted: those before `low` end before the tile, and those from `high` on start after it.
        low = _count_up_to(ends, row, inside, first_key, most_ranges)
        high = _count_up_to(starts, row, inside, last_key, most_ranges)
        for step in range(tl.max(tl.max(high - low, 1), 0)):
            near = low + step
            there = inside & (near < high)
            start = tl.load(starts + row + near, mask=there, other=0)
            end = tl.load(ends + row + near, mask=there, other=0)
            found = found | ((key >= start) & (key < end))
    return found


@triton.jit
def _count_up_to(edges, row, inside, limit, count):
    """The number of sorted edges per row that are at most `limit`; empty ranges at the end may count or not."""
    low = tl.zeros(row.shape, tl.int32)
    high = low + count
    size = count
    while size > 0:
        middle = (low + high) // 2
        open_ = low < high
        edge = tl.load(edges + row + middle, mask=inside & open_, other=0)
        low = tl.where(open_ & (edge <= limit), middle + 1, low)
        high = tl.where(open_ & (edge > limit), middle, high)
        size = size // 2
    return low
