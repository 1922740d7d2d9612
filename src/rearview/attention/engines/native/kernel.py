"""One call of the kernel: a struct of eight-byte fields, packed here, and the tensors that it points to.

    >>> import torch
    >>> FORWARD.size + BACKWARD.size
    736

The order of the fields is that of `rv_call` in native/include/rearview.h.
"""

from __future__ import annotations

import struct
from typing import TypedDict

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.native.library import KERNEL
from rearview.attention.engines.native.ranges import Ranges
from rearview.attention.pages import Pages
from rearview.errors import RearviewError

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
SUMS = {dtype: torch.float64 if dtype == torch.float64 else torch.float32 for dtype in DTYPES}

# dtype; batch .. q_start; query, key, value, out; lse; ranges; heard; pages; bias; slopes, sinks; scale, softcap,
# dropout; seed; batch_invariant.
FORWARD = struct.Struct("@q8q" + 4 * "Pq4q" + "P" + "PP3qq" + "P2q" + "P2qP" + "Pq4q" + "PP" + "3d" + "Q" + "q")
# d_out; d_lse; d_query, d_key, d_value, d_bias; d_sinks.
BACKWARD = struct.Struct("@Pq4q" + "P" + 4 * "Pq4q" + "P")
NO_BACKWARD = bytes(BACKWARD.size)
NOTHING = (0, 0, 0, 0, 0, 0)
NO_PAGES = (0, 0, 0, 0)

# Fewer multiplications than this are done before other threads have begun, and on a busy machine it may take a thousand
# times as long until the last of them has its turn. Bits do not depend on the number of threads.
FEW = 1 << 19

FAILURES = {1: "there is not enough memory for its work space", 2: "it does not understand the call"}


class Terms(TypedDict):
    """The fields of `rv_call` that are neither tensors with gradients nor ranges.

    `slopes` is float32 [heads] and contiguous, `sinks` the same in the dtype of the sums; `softcap` is 0 where there is
    none.
    """

    q_start: int
    slopes: Tensor | None
    sinks: Tensor | None
    scale: float
    softcap: float
    dropout: float
    seed: int
    batch_invariant: bool


def terms_of(call: Call, sinks: Tensor | None = None) -> Terms:
    """The terms of a call, which may be without its tensors; `sinks` are those of the call."""
    alibi = call.alibi
    return {
        "q_start": call.frame.q_start,
        "slopes": None if alibi is None else alibi.slopes.to("cpu", torch.float32).contiguous(),
        "sinks": None if sinks is None else sinks.detach().contiguous(),
        "scale": call.scale,
        "softcap": call.softcap or 0.0,
        "dropout": call.dropout,
        "seed": 0 if call.seed is None else int(call.seed),
        "batch_invariant": call.batch_invariant,
    }


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    ranges: Ranges,
    terms: Terms,
    *,
    pages: Pages | None = None,
    contiguous: bool = False,
    unrounded: bool = False,
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp.

    The output has the query's strides, those of [batch, time, heads, dim] for instance, unless it must be contiguous or
    `unrounded`, in the dtype of the sums.
    """
    query, key, value = _contiguous_last_dim(query), _contiguous_last_dim(key), _contiguous_last_dim(value)
    batch, heads, q_len, dim = query.shape
    if contiguous or unrounded or dim != value.shape[3]:
        dtype = SUMS[query.dtype] if unrounded else query.dtype
        out = query.new_empty((batch, heads, q_len, value.shape[3]), dtype=dtype)
    else:
        out = _empty_like(query)
    lse = query.new_empty((batch, heads, q_len), dtype=SUMS[query.dtype])
    packed = _packed(query, key, value, bias, out, lse, ranges, terms, pages) + NO_BACKWARD
    run("rv_forward", packed, _pairs(query, key, pages) * (dim + value.shape[3]))
    return out, lse


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    ranges: Ranges,
    terms: Terms,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None,
    *,
    needs_bias: bool,
    contiguous: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of query, key and value, with the strides of each; of a bias that needs one; of the sinks."""
    # Saved tensors come back through hooks of the caller, which may have changed their strides.
    query, key, value, out, d_out = (_contiguous_last_dim(each) for each in (query, key, value, out, d_out))
    lse = lse.contiguous()
    d_lse = None if d_lse is None else d_lse.contiguous()
    d_query, d_key, d_value = (_empty_like(each, contiguous=contiguous) for each in (query, key, value))
    # Accumulated in the dtype of the sums, whatever the dtype of the bias.
    d_bias = lse.new_zeros(bias.shape) if bias is not None and needs_bias else None
    d_sinks = None if terms["sinks"] is None else torch.empty_like(terms["sinks"])
    packed = _packed(query, key, value, bias, out, lse, ranges, terms) + BACKWARD.pack(
        *_tensor(d_out),
        0 if d_lse is None else d_lse.data_ptr(),
        *_tensor(d_query),
        *_tensor(d_key),
        *_tensor(d_value),
        *(NOTHING if d_bias is None else _expand_bias(d_bias, query, key.shape[2])),
        0 if d_sinks is None else d_sinks.data_ptr(),
    )
    run("rv_backward", packed, 2.5 * _pairs(query, key) * (query.shape[3] + value.shape[3]))
    return d_query, d_key, d_value, None if d_bias is None or bias is None else d_bias.to(bias.dtype), d_sinks


