"""A request without its tensors, and what of it the kernel, an operator and the definition are each told.

>>> import torch
>>> from rearview import causal
>>> from rearview.attention.request import Request
>>> x = torch.zeros(1, 2, 3, 4)
>>> Work.of(Request.of(x, x, x, mask=causal())).for_operator()[2:]
('causal', [], [], 0, 0.5, 0.0, 0.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.engines.native.call import Options
from rearview.attention.engines.native.ranges import Ranges, one_range, ranges_of
from rearview.attention.engines.native.words import words_of
from rearview.attention.request import Request
from rearview.masks import Frame, Mask
from rearview.masks.families import Full

CPU = torch.device("cpu")


@dataclass(eq=False, slots=True)
class Work:
    """The graph keeps this, and must not keep activations alive through it. `softcap` is 0 where there is none.

    Never changed, and not frozen either: see `Options`.
    """

    mask: Mask
    simplified: Mask
    frame: Frame
    alibi: Alibi | None
    scale: float
    softcap: float
    dropout: float
    seed: Tensor | None

    @classmethod
    def of(cls, request: Request) -> Work:
        alibi = request.bias if isinstance(request.bias, Alibi) else None
        return cls(
            request.mask,
            request.simplified,
            request.frame,
            alibi,
            request.scale,
            request.softcap or 0.0,
            request.dropout,
            _seed(request) if request.dropout else None,
        )

    def options(self, key_heads: int) -> Options:
        """For the kernel. Made when it is called: under torch.func and dispatch modes there are no numbers before."""
        if isinstance(self.simplified, Full):
            return self._options(one_range(0, self.frame.k_len), self.frame.q_start)
        return self._options(ranges_of(self.mask.spans_in(self.frame, CPU), key_heads), self.frame.q_start)

    def options_of_step(self, start: int, end: int) -> Options:
        """For one query and the keys [start, end), which are all that it hears. Positions count from the first."""
        return self._options(one_range(0, end - start), self.frame.q_start - start)

    def _options(self, ranges: Ranges, q_start: int) -> Options:
        slopes = None if self.alibi is None else self.alibi.slopes.to(CPU, torch.float32).contiguous()
        seed = 0 if self.seed is None else int(self.seed)
        return Options(ranges, q_start, slopes, self.scale, self.softcap, self.dropout, seed)

    def for_operator(self) -> tuple[Any, ...]:
        """What follows the tensors with gradients in a call of `torch.ops.rearview.attention`."""
        slopes = None if self.alibi is None else self.alibi.slopes.to(CPU)
        rest = (self.frame.q_start, self.scale, self.softcap, self.dropout)
        return slopes, self.seed, *words_of(self.mask), *rest

    def request(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Request:
        """The call again, without its dropout."""
        both = self.alibi if bias is None else bias
        rest = (self.scale, self.softcap or None, 0.0, None, True, self.simplified)
        return Request(query, key, value, self.mask, self.frame, both, *rest)


def _seed(request: Request) -> Tensor:
    generator = request.generator
    if generator is None:
        return torch.randint(2**48, (), device=CPU)
    return torch.randint(2**48, (), generator=generator, device=generator.device)
