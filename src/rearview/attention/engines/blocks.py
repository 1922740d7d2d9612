"""Structure-aware attention in plain PyTorch: the work is cut to the ranges that the mask leaves visible.

    >>> import torch
    >>> from rearview import attend, causal, documents
    >>> x = torch.randn(1, 2, 6, 8)
    >>> packed = causal() & documents([0, 0, 0, 1, 1, 1])
    >>> together = attend(x, x, x, mask=packed, engine="blocks")
    >>> torch.allclose(together[:, :, 3:], attend(x[:, :, 3:], x[:, :, 3:], x[:, :, 3:]), atol=1e-6)
    True

Forward, a strip of queries walks its tiles of keys with the running softmax of FlashAttention
(https://arxiv.org/abs/2205.14135, algorithm 1); backward recomputes the weights from the saved log-sum-exp
(algorithm 4). No score outlives its tile, so memory is linear in the length, and nothing is compiled.

Shapes: N = batch x key heads, G = query heads that share a key head, Q/K = positions, D/E = dim of keys/values;
q, k lower case are the rows of a strip and the keys of a tile.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.engines import reference
from rearview.attention.engines.schedule import Sizes, Strip, Tile, reaches_unheard_keys, schedule_rule, schedule_spans
from rearview.attention.request import Request
from rearview.errors import Unsupported
from rearview.masks import Frame, Mask, Spans

name = "blocks"
summary = "plain PyTorch, cut to the visible ranges"

# Measured on CPUs (bench/): short rows waste least in small strips, long ones feed the matrix product better.
SHORT_ROW_KEYS = 256
SHORT_ROW_STRIP, LONG_ROW_STRIP = 64, 128
KEYS_PER_TILE = 1024

# A mask object serves every layer and step of a model; its schedule is made once and goes when the ranges go.
_schedules: weakref.WeakKeyDictionary[Spans, dict[tuple[Sizes, torch.device], list[Strip]]] = (
    weakref.WeakKeyDictionary()
)


def refusals(request: Request) -> list[str]:
    return []


def run(request: Request) -> tuple[Tensor, Tensor]:
    return _run(request)


# The schedule is Python that reads the mask's values: a compiled graph breaks here and goes on behind it.
@torch.compiler.disable
def _run(request: Request) -> tuple[Tensor, Tensor]:
    bias = request.bias if isinstance(request.bias, Tensor) else None
    key, value = request.key, request.value
    # Keys that nobody hears are not read, except in a short gap between two that are.
    if request.spans is None or reaches_unheard_keys(request.spans):
        key, value = request.shielded()
    with torch.autocast(request.device.type, enabled=False):
        return BlockAttention.apply(request.query, key, value, bias, Work.of(request))


@dataclass(frozen=True, eq=False)
class Work:
    """A request without its tensors: the graph keeps this, and must not keep activations alive through it."""

    mask: Mask
    frame: Frame
    spans: Spans | None
    key_heads: int
    alibi: Alibi | None
    scale: float
    softcap: float | None
    dropout: float
    seed: int
    dtype: torch.dtype

    @classmethod
    def of(cls, request: Request) -> Work:
        seed = 0
        if request.dropout:
            device = None if request.generator is None else request.generator.device
            seed = int(torch.randint(2**48, (), generator=request.generator, device=device))
        return cls(
            request.mask,
            request.frame,
            request.spans,
            request.key_heads,
            request.bias if isinstance(request.bias, Alibi) else None,
            request.scale,
            request.softcap,
            request.dropout,
            seed,
            request.work_dtype,
        )

    def request(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Request:
        both = self.alibi if bias is None else bias
        return Request(
            query,
            key,
            value,
            self.mask,
            self.frame,
            both,
            self.scale,
            self.softcap,
            0.0,
            None,
            return_lse=True,
        )

    def strips(self, device: torch.device) -> Iterable[Strip]:
        if self.spans is None:
            return schedule_rule(self.mask, self.frame, Sizes(LONG_ROW_STRIP, KEYS_PER_TILE), device)
        keys_per_row = self.spans.area / max(1, self.spans.batch * self.spans.heads * self.spans.q_len)
        sizes = Sizes(SHORT_ROW_STRIP if keys_per_row <= SHORT_ROW_KEYS else LONG_ROW_STRIP, KEYS_PER_TILE)
        made = _schedules.setdefault(self.spans, {})
        if (sizes, device) not in made:
            made[sizes, device] = schedule_spans(self.spans, sizes, device)
        return made[sizes, device]


@dataclass(frozen=True)
class Group:
    """Batch items x key heads x query heads of each that are computed together; `n` is their slice of N."""

    items: slice
    key_heads: slice
    of_group: slice
    n: slice


class BlockAttention(torch.autograd.Function):
    """(query, key, value, bias, work) -> (out, lse)."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, work: Work) -> tuple[Tensor, Tensor]:
        shared = query.shape[1] // work.key_heads
        q_NGQD = query.unflatten(1, (work.key_heads, shared)).flatten(0, 1)
        k_NKD, v_NKE = key.flatten(0, 1), value.flatten(0, 1)
        out_NGQE = query.new_empty(*q_NGQD.shape[:3], value.shape[-1])
        lse_NGQ = query.new_empty(q_NGQD.shape[:3], dtype=work.dtype)
        tile_number = 0
        for strip in work.strips(query.device):
            for group in _groups(strip, query.shape[0], work.key_heads, shared):
                rows = (group.n, group.of_group, strip.rows)
                q = (q_NGQD[rows].to(work.dtype) * work.scale).flatten(1, 2)
                top, total, acc = _nothing_heard(q, value.shape[-1])
                for tile in strip.tiles:
                    k, v = (_gather(x[group.n], tile.keys).to(work.dtype) for x in (k_NKD, v_NKE))
                    p, _ = _scores(q, k, bias, work, group, strip, tile, query.shape)
                    # The finite floor keeps -inf - -inf, a row that has heard nothing so far, from being NaN.
                    higher = torch.maximum(top, p.amax(-1, keepdim=True))
                    p.sub_(higher).exp_()
                    shrink = top.sub_(higher).exp_()
                    total = total.mul_(shrink).add_(p.sum(-1, keepdim=True))
                    if work.dropout:
                        p.mul_(_keep(p, work, tile_number))
                    acc = torch.bmm(p, v) if tile is strip.tiles[0] else acc.mul_(shrink).baddbmm_(p, v)
                    top, tile_number = higher, tile_number + 1
                empty = total == 0
                out_NGQE[rows] = acc.div_(total.masked_fill_(empty, 1)).view_as(out_NGQE[rows])
                lse = top.add_(total.log_()).masked_fill_(empty, -torch.inf)
                lse_NGQ[rows] = lse.view_as(lse_NGQ[rows])
        return out_NGQE.view(*query.shape[:3], -1), lse_NGQ.view(query.shape[:3])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.work = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple:
        query, key, value, bias, out, lse = ctx.saved_tensors
        if d_out is None and d_lse is None:
            return None, None, None, None, None
        d_out = torch.zeros_like(out) if d_out is None else d_out
        needs_bias = bias is not None and ctx.needs_input_grad[3]
        # Gradients that must have gradients themselves: the definition, which autograd can follow all the way.
        if torch.is_grad_enabled():
            return *_differentiable_backward(ctx.work, query, key, value, bias, d_out, d_lse, needs_bias), None
        with torch.autocast(query.device.type, enabled=False):
            return *_backward(ctx.work, query, key, value, bias, out, lse, d_out, d_lse, needs_bias), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        *tensors, work = inputs
        if work.mask.batch is not None or tensors[3] is not None:
            raise Unsupported(
                "vmap over engine 'blocks'",
                ["the mask or the bias has a batch axis of its own, or there is a bias"],
                advice="Fold the mapped axis into the batch yourself, or use engine='reference'.",
            )
        # The mapped axis joins the batch: attention is the same for every item.
        size = info.batch_size
        folded = []
        for tensor, axis in zip(tensors[:3], in_dims[:3], strict=True):
            whole = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
            folded.append(whole.flatten(0, 1))
        out, lse = BlockAttention.apply(*folded, None, work)
        return (out.unflatten(0, (size, -1)), lse.unflatten(0, (size, -1))), (0, 0)


