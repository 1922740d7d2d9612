"""Any tile of the weights, exactly."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.request import Request
from rearview.attention.statistics.measure import checked_sinks
from rearview.attention.statistics.strips import Strips
from rearview.errors import BadArgument
from rearview.masks import Frame, Mask, causal


@torch.no_grad()
def weights_tile(
    query: Tensor,
    key: Tensor,
    rows: slice | range,
    cols: slice | range,
    *,
    mask: Mask = causal(),
    q_start: int | None = None,
    bias: Tensor | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The exact weights of queries `rows` on keys `cols` (indices): [batch, heads, rows, cols].

    Memory is that of the tile and of a strip of queries; the softmax is over all keys, as it must be.

    >>> import torch
    >>> from rearview.attention import weights_tile
    >>> x = torch.randn(1, 2, 1000, 8)
    >>> weights_tile(x, x, slice(500, 504), slice(0, 8)).shape
    torch.Size([1, 2, 4, 8])
    """
    whole = Request.of(query, key, key, mask=mask, q_start=q_start, bias=bias, scale=scale, softcap=softcap)
    frame, sinks = whole.frame, checked_sinks(sinks, whole)
    rows, cols = _bounds(rows, frame.q_len, "rows"), _bounds(cols, frame.k_len, "cols")
    bias = whole.bias
    if isinstance(bias, Tensor) and bias.ndim >= 2 and bias.shape[-2] > 1:
        bias = bias[..., rows, :]
    part = Frame(rows.stop - rows.start, frame.k_len, frame.q_start + rows.start)
    request = dataclasses.replace(whole, query=whole.query[:, :, rows], frame=part, bias=bias)
    grouped = (request.batch * request.key_heads, request.queries_per_key_head)
    shape = (*grouped, part.q_len, cols.stop - cols.start)
    found = torch.zeros(shape, dtype=request.work_dtype, device=request.device)
    if found.numel():
        with torch.autocast(request.device.type, enabled=False):
            for strip in Strips(request, sinks):
                _copy(strip.weights, strip.parts, cols, into=found[strip.n, strip.of_group, strip.rows])
    return found.unflatten(0, (request.batch, request.key_heads)).flatten(1, 2)


def _copy(weights: Tensor, parts: tuple[slice, ...], cols: slice, *, into: Tensor) -> None:
    offset = 0
    for part in parts:
        start, stop = max(part.start, cols.start), min(part.stop, cols.stop)
        if start < stop:
            from_ = slice(offset + start - part.start, offset + stop - part.start)
            into[..., start - cols.start : stop - cols.start] = weights[..., from_]
        offset += part.stop - part.start


def _bounds(chosen: slice | range, length: int, argument: str) -> slice:
    expected = f"a slice or range of neighbours within {length}"
    if not isinstance(chosen, (slice, range)):
        raise BadArgument(argument, expected=expected, came=repr(chosen))
    if isinstance(chosen, range):
        inside = len(chosen) == 0 or (chosen[0] >= 0 and chosen[-1] < length)
        start, stop, step = (chosen.start, chosen.stop, chosen.step) if inside else (0, 0, 0)
    else:
        start, stop, step = chosen.indices(length)
    if step != 1:
        raise BadArgument(argument, expected=expected, came=repr(chosen))
    return slice(start, max(start, stop))
