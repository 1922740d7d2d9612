"""The kernels as an autograd function: what an eager call with gradients runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.autograd import gradients_of_definition
from rearview.attention.engines.hopper import kernel
from rearview.attention.engines.hopper.backward import backward


class HopperAttention(torch.autograd.Function):
    """(query, key, value, bias, sinks, call without tensors, what is known of its kind) -> (out, lse)."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        call: Call,
        known: kernel.Repetitions | None = None,
    ) -> tuple[Tensor, Tensor]:
        out, lse = kernel.forward((query, key, value, bias, sinks), call, known=known)
        ctx.call, ctx.known = call, known
        ctx.save_for_backward(query, key, value, bias, sinks, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple:
        query, key, value, bias, sinks, out, lse = ctx.saved_tensors
        tensors = (query, key, value, bias, sinks)
        d_out, d_lse = grads
        if d_out is None and d_lse is None:
            return None, None, None, None, None, None, None
        d_out = torch.zeros_like(out) if d_out is None else d_out
        if torch.is_grad_enabled():
            # Gradients that must have gradients themselves.
            return *gradients_of_definition(ctx.call, tensors, d_out, d_lse, engine="hopper"), None, None
        d_query, d_key, d_value, d_sinks = backward(tensors, ctx.call, out, lse, d_out, d_lse, known=ctx.known)
        return d_query, d_key, d_value, None, d_sinks, None, None


# `Function.apply` looks for transforms of torch.func first, which takes as long as a launch. For calls outside of them.
apply_plainly = super(torch.autograd.Function, HopperAttention).apply  # pyright: ignore[reportAttributeAccessIssue]
