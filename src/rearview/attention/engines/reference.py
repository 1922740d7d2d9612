"""The definition, dense and plain: the judge of all other engines. Give it float64 for a float64 answer.

>>> import torch
>>> from rearview import attend
>>> x = torch.eye(3, dtype=torch.float64)
>>> attend(x, x, x, engine="reference")[0].tolist()    # position 0 hears itself alone
[1.0, 0.0, 0.0]
"""

import torch
from torch import Tensor

from rearview.attention.request import Request

name = "reference"
summary = "the definition, dense; float64 on request"


def refusals(request: Request) -> list[str]:
    return []


def run(request: Request) -> tuple[Tensor, Tensor]:
    weights, lse = weights_and_lse(request)
    if request.dropout:
        keep = torch.rand(weights.shape, device=request.device, generator=request.generator) >= request.dropout
        weights = weights * keep / (1 - request.dropout)
    _, value = request.shielded()
    # [batch, key head, queries of its group, dim]: one product serves the whole group.
    groups = (request.key_heads, request.queries_per_key_head)
    out = _product(weights.unflatten(1, groups).flatten(2, 3), value.to(weights.dtype))
    return out.unflatten(2, (-1, weights.shape[2])).flatten(1, 2).to(request.query.dtype), lse


def weights_and_lse(request: Request, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Softmax weights [batch, heads, rows, k_len] and their log-sum-exp, in the work dtype; all rows unless given."""
    scores = masked_scores(request, rows)
    # A row that hears nothing has the maximum -inf; 0 in its place keeps -inf - max from being NaN.
    top = scores.detach().amax(-1, keepdim=True)
    empty = top == -torch.inf
    top = top.masked_fill(empty, 0)
    exponentials = (scores - top).exp()
    total = exponentials.sum(-1, keepdim=True)
    weights = exponentials / total.masked_fill(empty, 1)
    lse = (total.masked_fill(empty, 1).log() + top).masked_fill(empty, -torch.inf)
    return weights, lse.squeeze(-1)


def masked_scores(request: Request, rows: Tensor | None = None) -> Tensor:
    """softcap(scale x Q K^T) + bias, and -inf where the mask forbids."""
    key, _ = request.shielded()
    query, key = request.query.to(request.work_dtype), key.to(request.work_dtype)
    bias = request.dense_bias()
    if rows is not None:
        query = query[:, :, rows]
        bias = bias[:, :, rows] if bias is not None and bias.shape[2] > 1 else bias
    groups = (request.key_heads, request.queries_per_key_head)
    scores = _product(query.unflatten(1, groups).flatten(2, 3), key.transpose(-1, -2))
    scores = scores.unflatten(2, (-1, query.shape[2])).flatten(1, 2) * request.scale
    if request.softcap is not None:
        scores = request.softcap * torch.tanh(scores / request.softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    return scores.masked_fill(~request.visible(rows), -torch.inf)


def _product(a: Tensor, b: Tensor) -> Tensor:
    # Autocast would round both to half precision; the definition is computed in the work dtype.
    with torch.autocast(a.device.type, enabled=False):
        return torch.matmul(a, b)
