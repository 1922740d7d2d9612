"""The kernel as autograd functions: what an eager call with gradients runs."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from rearview.attention.call import Call
from rearview.attention.engines.autograd import gradients_of_definition, refuse_forward_mode, vmap_over_batch
from rearview.attention.engines.native import kernel, op
from rearview.attention.engines.native.ranges import ranges_for


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether these are ordinary dense tensors, with no dispatch mode, functorch transform or forward AD active.

    A fake tensor, a subclass or a tensor of torch.func has no memory to point to, and that of a lazily negated tensor
    holds other numbers. Under a dispatch mode only an operator is visible to the mode, and with forward AD active a
    tangent would be lost.
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


def gradients(call: Call, saved: tuple, grads: tuple[Tensor | None, ...], *, needs_bias: bool) -> tuple:
    """The gradients of query, key, value, bias and sinks; and None for the call."""
    query, key, value, bias, sinks, out, lse = saved
    d_out, d_lse = grads
    if d_out is None and d_lse is None:
        return None, None, None, None, None, None
    d_out = torch.zeros_like(out) if d_out is None else d_out
    tensors = (query, key, value, bias, sinks)
    if torch.is_grad_enabled() or _is_batch(d_out, d_lse):
        # Gradients that must have gradients themselves, or many at once.
        return *gradients_of_definition(call, tensors, d_out, d_lse, engine="native"), None
    if is_plain(*tensors, d_out, d_lse):
        mask = (ranges_for(call, key.shape[1]), kernel.terms_of(call, sinks))
        return *kernel.backward(*tensors[:4], *mask, out, lse, d_out, d_lse, needs_bias=needs_bias), None
    options = op.options_of(call, call.seed)
    found = op.attention_backward(*tensors, out, lse, d_out, d_lse, needs_bias, *options)
    return *found[:3], found[3] if needs_bias else None, None if sinks is None else found[4], None


def _is_batch(*grads: Tensor | None) -> bool:
    """Whether one of them is several in one, as `torch.autograd.grad(..., is_grads_batched=True)` passes them."""
    return any(grad is not None and _functorch.is_legacy_batchedtensor(grad) for grad in grads)


class PlainAttention(torch.autograd.Function):
    """(query, key, value, bias, sinks, call without tensors) -> (out, lse), for tensors that are plain.

    In the older form of such functions: the newer one, which torch.func asks for, takes 50 us more per call.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        call: Call,
    ) -> tuple[Tensor, Tensor]:
        mask = (ranges_for(call, key.shape[1]), kernel.terms_of(call, sinks))
        out, lse = kernel.forward(query, key, value, bias, *mask)
        ctx.call = call
        ctx.save_for_backward(query, key, value, bias, sinks, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple:
        return gradients(ctx.call, ctx.saved_tensors, grads, needs_bias=ctx.needs_input_grad[3])


class NativeAttention(torch.autograd.Function):
    """The same in the form that torch.func and dispatch modes need."""

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, sinks: Tensor | None, call: Call
    ) -> tuple[Tensor, Tensor]:
        if is_plain(query, key, value, bias, sinks):
            return kernel.forward(query, key, value, bias, ranges_for(call, key.shape[1]), kernel.terms_of(call, sinks))
        return op.attention(query, key, value, bias, sinks, *op.options_of(call, call.seed))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.call = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple:
        return gradients(ctx.call, ctx.saved_tensors, grads, needs_bias=ctx.needs_input_grad[3])

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        refuse_forward_mode("native")

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        *tensors, call = inputs

        def apply(query: Tensor, key: Tensor, value: Tensor) -> Any:
            return NativeAttention.apply(query, key, value, None, tensors[4], call)

        return vmap_over_batch(apply, info, in_dims, tensors, mask=call.mask, engine="native")
