"""The kernel as a function that autograd and torch.func know: the eager way, with gradients."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from rearview.attention.engines import second_order
from rearview.attention.engines.native import call, op
from rearview.attention.engines.native.work import Work
from rearview.attention.engines.transforms import mapped, no_forward_mode


def is_plain(*tensors: Tensor | None) -> bool:
    """Are these tensors with memory of their own, and nobody looking over the shoulder?

    A fake tensor, a subclass or a tensor of torch.func has no memory to point to; that of a lazily negated one holds
    other numbers; and what runs under a dispatch mode must be an operator, or the mode would not see it. Nor may a
    tangent be lost, of forward-mode derivatives.
    """
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    if forward_ad._current_level >= 0:
        return False
    for tensor in tensors:
        if tensor is None:
            continue
        if (type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter) or tensor.is_neg():
            return False
    return True


def gradients(work: Work, saved: tuple, d_out: Tensor | None, d_lse: Tensor | None, needs_bias: bool) -> tuple:
    """Of query, key, value, bias; and of the work, which has none."""
    query, key, value, bias, out, lse = saved
    if d_out is None and d_lse is None:
        return None, None, None, None, None
    d_out = torch.zeros_like(out) if d_out is None else d_out
    if torch.is_grad_enabled() or _is_batch(d_out, d_lse):
        # Gradients that must have gradients themselves, or many at once.
        given = (query, key, value, bias, d_out, d_lse)
        options = {"request_of": work.request, "dropout": work.dropout, "engine": "native"}
        return *second_order.gradients(*given, **options), None
    if is_plain(query, key, value, bias, d_out, d_lse):
        given = (query, key, value, bias, work.options(key.shape[1]), out, lse, d_out, d_lse)
        return *call.backward(*given, needs_bias=needs_bias), None
    tensors = (query, key, value, bias, out, lse, d_out, d_lse)
    grads = op.attention_backward(*tensors, needs_bias, *work.for_operator())
    return *grads[:3], grads[3] if needs_bias else None, None


def _is_batch(*grads: Tensor | None) -> bool:
    """Several gradients in one, as `torch.autograd.grad(..., is_grads_batched=True)` hands them down?"""
    return any(grad is not None and _functorch.is_legacy_batchedtensor(grad) for grad in grads)


class PlainAttention(torch.autograd.Function):
    """(query, key, value, bias, work) -> (out, lse), for plain tensors.

    In the older form of such functions: the newer one, which torch.func asks for, takes 50 us more a call.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, work: Work
    ) -> tuple[Tensor, Tensor]:
        out, lse = call.forward(query, key, value, bias, work.options(key.shape[1]))
        ctx.work = work
        ctx.save_for_backward(query, key, value, bias, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple:
        return gradients(ctx.work, ctx.saved_tensors, d_out, d_lse, ctx.needs_input_grad[3])


class NativeAttention(torch.autograd.Function):
    """The same as torch.func and dispatch modes know it."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, work: Work) -> tuple[Tensor, Tensor]:
        if is_plain(query, key, value, bias):
            return call.forward(query, key, value, bias, work.options(key.shape[1]))
        return op.attention(query, key, value, bias, *work.for_operator())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.work = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple:
        return gradients(ctx.work, ctx.saved_tensors, d_out, d_lse, ctx.needs_input_grad[3])

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        no_forward_mode("native")

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        *tensors, work = inputs

        def apply(query: Tensor, key: Tensor, value: Tensor) -> Any:
            return NativeAttention.apply(query, key, value, None, work)

        return mapped(apply, info, in_dims, tensors, mask=work.mask, engine="native")
