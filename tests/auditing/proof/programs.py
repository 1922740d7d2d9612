"""Small programs for the property test: steps from [batch, time, features] to the same shape, of every kind of op.

A step takes h, a generator for weights, and one of Python's for its structure (masks, permutations, sizes), which is
the same in every run of a program: what it draws are constants.
"""

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[Tensor, torch.Generator, random.Random], Tensor]
STEPS: list[Step] = []


def step(function: Step) -> Step:
    STEPS.append(function)
    return function


def weight(*shape: int, by: torch.Generator) -> Tensor:
    return nn.Parameter(torch.randn(*shape, generator=by, dtype=torch.float64))


def pick(n: int, by: random.Random) -> int:
    return by.randrange(n)


def numbers(count: int, n: int, by: random.Random) -> Tensor:
    return torch.tensor([by.randrange(n) for _ in range(count)])


def order(n: int, by: random.Random) -> Tensor:
    return torch.tensor(by.sample(range(n), n))


def shaped(h: Tensor, width: int, by: torch.Generator) -> Tensor:
    return h @ weight(h.shape[-1], width, by=by)


def some_mask(h: Tensor, by: random.Random) -> Tensor:
    """[T, T], True = heard; a random one, or causal, or with a row that hears nobody."""
    time = h.shape[1]
    kind = pick(4, by)
    if kind == 0:
        return torch.ones(time, time).tril().bool()
    if kind == 1:
        return torch.ones(time, time).tril().triu(-1).bool()
    mask = torch.tensor([[by.random() < 0.5 for _ in range(time)] for _ in range(time)])
    if kind == 2:
        mask |= torch.eye(time).bool()
    return mask


@step
def linear(h, w, s):
    return F.linear(h, weight(h.shape[-1], h.shape[-1], by=w), weight(h.shape[-1], by=w))


@step
def activation(h, w, s):
    return (F.gelu, torch.relu, torch.round, torch.sign, torch.tanh, torch.exp2, torch.sin)[pick(7, s)](h.clamp(-9, 9))


@step
def norm(h, w, s):
    size = h.shape[-1]
    return F.layer_norm(h, (size,), weight(size, by=w)) if pick(2, s) else F.rms_norm(h, (size,))


@step
def eager_attention(h, w, s):
    size = h.shape[-1]
    scores = shaped(h, size, w) @ shaped(h, size, w).transpose(1, 2)
    mask = some_mask(h, s)
    kind = pick(5, s)
    if kind == 0:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif kind == 1:
        scores = scores + torch.zeros(mask.shape, dtype=h.dtype).masked_fill(~mask, float("-inf"))
    elif kind == 2:
        scores = torch.where(mask, scores, -1e30)
    elif kind == 3:
        scores = scores * mask
    else:
        scores = scores / 10 + (1.0 - mask.to(h.dtype)) * torch.finfo(torch.float32).min
    return scores.softmax(dim=-1 if pick(4, s) else 1).nan_to_num() @ h


@step
def fused_attention(h, w, s):
    q, k, v = (shaped(h, 4, w).unflatten(-1, (2, 2)).transpose(1, 2) for _ in range(3))
    kind = pick(4, s)
    mask = some_mask(h, s)
    if kind == 0:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    elif kind == 1:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    elif kind == 2:
        bias = torch.zeros(mask.shape, dtype=h.dtype).masked_fill(~mask, -1e30)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    else:
        out = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], is_causal=True, enable_gqa=True)
    return shaped(out.nan_to_num().transpose(1, 2).flatten(2), h.shape[-1], w)


@step
def linear_attention(h, w, s):
    scores = torch.einsum("btf,bsf->bts", h, shaped(h, h.shape[-1], w))
    return scores.tril(pick(3, s) - 1) @ h


@step
def masked_weights(h, w, s):
    time = h.shape[1]
    mixing = weight(time, time, by=w) * some_mask(h, s)
    return torch.einsum("ts,bsf->btf", mixing, h)


@step
def shift(h, w, s):
    out = torch.zeros_like(h)
    out[:, 1:] = h[:, :-1]
    if pick(2, s):
        out[:, 0].add_(h[:, pick(h.shape[1], s)])
    return out