def statistics(
    query: Tensor, key: Tensor, bias: Tensor | None, lse: Tensor, ranges: Ranges, terms: Terms, fields: bytes
) -> None:
    """Fills `lse`, and what `fields` points to: all fields of `rv_statistics_call` after its `rv_call`."""
    query, key = _contiguous_last_dim(query), _contiguous_last_dim(key)
    packed = _packed(query, key, key, bias, query, lse, ranges, terms) + NO_BACKWARD + fields
    run("rv_statistics", packed, _pairs(query, key) * query.shape[3])


def _packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    ranges: Ranges,
    terms: Terms,
    pages: Pages | None = None,
) -> bytes:
    # Written out, with one lookup per tensor: in a step with a cache this costs as much as the kernel.
    batch, heads, q_len, dim = query.shape
    _, key_heads, k_len, value_dim = value.shape
    slopes, sinks, dtype = terms["slopes"], terms["sinks"], DTYPES[query.dtype]
    blocks = NO_PAGES
    if pages is not None:
        table = pages.table
        blocks, k_len = (table.data_ptr(), table.stride(0), k_len, pages.lengths_tensor.data_ptr()), pages.k_len
    a, b, c, d = query.stride(), key.stride(), value.stride(), out.stride()
    return FORWARD.pack(
        dtype, batch, heads, key_heads, q_len, k_len, dim, value_dim, terms["q_start"],
        # An axis of size 1 may have any stride, and the last stride must be 1.
        query.data_ptr(), dtype, a[0], a[1], a[2], 1,
        key.data_ptr(), dtype, b[0], b[1], b[2], 1,
        value.data_ptr(), dtype, c[0], c[1], c[2], 1,
        out.data_ptr(), DTYPES[out.dtype], d[0], d[1], d[2], 1,
        lse.data_ptr(), *ranges.packed, *blocks,
        *(NOTHING if bias is None else _expand_bias(bias, query, k_len)),
        0 if slopes is None else slopes.data_ptr(), 0 if sinks is None else sinks.data_ptr(),
        terms["scale"], terms["softcap"], terms["dropout"], terms["seed"], terms["batch_invariant"],
    )  # fmt: skip


def _pairs(query: Tensor, key: Tensor, pages: Pages | None = None) -> int:
    batch, heads, q_len, _ = query.shape
    return batch * heads * q_len * (key.shape[2] if pages is None else pages.k_len)


def _tensor(tensor: Tensor) -> tuple[int, ...]:
    return tensor.data_ptr(), DTYPES[tensor.dtype], *tensor.stride()[:3], 1


def _expand_bias(bias: Tensor, query: Tensor, k_len: int) -> tuple[int, ...]:
    """A bias expanded to every batch item, head, query and key, with a stride of 0 where it broadcasts."""
    whole = bias.expand(*query.shape[:3], k_len)
    return whole.data_ptr(), DTYPES[bias.dtype], *whole.stride()


def _contiguous_last_dim(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def _empty_like(tensor: Tensor, *, contiguous: bool = False) -> Tensor:
    """Memory for a result with the strides of the tensor and a contiguous last dimension."""
    made = torch.empty_like(tensor, memory_format=torch.contiguous_format if contiguous else torch.preserve_format)
    # Where rows of the tensor overlap, torch may make another axis the contiguous one.
    return made if made.stride(3) == 1 else tensor.new_empty(tensor.shape)


def run(function: str, packed: bytes, work: float) -> None:
    """Call a function of the library with a packed struct; `work` counts its multiplications."""
    threads = torch.get_num_threads() if work >= FEW else 1
    # ctypes releases the GIL for the time of the call.
    if status := getattr(KERNEL, function)(packed, threads):
        raise RearviewError(f"engine 'native' failed: {FAILURES.get(status, f'status {status}')}.")
