"""What autograd and torch.func ask of an engine whose backward pass is written by hand.

Such an engine has first derivatives only. Derivatives of them go through the definition, which autograd can follow to
any order, at sizes where the dense form is affordable. `torch.func.vmap` folds its axis into the batch. There is no
forward mode.

>>> import torch
>>> from rearview import attend
>>> x = torch.ones(1, 1, 2, 1, dtype=torch.float64, requires_grad=True)
>>> bool(torch.autograd.gradgradcheck(lambda x: attend(x, x, x, engine="blocks"), x))
True
>>> x = torch.randn(3, 1, 2, 4, 8)
>>> torch.func.vmap(lambda x: attend(x, x, x, engine="blocks"))(x).shape
torch.Size([3, 1, 2, 4, 8])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines import reference
from rearview.errors import Unsupported
from rearview.masks import Mask

Answer = tuple[Tensor, Tensor]


def gradients_of_definition(
    call: Call,
    tensors: Sequence[Tensor | None],
    d_out: Tensor,
    d_lse: Tensor | None,
    *,
    engine: str,
) -> tuple[Tensor | None, ...]:
    """The gradients of `tensors` (query, key, value, bias, sinks) in `call`, which have gradients themselves."""
    if call.dropout:
        raise Unsupported(
            f"second derivatives of engine {engine!r}",
            ["dropout cannot be drawn again here (torch.func asks for gradients that have gradients, too)"],
            advice="Use engine='reference'.",
        )
    names = ("query", "key", "value", "bias", "sinks")
    given = {name: tensor for name, tensor in zip(names, tensors, strict=False) if tensor is not None}

    def define(*values: Tensor) -> tuple[Tensor, ...]:
        out, lse = reference.run(replace(call, **dict(zip(given, values, strict=True))))  # pyright: ignore[reportArgumentType]
        return (out,) if d_lse is None or lse is None else (out, lse)

    # That of torch.func, because it works inside torch.func's own transforms as well as outside.
    _, pull_back, *_ = torch.func.vjp(define, *given.values())
    found = dict(zip(given, pull_back((d_out,) if d_lse is None else (d_out, d_lse)), strict=True))
    return tuple(found.get(name) for name in names[: len(tensors)])


def vmap_over_batch(
    apply: Callable[[Tensor, Tensor, Tensor], Answer],
    info: Any,
    in_dims: tuple,
    tensors: list[Tensor | None],
    *,
    mask: Mask,
    engine: str,
) -> tuple[Answer, tuple[int, int]]:
    """`apply(query, key, value)` for every index of the mapped axis at once.

    `tensors` are query, key, value, bias and, for an engine that has them, sinks.
    """
    if mask.batch is not None or tensors[3] is not None or any(axis is not None for axis in in_dims[4:]):
        raise Unsupported(
            f"vmap over engine {engine!r}",
            ["the mask or the sinks have a batch axis of their own, or there is a bias"],
            advice="Fold the mapped axis into the batch yourself, or use engine='reference'.",
        )
    # The mapped axis joins the batch: attention is the same for every item.
    size = info.batch_size
    folded = []
    for tensor, axis in zip(tensors[:3], in_dims[:3], strict=True):
        assert tensor is not None, "only the bias and the sinks may be missing"
        whole = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        folded.append(whole.flatten(0, 1))
    out, lse = apply(*folded)
    return (out.unflatten(0, (size, -1)), lse.unflatten(0, (size, -1))), (0, 0)


def refuse_forward_mode(engine: str) -> NoReturn:
    raise Unsupported(
        f"forward-mode derivatives of engine {engine!r}",
        ["it has a backward pass only"],
        advice="Use engine='reference'.",
    )
