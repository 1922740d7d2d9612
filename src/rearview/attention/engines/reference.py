"""The definition, dense and plain: all other engines are compared with it. Give it float64 for a float64 answer.

>>> import torch
>>> from rearview import attend
>>> x = torch.eye(3, dtype=torch.float64)
>>> attend(x, x, x, engine="reference")[0].tolist()    # position 0 hears itself alone
[1.0, 0.0, 0.0]
"""

import torch
from torch import Tensor

from rearview.attention.arguments import without_autocast
from rearview.attention.call import Call
from rearview.attention.sinks import counted_in
from rearview.drawing.cells import in_bytes

name = "reference"
summary = "the definition, dense, in float64 where the inputs are float64"
where = "anywhere"


def refusals(call: Call) -> list[str]:
    return ["its matrix products add up in an order that depends on the sizes"] if call.batch_invariant else []


def reason_to_take(call: Call) -> str | None:
    if call.has_tangents:
        return "it alone has forward-mode derivatives"
    return "it copies the pages of each item together, and no other engine can read them here" if call.pages else None


def reason_not_taken(call: Call, taken: str) -> str:
    return f"it is the definition, which is not optimized, and holds {in_bytes(memory(call))} of scores"


def memory(call: Call) -> int:
    return 3 * call.batch * call.heads * call.frame.q_len * call.frame.k_len * call.work_dtype.itemsize


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    call = call.gathered()
    weights, lse = weights_and_lse(call)
    if call.dropout:
        keep = torch.rand(weights.shape, device=call.device, generator=call.generator) >= call.dropout
        weights = weights * keep / (1 - call.dropout)
    _, value = call.shielded()
    # [batch, key head, queries of its group, dim]: one product serves the whole group.
    groups = (call.key_heads, call.queries_per_key_head)
    out = _product(weights.unflatten(1, groups).flatten(2, 3), value.to(weights.dtype))
    out = out.unflatten(2, (-1, weights.shape[2])).flatten(1, 2).to(call.query.dtype)
    return counted_in(call.sinks, out, lse)


def weights_and_lse(call: Call, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Softmax weights [batch, heads, rows, k_len] and their log-sum-exp, in the work dtype; all rows unless given."""
    scores = masked_scores(call, rows)
    # A row that hears nothing has the maximum -inf; 0 in its place keeps -inf - max from being NaN.
    top = scores.detach().amax(-1, keepdim=True)
    empty = top == -torch.inf
    top = top.masked_fill(empty, 0)
    exponentials = (scores - top).exp()
    total = exponentials.sum(-1, keepdim=True)
    weights = exponentials / total.masked_fill(empty, 1)
    lse = (total.masked_fill(empty, 1).log() + top).masked_fill(empty, -torch.inf)
    return weights, lse.squeeze(-1)


def masked_scores(call: Call, rows: Tensor | None = None) -> Tensor:
    """softcap(scale x Q K^T) + bias, and -inf where the mask forbids."""
    key, _ = call.shielded()
    query, key = call.query.to(call.work_dtype), key.to(call.work_dtype)
    bias = call.dense_bias()
    if rows is not None:
        query = query[:, :, rows]
        bias = bias[:, :, rows] if bias is not None and bias.shape[2] > 1 else bias
    groups = (call.key_heads, call.queries_per_key_head)
    scores = _product(query.unflatten(1, groups).flatten(2, 3), key.transpose(-1, -2))
    scores = scores.unflatten(2, (-1, query.shape[2])).flatten(1, 2) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    return scores.masked_fill(~call.visible(rows), -torch.inf)


def _product(a: Tensor, b: Tensor) -> Tensor:
    # Autocast would round both to half precision; the definition is computed in the work dtype.
    with without_autocast(a.device):
        return torch.matmul(a, b)
