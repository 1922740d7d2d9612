"""Matrix products: row i and column j are heard along the contracted axis, except where a factor is certainly 0.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> mix = torch.tril(torch.ones(3, 3))                       # constants: the zeros are certain
>>> prove(lambda x: mix @ x, torch.rand(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [1, 1, 0], [1, 1, 1]]
>>> prove(lambda x: torch.nn.Parameter(mix) @ x, torch.rand(1, 3, 4)).matrix().int().tolist()   # weights may change
[[1, 1, 1], [1, 1, 1], [1, 1, 1]]
"""

import torch
from torch import Tensor

from rearview.auditing.proof.op_call import Heard, OpCall
from rearview.auditing.proof.rules.pointwise import absorb, mark_low
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import align, join, unmark


def product(a: Heard, b: Heard, ndim: int) -> Tensor | None:
    """The sets of a @ b for matrices with any batch axes, [.., i, k] @ [.., k, j]."""
    sets_a = unmark(None if a.sets is None else align(a.sets, a.ndim))
    sets_b = unmark(None if b.sets is None else align(b.sets, b.ndim))
    zero_a = a.equal_to(0) if sets_b is not None else None
    zero_b = b.equal_to(0) if sets_a is not None else None
    return contract(sets_a, zero_b, sets_b, zero_a, ndim)


def contract(
    sets_a: Tensor | None, zero_b: Tensor | None, sets_b: Tensor | None, zero_a: Tensor | None, ndim: int
) -> Tensor | None:
    """sets_a [.., i, k, c], zero_b [.., k, j]; sets_b [.., k, j, c], zero_a [.., i, k]."""
    left = right = None
    if sets_a is not None:
        # [.., i, 1, c], or [.., i, j, c] where zeros of b let some pass and some not
        if zero_b is None:
            left = sets_a.any(dim=-2).unsqueeze(-2)
        else:
            by_row = sets_a.transpose(-1, -2)
            k = zero_b.shape[-2]
            passed = torch.matmul(by_row.expand(*by_row.shape[:-1], k).float(), (~zero_b).float().unsqueeze(-3)) > 0
            left = passed.transpose(-1, -2)
    if sets_b is not None:
        if zero_a is None:
            right = sets_b.any(dim=-3).unsqueeze(-3)
        else:
            k = zero_a.shape[-1]
            sets_b = sets_b.expand(*sets_b.shape[:-3], k, *sets_b.shape[-2:])
            flat = sets_b.flatten(-2).float()
            passed = torch.matmul((~zero_a).float(), flat) > 0
            right = passed.unflatten(-1, sets_b.shape[-2:])
    return join(ndim, left, right)


def lift(item: Heard, at: int) -> Heard:
    """A vector as a matrix."""
    sets = None if item.sets is None else align(item.sets, item.ndim).unsqueeze(at)
    return Heard(item.value.unsqueeze(at), sets)


@rule("mm", "bmm", "matmul", "_int_mm", "_scaled_mm")
def matmul(call: OpCall) -> Tensor | None:
    a, b = call.args[:2]
    if a.ndim >= 2 and b.ndim >= 2:
        sets = product(a, b, call.out.dim())
        return join(call.out.dim(), sets, *scales(call))
    return vectors(call, a, b)


def scales(call: OpCall) -> list[Tensor | None]:
    """The sets of the other tensors of a quantized product, each of which every output hears."""
    return [
        None if item.sets is None else item.sets.flatten(0, -2).any(dim=0)
        for item in call.inputs
        if item is not call.args[0] and item is not call.args[1]
    ]


@rule("mv", "dot", "vdot")
def mv(call: OpCall) -> Tensor | None:
    return vectors(call, call.args[0], call.args[1])


def vectors(call: OpCall, a: Heard, b: Heard) -> Tensor | None:
    rows, columns = a.ndim == 1, b.ndim == 1
    a = lift(a, 0) if rows else a
    b = lift(b, 1) if columns else b
    sets = product(a, b, max(a.ndim, b.ndim))
    if sets is None:
        return None
    if columns:
        sets = sets.any(dim=-2)
    return sets.any(dim=-2 if columns else -3) if rows else sets


@rule("addmm", "baddbmm", "addbmm", "addmv")
def addmm(call: OpCall) -> Tensor | None:
    bias, a, b = call.args[:3]
    ndim = call.out.dim()
    if call.name == "addmv":
        return join(ndim, unmark(bias.sets), vectors(call, a, b))
    sets = product(a, b, max(a.ndim, b.ndim))
    if call.name == "addbmm" and sets is not None:
        sets = sets.any(dim=0)
    if call["beta"] == 0:
        # The first argument is not read, and may be uninitialized.
        return join(ndim, sets)
    # Scores may be added to their mask here: baddbmm(mask, query, key).
    sets = join(ndim, bias.sets, sets)
    return None if sets is None else absorb(call, mark_low(call, sets, bias.low()), [bias])


@rule("linear")
def linear(call: OpCall) -> Tensor | None:
    item, weight, bias = call["input"], call["weight"], call["bias"]
    turned = None if weight.sets is None else align(weight.sets, weight.ndim).transpose(0, -2)
    sets = product(item, Heard(weight.value.t(), turned), item.ndim)
    return join(call.out.dim(), sets, unmark(bias.sets) if bias is not None else None)
