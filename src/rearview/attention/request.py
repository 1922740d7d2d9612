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

import torch
from torch import Tensor

from rearview.attention.arguments import as_autocast, check_mask, check_tensors, checked_bias, finite_number
from rearview.attention.bias import Alibi
from rearview.masks import Frame, Mask, Spans
from rearview.masks.families import Full

# So many ranges are cut out of the keys of one query; more are not worth so many pieces.
FEW_RANGES = 4


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
    # The mask without what changes nothing in this frame: `causal() & window(4096)` over 8 keys is causal.
    simplified: Mask

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
        check_tensors(query, key, value)
        query, key, value = as_autocast(query, key, value)
        # Two axes are one head of one sequence, three are a batch of one head.
        if query.ndim < 4:
            query, key, value = (t[None, None] if t.ndim == 2 else t.unsqueeze(1) for t in (query, key, value))
        frame = Frame.of(query.shape[2], key.shape[2], q_start)
        check_mask(mask, frame, batch=query.shape[0], heads=query.shape[1])
        return cls(
            query,
            key,
            value,
            mask,
            frame,
            checked_bias(bias, query, key),
            1 / math.sqrt(query.shape[-1]) if scale is None else finite_number(scale, "scale"),
            None if softcap is None else finite_number(softcap, "softcap", above=0.0),
            finite_number(dropout, "dropout", at_least=0.0, below=1.0),
            generator,
            return_lse,
            mask._simplify(frame),
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
        if not torch.is_grad_enabled():
            return False
        if self.query.requires_grad or self.key.requires_grad or self.value.requires_grad:
            return True
        return isinstance(self.bias, Tensor) and self.bias.requires_grad

    @property
    def work_dtype(self) -> torch.dtype:
        """What scores and sums are computed in."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    @property
    def hears_everything(self) -> bool:
        return isinstance(self.simplified, Full)

    @property
    def spans(self) -> Spans | None:
        """The mask's ranges, on the CPU, where engines plan; None when it has none.

        None inside a compiled graph too: how many ranges there are depends on values that it cannot read.
        """
        if torch.compiler.is_compiling() or not self.mask.has_ranges:
            return None
        return self.mask.spans_in(self.frame, torch.device("cpu"))

    @property
    def heard_ranges(self) -> tuple[tuple[slice, ...], ...] | None:
        """What a single query hears, for each item (once, where it is the same for all), the same for every head.

        A step with a cache is one query: what it hears is cut out of the keys, and needs no mask any more. None where
        that cannot be done, or is not worth the pieces.
        """
        if self.frame.q_len != 1 or self.mask.heads is not None:
            return None
        spans = self.spans
        if spans is None or spans.most_ranges > FEW_RANGES or spans.some_row_empty:
            return None
        return spans.first_rows

    def visible(self, rows: Tensor | None = None) -> Tensor:
        """The dense mask on the device: bool [batch or 1, heads or 1, rows, k_len]."""
        return self.mask.visible_in(self.frame, self.device, rows)

    @property
    def heard_keys(self) -> Tensor | None:
        """Bool [batch or 1, key heads or 1, k_len], or None when every key is heard by some query."""
        if self.hears_everything and self.frame.q_len:
            return None
        spans = self.spans
        if spans is not None:
            if not spans.some_key_unheard:
                return None
            heard = spans.heard_keys.to(self.device)
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
        heard = self.heard_keys
        if heard is None:
            return self.key, self.value
        unheard = ~heard.unsqueeze(-1)
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
        queries = f"{self.frame.q_len} {'query' if self.frame.q_len == 1 else 'queries'}"
        shape = f"{self.batch} x {self.heads} heads x {queries}"
        grouped = f" ({self.key_heads} key heads)" if self.key_heads != self.heads else ""
        return f"{shape} over {self.frame.k_len} keys{grouped}, dim {self.query.shape[-1]}, {dtype}, {self.device.type}"
