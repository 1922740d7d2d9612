"""What both passes of a call know: the mask, the options, and the strips of work that the mask leaves."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.engines.blocks.schedule import Sizes, Strip, schedule_rule, schedule_spans
from rearview.attention.request import Request
from rearview.masks import Frame, Mask, Spans

# Measured on CPUs (bench/): short rows waste least in small strips, long ones feed the matrix product better.
SHORT_ROW_KEYS = 256
SHORT_ROW_STRIP, LONG_ROW_STRIP = 64, 128
KEYS_PER_TILE = 1024

# A mask object serves every layer and step of a model; its schedule is made once and goes when the ranges go.
_schedules: weakref.WeakKeyDictionary[Spans, dict[tuple[Sizes, torch.device], list[Strip]]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True, eq=False)
class Work:
    """A request without its tensors: the graph keeps this, and must not keep activations alive through it."""

    mask: Mask
    frame: Frame
    spans: Spans | None
    key_heads: int
    alibi: Alibi | None
    scale: float
    softcap: float | None
    dropout: float
    seed: int
    dtype: torch.dtype

    @classmethod
    def of(cls, request: Request) -> Work:
        seed = 0
        if request.dropout:
            device = None if request.generator is None else request.generator.device
            seed = int(torch.randint(2**48, (), generator=request.generator, device=device))
        return cls(
            request.mask,
            request.frame,
            request.spans,
            request.key_heads,
            request.bias if isinstance(request.bias, Alibi) else None,
            request.scale,
            request.softcap,
            request.dropout,
            seed,
            request.work_dtype,
        )

    def request(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Request:
        both = self.alibi if bias is None else bias
        simplified = self.mask._simplify(self.frame)
        options = (self.scale, self.softcap, 0.0, None, True, simplified)
        return Request(query, key, value, self.mask, self.frame, both, *options)

    def strips(self, device: torch.device) -> Iterable[Strip]:
        if self.spans is None:
            return schedule_rule(self.mask, self.frame, Sizes(LONG_ROW_STRIP, KEYS_PER_TILE), device)
        keys_per_row = self.spans.area / max(1, self.spans.batch * self.spans.heads * self.spans.q_len)
        sizes = Sizes(SHORT_ROW_STRIP if keys_per_row <= SHORT_ROW_KEYS else LONG_ROW_STRIP, KEYS_PER_TILE)
        made = _schedules.setdefault(self.spans, {})
        if (sizes, device) not in made:
            made[sizes, device] = schedule_spans(self.spans, sizes, device)
        return made[sizes, device]