def _backward(
    work: Work,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    heads = (work.key_heads, query.shape[1] // work.key_heads)
    q_NGQD = query.unflatten(1, heads).flatten(0, 1)
    do_NGQE = d_out.unflatten(1, heads).flatten(0, 1)
    k_NKD, v_NKE = key.flatten(0, 1), value.flatten(0, 1)
    # dS = P (dP - delta): the row sums of P dP, which are those of out x d_out, less what flows in through the lse.
    delta = (d_out.to(work.dtype) * out.to(work.dtype)).sum(-1)
    delta = delta if d_lse is None else delta - d_lse
    delta_NGQ = delta.unflatten(1, heads).flatten(0, 1)
    # A row that heard nothing has no weights: exp(score - inf) is 0 whatever the score.
    lse_NGQ = lse.masked_fill(lse == -torch.inf, torch.inf).unflatten(1, heads).flatten(0, 1)
    dq_NGQD = torch.zeros_like(q_NGQD)
    dk_NKD, dv_NKE = torch.zeros_like(k_NKD, dtype=work.dtype), torch.zeros_like(v_NKE, dtype=work.dtype)
    d_bias = torch.zeros_like(bias, dtype=work.dtype) if bias is not None and needs_bias else None
    tile_number = 0
    for strip in work.strips(query.device):
        for group in _groups(strip, query.shape[0], *heads):
            rows = (group.n, group.of_group, strip.rows)
            q = (q_NGQD[rows].to(work.dtype) * work.scale).flatten(1, 2)
            do = do_NGQE[rows].to(work.dtype).flatten(1, 2)
            row_lse, row_delta = (x[rows].flatten(1, 2).unsqueeze(-1) for x in (lse_NGQ, delta_NGQ))
            dq = torch.zeros_like(q)
            for tile in strip.tiles:
                k, v = (_gather(x[group.n], tile.keys).to(work.dtype) for x in (k_NKD, v_NKE))
                p, slope = _scores(q, k, bias, work, group, strip, tile, query.shape)
                p.sub_(row_lse).exp_()
                ds = torch.bmm(do, v.transpose(-1, -2))
                if work.dropout:
                    keep = _keep(p, work, tile_number)
                    ds.mul_(keep)
                    _scatter_add(dv_NKE[group.n], tile.keys, torch.bmm((p * keep).transpose(-1, -2), do))
                else:
                    _scatter_add(dv_NKE[group.n], tile.keys, torch.bmm(p.transpose(-1, -2), do))
                ds.sub_(row_delta).mul_(p)
                # 0 x inf is NaN: a forbidden value so large that d_out x V overflows must not be noticed either.
                _hide(ds, tile, group, strip, 0.0)
                if d_bias is not None:
                    _add_bias_grad(d_bias, ds, group, strip, tile, query.shape, work.key_heads)
                if slope is not None:
                    ds.mul_(slope)
                dq.baddbmm_(ds, k)
                _scatter_add(dk_NKD[group.n], tile.keys, torch.bmm(ds.transpose(-1, -2), q))
                tile_number += 1
            dq_NGQD[rows] = dq.mul_(work.scale).view_as(dq_NGQD[rows]).to(query.dtype)
    return (
        dq_NGQD.view(query.shape),
        dk_NKD.view(key.shape).to(key.dtype),
        dv_NKE.view(value.shape).to(value.dtype),
        None if d_bias is None or bias is None else d_bias.to(bias.dtype),
    )


def _differentiable_backward(
    work: Work,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    d_out: Tensor,
    d_lse: Tensor | None,
    needs_bias: bool,
) -> tuple[Tensor | None, ...]:
    if work.dropout:
        raise Unsupported("second derivatives of engine 'blocks'", ["dropout cannot be drawn again here"])
    out, lse = reference.run(work.request(query, key, value, bias))
    inputs = [query, key, value] + ([bias] if bias is not None and needs_bias else [])
    outputs, grads = ([out], [d_out]) if d_lse is None else ([out, lse], [d_out, d_lse])
    found = torch.autograd.grad(outputs, inputs, grads, create_graph=True, allow_unused=True)
    return *found, *([None] * (4 - len(found)))


def _groups(strip: Strip, batch: int, key_heads: int, shared: int) -> Iterator[Group]:
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


def _nothing_heard(q: Tensor, value_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    top = q.new_full((*q.shape[:2], 1), torch.finfo(q.dtype).min)
    return top, torch.zeros_like(top), q.new_zeros(*q.shape[:2], value_dim)


def _gather(x_NKD: Tensor, keys: tuple[slice, ...]) -> Tensor:
    return x_NKD[:, keys[0]] if len(keys) == 1 else torch.cat([x_NKD[:, part] for part in keys], dim=1)


def _scatter_add(x_NKD: Tensor, keys: tuple[slice, ...], update: Tensor) -> None:
    lengths = [part.stop - part.start for part in keys]
    for part, piece in zip(keys, update.split(lengths, dim=1), strict=True):
        x_NKD[:, part] += piece


def _scores(
    q: Tensor,
    k: Tensor,
    bias: Tensor | None,
    work: Work,
    group: Group,
    strip: Strip,
    tile: Tile,
    shape: torch.Size,
) -> tuple[Tensor, Tensor | None]:
    """softcap(Q K^T) + bias with -inf at hidden keys, [n, g x q, k]; and the slope of the softcap, if there is one."""
    scores, slope = torch.bmm(q, k.transpose(-1, -2)), None
    if work.softcap is not None:
        capped = scores.div_(work.softcap).tanh_()
        slope = 1 - capped.square()
        scores = capped * work.softcap
    if bias is not None:
        whole = bias.expand(*shape[:3], work.frame.k_len).unflatten(1, (work.key_heads, -1))
        rows = whole[group.items, group.key_heads, group.of_group, strip.rows]
        _by_head(scores, group, strip).add_(torch.cat([rows[..., part] for part in tile.keys], dim=-1))
    elif work.alibi is not None:
        rows = torch.arange(strip.rows.start, strip.rows.stop, device=q.device) + work.frame.q_start
        columns = torch.cat([torch.arange(part.start, part.stop, device=q.device) for part in tile.keys])
        penalty = work.alibi.tile(rows, columns).unflatten(0, (work.key_heads, -1))
        _by_head(scores, group, strip).add_(penalty[group.key_heads, group.of_group])
    _hide(scores, tile, group, strip, -torch.inf)
    return scores, slope


def _by_head(scores: Tensor, group: Group, strip: Strip) -> Tensor:
    """[n, g x q, k] seen as [item, key head, g, q, k]."""
    items = group.items.stop - group.items.start
    heads = group.of_group.stop - group.of_group.start
    return scores.view(items, -1, heads, strip.rows.stop - strip.rows.start, scores.shape[-1])


def _hide(scores: Tensor, tile: Tile, group: Group, strip: Strip, fill: float) -> None:
    for piece in tile.pieces:
        _by_head(scores, group, strip)[..., piece.columns].masked_fill_(piece.hidden, fill)


def _keep(p: Tensor, work: Work, tile_number: int) -> Tensor:
    """The dropout of one tile, the same each time it is asked for: 0 or 1 / (1 - dropout)."""
    generator = torch.Generator(p.device).manual_seed(work.seed + tile_number)
    keep = torch.empty_like(p).bernoulli_(1 - work.dropout, generator=generator)
    return keep.div_(1 - work.dropout)


def _add_bias_grad(
    d_bias: Tensor, ds: Tensor, group: Group, strip: Strip, tile: Tile, shape: torch.Size, key_heads: int
) -> None:
    heads = (key_heads, shape[1] // key_heads) if d_bias.shape[1] > 1 else (1, 1)
    target = d_bias.unflatten(1, heads)
    offset = 0
    for part in tile.keys:
        piece = _by_head(ds, group, strip)[..., offset : offset + part.stop - part.start]
        where = (group.items, group.key_heads, group.of_group, strip.rows, part)
        # An axis that the bias broadcasts over is summed over.
        summed = [axis for axis in range(5) if target.shape[axis] == 1]
        at = tuple(slice(None) if axis in summed else where[axis] for axis in range(5))
        target[at] += piece.sum(summed, keepdim=True) if summed else piece
        offset += part.stop - part.start
