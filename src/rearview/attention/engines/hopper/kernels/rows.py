"""What comes before and after the backward kernels, row by row.

Before: the log-sum-exp in units of log 2, and the sum of out x d_out. After: the gradient of the queries, which many
programs have added up in float32.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["q_len", "padded", "heads"], do_not_specialize_on_alignment=["lse", "d_lse"])
def prepare_rows(
    out, d_out, lse, d_lse, log_sums, delta, sums, q_len, padded, heads, out_item, out_head, out_row, d_item, d_head,
    d_row, DIM: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, D_LSE: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """`delta` is the sum less the gradient of the log-sum-exp. Rows that hear nothing, and padding, are 0.

    With SUMS, so are the COLUMNS float32 sums of a query's gradient.
    """
    head = tl.program_id(1)
    first = tl.program_id(0) * ROWS
    line = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    there = first + line < q_len
    inside = there[:, None] & (column < DIM)[None, :]
    item, own = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    x_row = out + item * out_item + own * out_head + first.to(tl.int64) * out_row
    y_row = d_out + item * d_item + own * d_head + first.to(tl.int64) * d_row
    x = tl.load(x_row + line[:, None] * out_row + column[None, :], mask=inside, other=0.0).to(tl.float32)
    y = tl.load(y_row + line[:, None] * d_row + column[None, :], mask=inside, other=0.0).to(tl.float32)
    found = tl.sum(x * y, 1)
    log_sum = tl.load(lse + head * q_len + first + line, mask=there, other=0.0)
    if D_LSE:
        found -= tl.load(d_lse + head * q_len + first + line, mask=there, other=0.0)
    empty = log_sum == float("-inf")
    tl.store(log_sums + head * padded + first + line, tl.where(empty, 0.0, log_sum * LOG2_E))
    tl.store(delta + head * padded + first + line, tl.where(empty, 0.0, found))
    if SUMS:
        row = sums + (head.to(tl.int64) * q_len + first) * COLUMNS
        tl.store(
            row + line[:, None] * COLUMNS + column[None, :], tl.zeros([ROWS, COLUMNS], tl.float32), mask=there[:, None]
        )


@triton.jit(do_not_specialize=["q_len", "heads", "scale"])
def finish_rows(
    sums, d_query, q_len, heads, d_item, d_head, d_row, scale,
    DIM: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradient of the queries from its sums [batch x heads, q_len, COLUMNS]."""
    head = tl.program_id(1)
    first = tl.program_id(0) * ROWS
    line = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    there = (first + line < q_len)[:, None]
    row = sums + (head.to(tl.int64) * q_len + first) * COLUMNS
    found = tl.load(row + line[:, None] * COLUMNS + column[None, :], mask=there, other=0.0)
    to = d_query + (head // heads).to(tl.int64) * d_item + (head % heads).to(tl.int64) * d_head
    to += first.to(tl.int64) * d_row
    there &= (column < DIM)[None, :]
    tl.store(to + line[:, None] * d_row + column[None, :], (found * scale).to(d_query.dtype.element_ty), mask=there)
