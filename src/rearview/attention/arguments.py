"""The arguments of a call, checked one by one: what is wrong is said here, not three libraries down.

>>> finite_number(0.5, "dropout", at_least=0.0, below=1.0)
0.5
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.errors import BadArgument
from rearview.masks import Frame, Mask

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_tensors(query: Any, key: Any, value: Any) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise BadArgument(name, expected="a tensor", came=type(tensor).__name__)
        if tensor.dtype not in FLOATS:
            raise BadArgument(name, expected="float16, bfloat16, float32 or float64", came=tensor.dtype)
        if tensor.layout != torch.strided:
            raise BadArgument(name, expected="a plain tensor, of rows in memory", came=tensor.layout)
        if tensor.ndim not in (2, 3, 4) or tensor.shape[-1] == 0:
            expected = "shape [batch, heads, time, dim] (or [batch, time, dim], or [time, dim])"
            raise BadArgument(name, expected=expected, came=list(tensor.shape))
    together = "query, key, value"
    if not query.ndim == key.ndim == value.ndim:
        raise BadArgument(together, expected="the same number of axes", came=_shapes(query, key, value))
    if not query.device == key.device == value.device:
        came = f"{query.device}, {key.device}, {value.device}"
        raise BadArgument(together, expected="tensors on one device", came=came)
    if not query.dtype == key.dtype == value.dtype and not torch.is_autocast_enabled(query.device.type):
        came = f"{query.dtype}, {key.dtype}, {value.dtype}"
        raise BadArgument(together, expected="one dtype", came=came, advice="Cast them with .to(dtype).")
    if key.shape != value.shape and key.shape[:-1] != value.shape[:-1]:
        raise BadArgument("value", expected="the batch, heads and time of key", came=_shapes(query, key, value))
    if query.shape[-1] != key.shape[-1]:
        came = f"{key.shape[-1]}: {_shapes(query, key, value)}"
        raise BadArgument("key", expected=f"head dim {query.shape[-1]}, as the query", came=came)
    if query.ndim > 2 and query.shape[0] != key.shape[0]:
        came = f"{key.shape[0]}: {_shapes(query, key, value)}"
        raise BadArgument("key", expected=f"batch {query.shape[0]}, as the query", came=came)
    if query.ndim == 4 and (key.shape[1] == 0 or query.shape[1] % key.shape[1]):
        raise BadArgument(
            "key",
            expected=f"a number of heads that divides the query's {query.shape[1]}",
            came=key.shape[1],
            advice="With fewer key heads, each serves an equal group of query heads.",
        )


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    return f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    # What torch does for its own attention, done here so that every engine sees the same numbers.
    device = tensors[0].device.type
    # For tensors that are shapes only, torch has no autocast to ask for.
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)


def check_mask(mask: Any, frame: Frame, *, batch: int, heads: int) -> None:
    if not isinstance(mask, Mask):
        advice = "Use full() for no mask."
        if isinstance(mask, Tensor):
            advice = (
                "A tensor does not say whether True means heard or blocked: use dense(tensor) if it means heard, "
                'from_bool(tensor, true_means="blocked") if not, from_additive(tensor) for 0 and -inf.'
            )
        raise BadArgument("mask", expected="a Mask such as causal()", came=type(mask).__name__, advice=advice)
    if mask.batch not in (None, batch):
        raise BadArgument("mask", expected=f"a mask for batch {batch}", came=f"{mask!r}, made for batch {mask.batch}")
    if mask.heads not in (None, heads):
        raise BadArgument("mask", expected=f"a mask for {heads} query heads", came=f"{mask!r}, made for {mask.heads}")
    mask._check(frame)


def checked_bias(bias: Any, query: Tensor, key: Tensor) -> Tensor | Alibi | None:
    if bias is None:
        return None
    batch, heads, q_len = query.shape[:3]
    if isinstance(bias, Alibi):
        if len(bias.slopes) != heads:
            raise BadArgument("bias", expected=f"alibi for {heads} heads", came=f"{len(bias.slopes)} slopes")
        return bias
    expected = f"a float tensor that broadcasts to [{batch}, {heads}, {q_len}, {key.shape[2]}], or alibi(...)"
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        came = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise BadArgument("bias", expected=expected, came=came, advice="Who may be heard goes into mask=.")
    full = (batch, heads, q_len, key.shape[2])
    fits = bias.ndim <= 4 and all(size in (1, whole) for size, whole in zip(bias.shape[::-1], full[::-1], strict=False))
    if not fits:
        raise BadArgument("bias", expected=expected, came=list(bias.shape))
    if bias.device != query.device:
        raise BadArgument("bias", expected=f"a tensor on {query.device}", came=bias.device)
    return bias.view((1,) * (4 - bias.ndim) + bias.shape)


def finite_number(
    value: Any,
    argument: str,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    below: float = math.inf,
) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Comparisons with infinity, which a NaN fails: a compiled graph can make them of a number that it does not know.
    if is_number and -math.inf < value < math.inf and value > above and at_least <= value < below:
        return float(value)
    bounds = {"above": above, "at least": at_least, "below": below}
    limits = "".join(f", {word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))
    raise BadArgument(argument, expected=f"a finite number{limits}", came=repr(value))
