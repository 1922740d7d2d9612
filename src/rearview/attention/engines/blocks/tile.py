"""One tile at a time: its keys, its scores, what is hidden in it, and where its gradients go.

Shapes: N = batch x key heads, G = query heads that share a key head, D = dim; lower case n, g, q, k are the part of
each that a strip and a tile take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.blocks.schedule import Strip, Tile


@dataclass(frozen=True)
class Group:
    """Batch items x key heads x query heads of each that are computed together; `n` is their slice of N."""

    items: slice
    key_heads: slice
    of_group: slice
    n: slice


def groups(strip: Strip, batch: int, key_heads: int, shared: int) -> Iterator[Group]:
    """The parts of a strip that are one block of memory in N = batch x key heads."""
    first, last, _ = strip.items.indices(batch)
    whole = slice(0, shared)
    if strip.heads == slice(0, None):
        yield Group(slice(first, last), slice(0, key_heads), whole, slice(first * key_heads, last * key_heads))
        return
    head, end, _ = strip.heads.indices(key_heads * shared)
    for item in range(first, last):
        h = head
        while h < end:
            key_head, offset = divmod(h, shared)
            # As many whole key heads as there are, else the part of one.
            count = max(1, (end - h) // shared if offset == 0 else 0)
            inside = whole if offset == 0 and end - h >= shared else slice(offset, min(shared, offset + end - h))
            n = item * key_heads + key_head
            yield Group(slice(item, item + 1), slice(key_head, key_head + count), inside, slice(n, n + count))
            h += count * shared if inside == whole else inside.stop - inside.start


def nothing_heard(q: Tensor, value_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    top = q.new_full((*q.shape[:2], 1), torch.finfo(q.dtype).min)
    return top, torch.zeros_like(top), q.new_zeros(*q.shape[:2], value_dim)


def gather(x_NKD: Tensor, keys: tuple[slice, ...]) -> Tensor:
    return x_NKD[:, keys[0]] if len(keys) == 1 else torch.cat([x_NKD[:, part] for part in keys], dim=1)


def scatter_add(x_NKD: Tensor, keys: tuple[slice, ...], update: Tensor) -> None:
    lengths = [part.stop - part.start for part in keys]
    for part, piece in zip(keys, update.split(lengths, dim=1), strict=True):
        x_NKD[:, part] += piece


def tile_scores(
    q: Tensor, k: Tensor, call: Call, group: Group, strip: Strip, tile: Tile
) -> tuple[Tensor, Tensor | None]:
    """softcap(Q K^T) + bias with -inf at hidden keys, [n, g x q, k]; and the slope of the softcap, if there is one."""
    scores, slope = torch.bmm(q, k.transpose(-1, -2)), None
    if call.softcap is not None:
        capped = scores.div_(call.softcap).tanh_()
        slope = 1 - capped.square()
        scores = capped * call.softcap
    if (bias := call.bias_tensor) is not None:
        whole = bias.expand(*call.query.shape[:3], call.frame.k_len).unflatten(1, (call.key_heads, -1))
        rows = whole[group.items, group.key_heads, group.of_group, strip.rows]
        by_head(scores, group, strip).add_(torch.cat([rows[..., part] for part in tile.keys], dim=-1))
    elif (alibi := call.alibi) is not None:
        rows = torch.arange(strip.rows.start, strip.rows.stop, device=q.device) + call.frame.q_start
        columns = torch.cat([torch.arange(part.start, part.stop, device=q.device) for part in tile.keys])
        penalty = alibi.tile(rows, columns, scores.dtype).unflatten(0, (call.key_heads, -1))
        by_head(scores, group, strip).add_(penalty[group.key_heads, group.of_group])
    hide(scores, tile, group, strip, -torch.inf)
    return scores, slope


def by_head(scores: Tensor, group: Group, strip: Strip) -> Tensor:
    """[n, g x q, k] seen as [item, key head, g, q, k]."""
    items = group.items.stop - group.items.start
    heads = group.of_group.stop - group.of_group.start
    return scores.view(items, -1, heads, strip.rows.stop - strip.rows.start, scores.shape[-1])


def hide(scores: Tensor, tile: Tile, group: Group, strip: Strip, fill: float) -> None:
    for piece in tile.pieces:
        by_head(scores, group, strip)[..., piece.columns].masked_fill_(piece.hidden, fill)


def dropout_of(p: Tensor, call: Call, tile_number: int) -> Tensor:
    """The dropout of one tile, the same each time it is asked for: 0 or 1 / (1 - dropout)."""
    assert call.seed is not None, "a call with dropout draws its seed before the passes"
    generator = torch.Generator(p.device).manual_seed(int(call.seed) + tile_number)
    keep = torch.empty_like(p).bernoulli_(1 - call.dropout, generator=generator)
    return keep.div_(1 - call.dropout)


def add_bias_grad(d_bias: Tensor, ds: Tensor, call: Call, group: Group, strip: Strip, tile: Tile) -> None:
    heads = (call.key_heads, call.queries_per_key_head) if d_bias.shape[1] > 1 else (1, 1)
    target = d_bias.unflatten(1, heads)
    offset = 0
    for part in tile.keys:
        piece = by_head(ds, group, strip)[..., offset : offset + part.stop - part.start]
        where = (group.items, group.key_heads, group.of_group, strip.rows, part)
        # An axis that the bias broadcasts over is summed over.
        summed = [axis for axis in range(5) if target.shape[axis] == 1]
        at = tuple(slice(None) if axis in summed else where[axis] for axis in range(5))
        target[at] += piece.sum(summed, keepdim=True) if summed else piece
        offset += part.stop - part.start
