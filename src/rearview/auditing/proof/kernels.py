"""Operators that the proof runs by their definition: FlexAttention, the engine `native`, zeros without memory.

>>> import torch
>>> from torch.nn.attention.flex_attention import create_block_mask, flex_attention
>>> from rearview import attend, causal, window
>>> from rearview.auditing.proof import prove
>>> prove(lambda x: attend(x, x, x, mask=causal() & window(2)), torch.randn(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [1, 1, 0], [0, 1, 1]]
>>> mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 3, 3, device="cpu")
>>> flex = lambda x: flex_attention(x[:, None], x[:, None], x[:, None], block_mask=mask)[:, 0]
>>> prove(flex, torch.randn(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [1, 1, 0], [1, 1, 1]]

FlexAttention is no op, but an operator that calls the user's mask_mod and score_mod. The kernel of `native` is one op
that gets its mask as an encoded string.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.call import Call
from rearview.attention.engines import reference
from rearview.masks import Frame
from rearview.masks.encoding import decode


class Definition(NamedTuple):
    """What to run instead of an operator, and what is assumed of the operator then."""

    run: Callable[..., Any]
    assumption: str = ""


def definition_of(func: Any) -> Definition | None:
    """The definition of an operator; None for an operator that runs as it is."""
    if func is torch.ops.aten._efficientzerotensor.default:
        # Forward-mode gradients use zeros without memory, on which ops crash inside of a dispatch mode.
        return Definition(torch.ops.aten.zeros.default)
    if getattr(func, "__name__", "") == "flex_attention" and "higher_order" in type(func).__module__:
        return Definition(_flex, "a BlockMask leaves out no block that its mask_mod shows, and adds none")
    if str(func) == "rearview.attention.default":
        return Definition(_native, "the engine `native` computes its definition, as its conformance tests check")
    return None


@contextmanager
def plain_biases() -> Iterator[None]:
    """Let a CausalBias be made, which is a tensor subclass around memory that nothing reads."""
    module = sys.modules.get("torch.nn.attention.bias")
    if module is None:
        yield
        return

    def new(cls: Any, *sizes: int) -> Tensor:
        with torch._C._DisableTorchDispatch():
            return Tensor.__new__(cls, *sizes)

    module.CausalBias.__new__ = new
    try:
        yield
    finally:
        del module.CausalBias.__new__


def _flex(*args: Any, **kwargs: Any) -> Any:
    from torch._higher_order_ops.flex_attention import math_attention

    return math_attention(*args, **kwargs)


def _native(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    slopes: Tensor | None,
    seed: Tensor | None,
    words: str,
    numbers: list[int],
    data: list[Tensor],
    q_start: int,
    scale: float,
    softcap: float,
    dropout: float,
    batch_invariant: bool,
) -> tuple[Tensor, Tensor | None]:
    """The arguments are those of the op; the tensors of the mask are followed like any other."""
    call = Call(
        query=query,
        key=key,
        value=value,
        mask=decode(words, numbers, data),
        frame=Frame(query.shape[2], key.shape[2], q_start),
        bias=bias if slopes is None else Alibi(slopes),
        scale=scale,
        softcap=softcap or None,
        sinks=sinks,
        dropout=dropout,
        generator=None,
        return_lse=True,
        batch_invariant=batch_invariant,
    )
    return reference.run(call)
