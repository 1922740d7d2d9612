"""One call of `attend`, checked: what every engine gets, and what the planner decides on.

>>> import torch
>>> from rearview import causal
>>> from rearview.attention.request import Request
>>> q = torch.zeros(1, 8, 16, 64)
>>> k = torch.zeros(1, 2, 16, 64)
>>> Request.of(q, k, k, mask=causal()).queries_per_key_head
4
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.errors import BadArgument
from rearview.masks import Frame, Mask, Spans
from rearview.masks.families import Full

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Request:
    """`query` [batch, heads, q_len, dim]; `key` and `value` [batch, key heads, k_len, dim]."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask
    frame: Frame
    bias: Tensor | Alibi | None
    scale: float
    softcap: float | None
    dropout: float
    generator: torch.Generator | None
    return_lse: bool

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Mask,
        q_start: int | None = None,
        bias: Tensor | Alibi | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        return_lse: bool = False,
    ) -> Request:
        _check_tensors(query, key, value)
        query, key, value = _as_autocast(query, key, value)
        # Two axes are one head of one sequence, three are a batch of one head.
        query, key, value = (t.view((1, 1, *t.shape) if t.ndim == 2 else (t.shape[0], -1, *t.shape[-2:]))
                             if t.ndim < 4 else t for t in (query, key, value))  # fmt: skip
        frame = Frame.of(query.shape[2], key.shape[2], q_start)
        _check_mask(mask, frame, batch=query.shape[0], heads=query.shape[1])
        if scale is None:
            scale = 1 / math.sqrt(query.shape[-1])
        return cls(
            query,
            key,
            value,
            mask,
            frame,
            _checked_bias(bias, query, key),
            _number(scale, "scale"),
            None if softcap is None else _number(softcap, "softcap", above=0.0),
            _number(dropout, "dropout", at_least=0.0, below=1.0),
            generator,
            return_lse,
        )

    @property
    def batch(self) -> int:
        return self.query.shape[0]

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    @property
    def key_heads(self) -> int:
        return self.key.shape[1]

    @property
    def queries_per_key_head(self) -> int:
        return self.heads // self.key_heads

    @property
    def device(self) -> torch.device:
        return self.query.device

    @property
    def needs_grad(self) -> bool:
        tensors = (self.query, self.key, self.value, self.bias)
        return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)

    @property
    def work_dtype(self) -> torch.dtype:
        """What scores and sums are computed in."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    @cached_property
    def simplified(self) -> Mask:
        """The mask without what changes nothing in this frame: `causal() & window(4096)` over 8 keys is causal."""
        return self.mask._simplify(self.frame)

    @property
    def hears_everything(self) -> bool:
        return isinstance(self.simplified, Full)

    @cached_property
    def spans(self) -> Spans | None:
        """The mask's ranges, or None when it has none. On the CPU: engines plan there."""
        return self.mask.spans_in(self.frame, torch.device("cpu")) if self.mask.has_ranges else None

    def visible(self, rows: Tensor | None = None) -> Tensor:
        """The dense mask on the device: bool [batch or 1, heads or 1, rows, k_len]."""
        return self.mask.visible_in(self.frame, self.device, rows)

    @cached_property
    def heard_keys(self) -> Tensor | None:
        """Bool [batch or 1, key heads or 1, k_len], or None when every key is heard by some query."""
        if self.hears_everything and self.frame.q_len:
            return None
        if self.spans is not None and not torch.compiler.is_compiling():
            if not self.spans.some_key_unheard:
                return None
            heard = self.spans.heard_keys.to(self.device)
        else:
            # Strips bound the memory; a compiled graph takes the one dense tensor that it fuses anyway.
            step = self.frame.q_len if torch.compiler.is_compiling() else 1024
            rows = torch.arange(self.frame.q_len, device=self.device).split(max(1, step))
            heard = torch.stack([self.visible(strip).any(-2) for strip in rows]).any(0)
        if heard.shape[1] > 1:
            heard = heard.unflatten(1, (self.key_heads, self.queries_per_key_head)).any(2)
        return heard

    def shielded(self) -> tuple[Tensor, Tensor]:
        """Key and value with zeros where no query may hear them: there they may hold NaN, and 0 x NaN is NaN."""
        if self.heard_keys is None:
            return self.key, self.value
        unheard = ~self.heard_keys.unsqueeze(-1)
        return self.key.masked_fill(unheard, 0), self.value.masked_fill(unheard, 0)

    def dense_bias(self) -> Tensor | None:
        """The bias as a tensor that broadcasts to [batch, heads, q_len, k_len]."""
        if isinstance(self.bias, Alibi):
            queries = torch.arange(self.frame.q_start, self.frame.q_end, device=self.device)
            tile = self.bias.tile(queries, torch.arange(self.frame.k_len, device=self.device))
            return tile.unsqueeze(0).to(self.work_dtype)
        return self.bias

    def describe(self) -> str:
        dtype = str(self.query.dtype).removeprefix("torch.")
        shape = f"{self.batch} x {self.heads} heads x {self.frame.q_len} queries"
        grouped = f" ({self.key_heads} key heads)" if self.key_heads != self.heads else ""
        return f"{shape} over {self.frame.k_len} keys{grouped}, dim {self.query.shape[-1]}, {dtype}, {self.device.type}"