@step
def writes_through_views(h, w, s):
    out = h.clone(memory_format=torch.contiguous_format)
    turned = out.transpose(1, 2)
    half = turned[:, : max(1, h.shape[2] // 2), ::2]
    half.mul_(h.mean()) if pick(2, s) else half.copy_(torch.ones_like(half))
    flat = out.view(h.shape[0], -1)
    flat[:, -1:] += flat[:, :1]
    return out


@step
def moved(h, w, s):
    time = h.shape[1]
    kind = pick(6, s)
    if kind == 0:
        return h.roll(pick(time, s), dims=1)
    if kind == 1:
        return h.flip(pick(3, s))
    if kind == 2:
        return h[:, order(time, s)]
    if kind == 3:
        return torch.cat([h[:, 1:], h[:, :1] * 2], dim=1)
    if kind == 4:
        return F.pad(h, (0, 0, 2, 0))[:, :time]
    return h.transpose(1, 2).reshape(h.shape)


@step
def running(h, w, s):
    kind = pick(4, s)
    if kind == 0:
        return h.cumsum(pick(3, s))
    if kind == 1:
        return h.cummax(dim=1).values
    if kind == 2:
        return h.clamp(-3, 3).logcumsumexp(dim=1)
    return h.flip(1).cumsum(1).flip(1)


@step
def convolved(h, w, s):
    size = h.shape[-1]
    turned = h.transpose(1, 2)
    dilation = 1 + pick(2, s)
    depthwise = pick(2, s)
    kernel = weight(size, 1 if depthwise else size, 3, by=w)
    groups = size if depthwise else 1
    if pick(2, s):
        turned = F.conv1d(F.pad(turned, (2 * dilation, 0)), kernel, dilation=dilation, groups=groups)
    else:
        turned = F.conv1d(turned, kernel, padding=dilation, dilation=dilation, groups=groups)
    return turned.transpose(1, 2)


@step
def masked_convolution(h, w, s):
    size = h.shape[-1]
    kernel = weight(size, size, 3, by=w) * torch.tensor([1.0, 1.0, 0.0], dtype=h.dtype)
    return F.conv1d(h.transpose(1, 2), kernel, padding=1).transpose(1, 2)


@step
def gate_by_order(h, w, s):
    k = 1 + pick(h.shape[1], s)
    if pick(2, s):
        chosen = h.sum(-1).topk(k, dim=1).indices
        gate = torch.zeros(h.shape[:2], dtype=h.dtype).scatter(1, chosen, 1.0)
        return h * gate[..., None]
    return h.sort(dim=1 + pick(2, s)).values


@step
def per_token_choice(h, w, s):
    experts = weight(3, h.shape[-1], h.shape[-1], by=w)
    scores, chosen = shaped(h, 3, w).softmax(-1).topk(2, dim=-1)
    picked = experts[chosen]
    return (scores[..., None] * torch.einsum("btf,btkfg->btkg", h, picked)).sum(2)


@step
def where_gate(h, w, s):
    return torch.where(h.cumsum(1).mean(-1, keepdim=True) > 0, h, h.detach() * 2 + 1)


@step
def tainted_fill(h, w, s):
    scores = (h @ h.transpose(1, 2)).masked_fill(~some_mask(h, s), float("-inf"))
    scores = scores.masked_fill((h.sum(-1) > 0)[:, None, :], -1e9)
    return scores.softmax(-1).nan_to_num() @ h


@step
def gathered(h, w, s):
    time = h.shape[1]
    if pick(2, s):
        index = numbers(h.numel(), time, s).view(h.shape)
        return h.gather(1, index)
    index = (h.sum(-1, keepdim=True).abs() * 7).long() % time
    return h.gather(1, index.expand_as(h)) if pick(2, s) else h[torch.arange(h.shape[0])[:, None], index[..., 0]]


@step
def scattered(h, w, s):
    time = h.shape[1]
    kind = pick(5, s)
    index = numbers(time, time, s)
    if kind == 0:
        return h.index_add(1, index, h.flip(1))
    if kind == 1:
        return h.index_copy(1, order(time, s)[:2], h[:, :2] * 3)
    if kind == 2:
        out = h.clone()
        out[:, index[:2]] = h[:, -2:] + 1
        return out
    if kind == 3:
        return torch.zeros_like(h).scatter_add(1, index[None, :, None].expand_as(h), h)
    by_value = (h.sum(-1).abs() * 5).long() % time
    return torch.zeros_like(h).scatter_add(1, by_value[..., None].expand_as(h), h)


@step
def embedded(h, w, s):
    table = weight(5, h.shape[-1], by=w)
    tokens = (h.sum(-1).abs() * 3).long() % 5
    return F.embedding(tokens, table) if pick(2, s) else F.one_hot(tokens, 5).to(h.dtype) @ table


@step
def pooled(h, w, s):
    kind = pick(6, s)
    if kind == 0:
        return h - h.mean(dim=pick(3, s), keepdim=True)
    if kind == 1:
        return h * h.amax(dim=1, keepdim=True).detach()
    if kind == 2:
        return F.group_norm(h.transpose(1, 2), 1).transpose(1, 2)
    if kind == 3:
        return F.batch_norm(h.transpose(1, 2), None, None, training=True).transpose(1, 2)
    if kind == 4:
        return h + h.argmax(dim=1, keepdim=True)
    return F.pad(h, (0, 0, 2, 0)).unfold(1, 3, 1).mean(-1)


@step
def recurrent(h, w, s):
    state = torch.zeros(h.shape[0], h.shape[2], dtype=h.dtype)
    out = []
    for t in range(h.shape[1]):
        state = torch.tanh(state * 0.5 + h[:, t])
        out.append(state)
    return torch.stack(out, dim=1)


@step
def cached(h, w, s):
    """A cache larger than the sequence, filled one by one and read behind a mask."""
    batch, time, size = h.shape
    cache = torch.zeros(batch, time + 2, size, dtype=h.dtype)
    out = torch.empty_like(h)
    for t in range(time):
        cache[:, t] = h[:, t]
        seen = torch.arange(time + 2) <= t
        scores = (cache @ h[:, t].unsqueeze(-1))[..., 0].masked_fill(~seen, float("-inf"))
        out[:, t] = (scores.softmax(-1)[:, None] @ cache)[:, 0]
    return out


@step
def strided(h, w, s):
    h = h.contiguous()
    batch, time, size = h.shape
    if time < 3:
        return h
    windows = h.as_strided((batch, time - 2, 3, size), (time * size, size, size, 1))
    return F.pad(windows.amax(2), (0, 0, 2, 0))


@step
def regrouped(h, w, s):
    """Chunks of two, each with its mean: the second of a chunk is heard by the first."""
    time = h.shape[1]
    padded = F.pad(h, (0, 0, 0, time % 2)).unflatten(1, (-1, 2))
    return (padded - padded.mean(2, keepdim=True)).flatten(1, 2)[:, :time]


def chosen_expert(h: Tensor, by: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens [N, F] and the expert, of 3, of each."""
    flat = h.flatten(0, 1)
    return flat, shaped(flat, 3, by).argmax(-1)


@step
def experts_in_a_loop(h, w, s):
    flat, expert = chosen_expert(h, w)
    out = torch.zeros_like(flat)
    kind = pick(3, s)
    for e in range(3):
        matrix = weight(h.shape[-1], h.shape[-1], by=w)
        if kind == 0:
            (at,) = torch.where(expert == e)
            out.index_add_(0, at, torch.relu(flat[at] @ matrix))
        elif kind == 1:
            mask = expert == e
            out[mask] = F.linear(flat[mask], matrix)
        else:
            at = (expert == e).nonzero()[:, 0]
            out[at] += F.layer_norm(flat[at], (h.shape[-1],)) * 2
    return out.view(h.shape)


@step
def experts_sorted(h, w, s):
    flat, expert = chosen_expert(h, w)
    way = expert.argsort(stable=True)
    rows = flat[way] * weight(3, h.shape[-1], by=w)[expert[way]]
    if pick(2, s):
        # Where a row stands after sorting depends on everybody.
        rows = rows + torch.arange(len(rows), dtype=h.dtype)[:, None]
    if pick(2, s):
        back = torch.empty_like(way)
        back[way] = torch.arange(len(way))
        return rows[back].view(h.shape)
    return torch.zeros_like(flat).index_add(0, way, rows).view(h.shape)


@step
def experts_that_meet(h, w, s):
    """What is done to the chosen rows depends on how many there are, or on all of them."""
    flat, expert = chosen_expert(h, w)
    out = flat.clone()
    kind = pick(4, s)
    for e in range(2):
        (at,) = torch.where(expert == e)
        rows = flat[at]
        if kind == 0:
            out.index_add_(0, at, rows.sum(0, keepdim=True).expand(len(at), -1))
        elif kind == 1:
            out.index_add_(0, at, rows.cumsum(0))
        elif kind == 2:
            out.index_add_(0, at, rows * rows.shape[0])
        else:
            out[at] = rows.flip(0)
    return out.view(h.shape)
