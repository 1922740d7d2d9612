"""Masks to and from plain tensors: bool with a stated polarity, additive 0 / -inf.

>>> import torch
>>> from rearview.masks.exchange import from_bool
>>> from_bool(torch.tensor([[False, True], [False, False]]), true_means="blocked").to_bool(2).int().tolist()
[[1, 0], [1, 1]]
"""

import math
import reprlib
from typing import Literal

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported
from rearview.masks.data import check_plain, described, is_number
from rearview.masks.mask import Mask
from rearview.masks.unstructured import dense

# The lowest values that other libraries write for "blocked": finfo(dtype).min of whatever dtype they built it in.
LOWEST = tuple(torch.finfo(dtype).min for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64))


def to_additive(visible: Tensor, *, dtype: torch.dtype = torch.float32, blocked: float = -math.inf) -> Tensor:
    """The mask M of softmax(S + M) from a bool tensor, True = heard: 0 there, `blocked` elsewhere.

    -inf is exact. A finite `blocked` (torch.finfo(dtype).min) is for export only, to libraries that cannot take
    -inf: a row where everything is blocked then becomes mean(V), and in float16 it is not masked at all.

    >>> to_additive(torch.tensor([[True, False], [True, True]])).tolist()
    [[0.0, -inf], [0.0, 0.0]]
    """
    if not isinstance(visible, Tensor) or visible.dtype != torch.bool:
        raise BadArgument("to_additive(visible)", expected="a bool tensor, True = heard", got=described(visible))
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise BadArgument("dtype", expected="a floating point dtype, such as torch.float32", got=dtype)
    if not is_number(blocked):
        raise BadArgument("blocked", expected=f"a negative number that {dtype} can hold", got=reprlib.repr(blocked))
    written = torch.tensor(float(blocked), dtype=torch.float64).to(dtype).double().item()
    # A value that the dtype turns into -inf, 0 or NaN would be a different mask than the one asked for.
    if not (blocked < 0 and written < 0 and math.isinf(blocked) == math.isinf(written)):
        raise BadArgument(
            "blocked",
            expected=f"a negative number that {dtype} can hold",
            got=f"{blocked!r}, which it holds as {written!r}",
            advice="Use -inf, or torch.finfo(dtype).min for a library that needs a finite value.",
        )
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float(blocked))


def from_bool(tensor: Tensor, *, true_means: Literal["heard", "blocked"]) -> Mask:
    """A mask from a bool tensor [query, key] or [batch, head, query, key], whose polarity you state.

    SDPA and FlexAttention write True for a key that is heard, nn.MultiheadAttention for one that is blocked.
    Its rows are at the last positions of its columns.

    >>> from_bool(torch.tensor([[True, False], [True, True]]), true_means="heard")
    dense(<2 x 2 bool, 1 range per row>)
    """
    if not isinstance(true_means, str) or true_means not in ("heard", "blocked"):
        raise BadArgument("true_means", expected="'heard' or 'blocked'", got=reprlib.repr(true_means))
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
        advice = "For numbers that are added to the scores use from_additive(tensor)."
        raise BadArgument("from_bool(tensor)", expected="a bool tensor", got=described(tensor), advice=advice)
    check_plain(tensor, "from_bool(tensor)", expected="a plain tensor")
    _check_axes(tensor, "from_bool(tensor)")
    return dense(tensor if true_means == "heard" else ~tensor)


def from_additive(tensor: Tensor, *, blocked: float | None = None) -> Mask:
    """A mask from numbers that are added to the scores: 0 = heard; -inf or a finfo(dtype).min = blocked.

    Another finite value (-1e9, -1e4) means blocked only if it is given as `blocked`. Any other number is a bias, which
    a mask cannot hold: that raises `Unsupported`.

    >>> from_additive(torch.tensor([[0.0, -1e9], [0.0, 0.0]]), blocked=-1e9).to_bool(2).int().tolist()
    [[1, 0], [1, 1]]
    """
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        advice = "For a bool tensor use from_bool(tensor, true_means=...)."
        got = described(tensor)
        raise BadArgument("from_additive(tensor)", expected="a floating point tensor", got=got, advice=advice)
    check_plain(tensor, "from_additive(tensor)", expected="a plain tensor")
    _check_axes(tensor, "from_additive(tensor)")
    if blocked is not None and not (is_number(blocked) and blocked < 0):
        raise BadArgument("blocked", expected="a negative number", got=reprlib.repr(blocked))
    heard = tensor == 0
    silent = tensor == -math.inf
    for value in LOWEST if blocked is None else (*LOWEST, blocked):
        # In the tensor's own precision, which is where the value was written: in bfloat16 -1e9 is -999292928.
        silent |= tensor == torch.tensor(value, dtype=torch.float64).to(tensor)
    other = tensor[~(heard | silent)]
    if other.numel():
        raise Unsupported(
            "from_additive(tensor): this is more than a mask",
            [f"{other.numel()} of {tensor.numel()} values are neither 0 nor blocked, such as {other[0].item():g}"],
            advice="A bias belongs to attend(bias=...). If the value means blocked, pass blocked=<the value>.",
        )
    return dense(heard)


def _check_axes(tensor: Tensor, argument: str) -> None:
    if tensor.ndim not in (2, 4) or tensor.numel() == 0:
        raise BadArgument(
            argument,
            expected="shape [query, key] or [batch, head, query, key], none of them 0",
            got=list(tensor.shape),
            advice="For three axes add the missing one with tensor[:, None] or tensor[None].",
        )