def _check_tensors(query: Any, key: Any, value: Any) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise BadArgument(name, expected="a tensor", came=type(tensor).__name__)
        if tensor.dtype not in FLOATS:
            raise BadArgument(name, expected="float16, bfloat16, float32 or float64", came=tensor.dtype)
        if tensor.ndim not in (2, 3, 4) or tensor.shape[-1] == 0:
            expected = "shape [batch, heads, time, dim] (or [batch, time, dim], or [time, dim])"
            raise BadArgument(name, expected=expected, came=list(tensor.shape))
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if not query.ndim == key.ndim == value.ndim:
        raise BadArgument("query, key, value", expected="the same number of axes", came=shapes)
    if query.device != key.device or query.device != value.device:
        came = f"{query.device}, {key.device}, {value.device}"
        raise BadArgument("query, key, value", expected="tensors on one device", came=came)
    autocast = torch.is_autocast_enabled(query.device.type)
    if not autocast and not query.dtype == key.dtype == value.dtype:
        came = f"{query.dtype}, {key.dtype}, {value.dtype}"
        raise BadArgument("query, key, value", expected="one dtype", came=came, advice="Cast them with .to(dtype).")
    if key.shape[:-1] != value.shape[:-1]:
        raise BadArgument("value", expected="the batch, heads and time of key", came=shapes)
    if query.shape[-1] != key.shape[-1]:
        raise BadArgument(
            "key", expected=f"head dim {query.shape[-1]}, as the query", came=f"{key.shape[-1]}: {shapes}"
        )
    if query.ndim > 2 and query.shape[0] != key.shape[0]:
        raise BadArgument("key", expected=f"batch {query.shape[0]}, as the query", came=f"{key.shape[0]}: {shapes}")
    if query.ndim == 4 and (key.shape[1] == 0 or query.shape[1] % key.shape[1]):
        raise BadArgument(
            "key",
            expected=f"a number of heads that divides the query's {query.shape[1]}",
            came=key.shape[1],
            advice="With fewer key heads, each serves an equal group of query heads.",
        )


def _as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    # What torch does for its own attention, done here so that every engine sees the same numbers.
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)


def _check_mask(mask: Any, frame: Frame, *, batch: int, heads: int) -> None:
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


def _checked_bias(bias: Any, query: Tensor, key: Tensor) -> Tensor | Alibi | None:
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


def _number(
    value: Any,
    argument: str,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    below: float = math.inf,
) -> float:
    bounds = {"above ": above, "at least ": at_least, "below ": below}
    expected = "a finite number" + "".join(
        f", {word}{bound:g}" for word, bound in bounds.items() if math.isfinite(bound)
    )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadArgument(argument, expected=expected, came=repr(value))
    if not (math.isfinite(value) and value > above and at_least <= value < below):
        raise BadArgument(argument, expected=expected, came=value)
    return float(value)
