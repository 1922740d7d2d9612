"""weights_tile(): the exact weights of neighbouring queries on neighbouring keys."""

from __future__ import annotations

import dataclasses
from typing import Unpack

import torch
from torch import Tensor

from rearview.attention.arguments import without_autocast
from rearview.attention.call import Call, ScoreOptions, shows_options
from rearview.attention.stats.strips import Strips
from rearview.errors import BadArgument
from rearview.masks import Frame


@shows_options
def weights_tile(
    query: Tensor,
    key: Tensor,
    rows: slice | range,
    cols: slice | range,
    **options: Unpack[ScoreOptions],
) -> Tensor:
    """The exact weights of the queries `rows` on the keys `cols` (indices): [batch, heads, rows, cols].

    The softmax is over all keys. Memory is that of the tile and of one strip of queries.

    >>> import torch
    >>> from rearview.attention import weights_tile
    >>> x = torch.randn(1, 2, 1000, 8)
    >>> weights_tile(x, x, slice(500, 504), slice(0, 8)).shape
    torch.Size([1, 2, 4, 8])
    """
    return tile_of(Call.of_scores(query, key, **options), rows, cols)


@torch.no_grad()
def tile_of(whole: Call, rows: slice | range, cols: slice | range) -> Tensor:
    """`weights_tile` of an existing `Call`."""
    frame = whole.frame
    rows, cols = _bounds(rows, frame.q_len, "rows"), _bounds(cols, frame.k_len, "cols")
    bias = whole.bias
    if isinstance(bias, Tensor) and bias.ndim >= 2 and bias.shape[-2] > 1:
        bias = bias[..., rows, :]
    part = Frame(rows.stop - rows.start, frame.k_len, frame.q_start + rows.start)
    call = dataclasses.replace(whole, query=whole.query[:, :, rows], frame=part, bias=bias)
    grouped = (call.batch * call.key_heads, call.queries_per_key_head)
    shape = (*grouped, part.q_len, cols.stop - cols.start)
    found = torch.zeros(shape, dtype=call.work_dtype, device=call.device)
    if found.numel():
        with without_autocast(call.device):
            for strip in Strips(call):
                _copy(strip.weights, strip.parts, cols, into=found[strip.n, strip.of_group, strip.rows])
    return found.unflatten(0, (call.batch, call.key_heads)).flatten(1, 2)


def _copy(weights: Tensor, parts: tuple[slice, ...], cols: slice, *, into: Tensor) -> None:
    offset = 0
    for part in parts:
        start, stop = max(part.start, cols.start), min(part.stop, cols.stop)
        if start < stop:
            from_ = slice(offset + start - part.start, offset + stop - part.start)
            into[..., start - cols.start : stop - cols.start] = weights[..., from_]
        offset += part.stop - part.start


def _bounds(chosen: slice | range, length: int, argument: str) -> slice:
    expected = f"a slice or range with step 1 within {length}"
    if not isinstance(chosen, (slice, range)):
        raise BadArgument(argument, expected=expected, got=repr(chosen))
    if isinstance(chosen, range):
        inside = len(chosen) == 0 or (chosen[0] >= 0 and chosen[-1] < length)
        start, stop, step = (chosen.start, chosen.stop, chosen.step) if inside else (0, 0, 0)
    else:
        start, stop, step = chosen.indices(length)
    if step != 1:
        raise BadArgument(argument, expected=expected, got=repr(chosen))
    return slice(start, max(start, stop))
