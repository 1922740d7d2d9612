"""Running sums and recurrences: position i hears all positions up to i or, in reverse, from i on.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> prove(lambda x: x.cumsum(dim=1), torch.rand(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [1, 1, 0], [1, 1, 1]]
"""

from typing import Any

from torch import Tensor

from rearview.auditing.proof.op_call import OpCall
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import align, everything, join, over, unmark


def running(sets: Tensor, dim: int, *, reverse: bool = False) -> Tensor:
    """The union with all earlier elements along an axis."""
    if sets.shape[dim] == 1:
        return sets
    if reverse:
        return running(sets.flip(dim), dim).flip(dim)
    return sets.cumsum(dim=dim) > 0


@rule("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "_cummax_helper", "_cummin_helper")
def cumulative(call: OpCall) -> Any:
    item = call.args[0]
    count = 1 if isinstance(call.out, Tensor) else len(call.out)
    sets = unmark(item.sets)
    if sets is None or item.ndim == 0:
        return [sets] * count
    return [running(align(sets, item.ndim), call["dim"] % item.ndim)] * count


@rule("mkldnn_rnn_layer")
def rnn_layer(call: OpCall) -> list[Tensor | None]:
    """One layer and direction of an LSTM or GRU; the input is [time, batch, features]."""
    if call["batch_sizes"]:
        return call.state.all_of(call)
    item = call["input"]
    weights = [call[name] for name in ("weight0", "weight1", "weight2", "weight3")]
    state = [call["hx_"], call["cx_"]]
    own = None if item.sets is None else over(align(item.sets, 3), [2], keepdim=True)
    # [1, batch, 1, c]: the state is [batch, features] or [1, batch, features]
    start = [None if s is None or s.sets is None else over(align(s.sets, 3), [0, 2], keepdim=True) for s in state]
    heard = join(3, own, *start, *(everything(w.sets) for w in weights if w is not None))
    if heard is None:
        return [None] * len(call.out)
    out = running(unmark(heard), 0, reverse=bool(call["reverse"]))
    last = over(out, [0], keepdim=True)
    found: list[Tensor | None] = [out]
    for other in call.out[1:]:
        if not isinstance(other, Tensor):
            # The workspace exists only where gradients are computed.
            continue
        if other.dim() == 2:
            found.append(last[0])
        elif other.dim() == 3:
            found.append(last)
        else:
            found.append(everything(last).view(*[1] * other.dim(), -1))
    return found


@rule("_thnn_fused_gru_cell", "_thnn_fused_lstm_cell")
def cell(call: OpCall) -> list[Tensor | None]:
    """[batch, features] in and out."""
    heard = None
    for item in call.inputs:
        if item.sets is not None:
            sets = over(align(item.sets, item.ndim), [item.ndim - 1], keepdim=True)
            heard = join(2, heard, everything(sets) if item.ndim < 2 else sets)
    return [unmark(heard)] * len(call.out)
