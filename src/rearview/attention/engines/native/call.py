"""One call of the kernel: a struct of eight-byte fields, packed here, and the tensors that it points to.

    >>> import torch
    >>> FORWARD.size + BACKWARD.size
    680

The order of the fields is that of `rv_call` in native/include/rearview.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rearview.attention.engines.native.library import KERNEL
from rearview.attention.engines.native.ranges import Ranges
from rearview.errors import RearviewError

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
SUMS = {dtype: torch.float64 if dtype == torch.float64 else torch.float32 for dtype in DTYPES}

# dtype; batch .. q_start; query, key, value, out; lse; ranges; heard; bias; slopes; scale, softcap, dropout; seed.
FORWARD = struct.Struct("@q8q" + 4 * "Pq4q" + "P" + "PP3qq" + "P2q" + "Pq4q" + "P" + "3d" + "Q")
# d_out; d_lse; d_query, d_key, d_value, d_bias.
BACKWARD = struct.Struct("@Pq4q" + "P" + 4 * "Pq4q")
NO_BACKWARD = bytes(BACKWARD.size)
NOTHING = (0, 0, 0, 0, 0, 0)

FAILURES = {1: "there is not enough memory for its work space", 2: "it does not understand the call"}


@dataclass(eq=False, slots=True)
class Options:
    """All that is no tensor with a gradient. `slopes`: float32 [heads], contiguous, or None.

    Never changed, and not frozen either: that would cost a step with a cache a microsecond.
    """

    ranges: Ranges
    q_start: int
    slopes: Tensor | None
    scale: float
    softcap: float
    dropout: float
    seed: int


def forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, options: Options, *, contiguous: bool = False
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp.

    The output lies in memory as the query does, [batch, time, heads, dim] for instance, unless it must be contiguous.
    """
    query, key, value = _last_beside(query), _last_beside(key), _last_beside(value)
    batch, heads, q_len, dim = query.shape
    if contiguous or dim != value.shape[3]:
        out = query.new_empty((batch, heads, q_len, value.shape[3]))
    else:
        out = _made_like(query)
    lse = query.new_empty((batch, heads, q_len), dtype=SUMS[query.dtype])
    packed = _packed(query, key, value, bias, out, lse, options) + NO_BACKWARD
    _run(KERNEL.rv_forward, packed)  # pyright: ignore[reportOptionalMemberAccess]
    return out, lse


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    options: Options,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None,
    *,
    needs_bias: bool,
    contiguous: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of query, key, value, each as that lies in memory, and, where it is needed, of the bias."""
    query, key, value, d_out = _last_beside(query), _last_beside(key), _last_beside(value), _last_beside(d_out)
    # What was saved comes back through the hooks of others, who may lay it out anew.
    out, lse = _last_beside(out), lse.contiguous()
    d_lse = None if d_lse is None else d_lse.contiguous()
    d_query, d_key, d_value = (_made_like(each, contiguous=contiguous) for each in (query, key, value))
    # Summed in the type of the sums, whatever the bias has.
    d_bias = lse.new_zeros(bias.shape) if bias is not None and needs_bias else None
    packed = _packed(query, key, value, bias, out, lse, options) + BACKWARD.pack(
        *_tensor(d_out),
        0 if d_lse is None else d_lse.data_ptr(),
        *_tensor(d_query),
        *_tensor(d_key),
        *_tensor(d_value),
        *(NOTHING if d_bias is None else _everywhere(d_bias, query, key)),
    )
    _run(KERNEL.rv_backward, packed)  # pyright: ignore[reportOptionalMemberAccess]
    return d_query, d_key, d_value, None if d_bias is None or bias is None else d_bias.to(bias.dtype)


def statistics(query: Tensor, key: Tensor, bias: Tensor | None, lse: Tensor, options: Options, fields: bytes) -> None:
    """Fills `lse`, and what `fields` points to: all that `rv_statistics_call` has behind its `rv_call`."""
    query, key = _last_beside(query), _last_beside(key)
    packed = _packed(query, key, key, bias, query, lse, options) + NO_BACKWARD + fields
    _run(KERNEL.rv_statistics, packed)  # pyright: ignore[reportOptionalMemberAccess]


def _packed(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor, options: Options
) -> bytes:
    # Written out, with one question a tensor: in a step with a cache this costs as much as the kernel.
    batch, heads, q_len, dim = query.shape
    _, key_heads, k_len, value_dim = value.shape
    slopes, dtype = options.slopes, DTYPES[query.dtype]
    a, b, c, d = query.stride(), key.stride(), value.stride(), out.stride()
    return FORWARD.pack(
        dtype, batch, heads, key_heads, q_len, k_len, dim, value_dim, options.q_start,
        # An axis of size 1 may claim any stride, and the last one must be 1.
        query.data_ptr(), dtype, a[0], a[1], a[2], 1,
        key.data_ptr(), dtype, b[0], b[1], b[2], 1,
        value.data_ptr(), dtype, c[0], c[1], c[2], 1,
        out.data_ptr(), dtype, d[0], d[1], d[2], 1,
        lse.data_ptr(), *options.ranges.packed,
        *(NOTHING if bias is None else _everywhere(bias, query, key)),
        0 if slopes is None else slopes.data_ptr(),
        options.scale, options.softcap, options.dropout, options.seed,
    )  # fmt: skip


def _tensor(tensor: Tensor) -> tuple[int, ...]:
    return tensor.data_ptr(), DTYPES[tensor.dtype], *tensor.stride()[:3], 1


def _everywhere(bias: Tensor, query: Tensor, key: Tensor) -> tuple[int, ...]:
    """A bias as it is at every batch item, head, query and key: a stride of 0 where it broadcasts."""
    seen = bias.expand(*query.shape[:3], key.shape[2])
    return seen.data_ptr(), DTYPES[bias.dtype], *seen.stride()


def _last_beside(tensor: Tensor) -> Tensor:
    """With the numbers of a row side by side."""
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def _made_like(tensor: Tensor, *, contiguous: bool = False) -> Tensor:
    """Memory for a result that lies as the tensor does, with the numbers of a row side by side."""
    made = torch.empty_like(tensor, memory_format=torch.contiguous_format if contiguous else torch.preserve_format)
    # Where rows of the tensor overlap, torch may put another axis innermost.
    return made if made.stride(3) == 1 else tensor.new_empty(tensor.shape)


def _run(function: Any, packed: bytes) -> None:
    # ctypes lets other Python threads run meanwhile.
    if status := function(packed, torch.get_num_threads()):
        raise RearviewError(f"engine 'native' failed: {FAILURES.get(status, f'status {status}')}.")
