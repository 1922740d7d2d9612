"""What the kernel reads of a mask: its ranges in memory, made once for a mask and a frame.

>>> from rearview import causal
>>> ranges_of(causal().spans(3), key_heads=2).ends.flatten().tolist()
[1, 2, 3]
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from rearview.masks import Spans


@dataclass(frozen=True, eq=False)
class Ranges:
    """Tensors that stay where they are, and `packed`, the fields of `rv_call` that point to them."""

    starts: Tensor
    ends: Tensor
    heard: Tensor | None
    packed: tuple[int, ...]

    @classmethod
    def of(cls, starts: Tensor, ends: Tensor, heard: Tensor | None) -> Ranges:
        starts, ends = (_unwrapped(edge).int().contiguous() for edge in (starts, ends))
        strides = (stride if size > 1 else 0 for size, stride in zip(starts.shape[:3], starts.stride(), strict=False))
        packed = (starts.data_ptr(), ends.data_ptr(), *strides, starts.shape[3])
        if heard is None:
            return cls(starts, ends, None, (*packed, 0, 0, 0))
        heard = _unwrapped(heard).to(torch.uint8).contiguous()
        by_item, by_head = (
            stride if size > 1 else 0 for size, stride in zip(heard.shape, heard.stride()[:2], strict=False)
        )
        return cls(starts, ends, heard, (*packed, heard.data_ptr(), by_item, by_head))


def _unwrapped(tensor: Tensor) -> Tensor:
    # A mask that was first asked inside a transform of torch.func remembers what it answered there.
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


# A mask object serves every layer and step of a model; what is made for its ranges goes when they go.
_made: weakref.WeakKeyDictionary[Spans, dict[int, Ranges]] = weakref.WeakKeyDictionary()


def ranges_of(spans: Spans, key_heads: int) -> Ranges:
    """Made once for these ranges. Which keys are heard is said only where some are not."""
    made = _made.get(spans)
    if made is None:
        made = _made[spans] = {}
    # Heads that differ are told apart by the key head that they share.
    own = key_heads if spans.heads > 1 else 1
    if own not in made:
        heard = spans.heard_keys if spans.some_key_unheard else None
        if heard is not None and spans.heads > 1:
            heard = heard.unflatten(1, (key_heads, -1)).any(2)
        made[own] = Ranges.of(spans.starts, spans.ends, heard)
    return made[own]


@lru_cache(maxsize=64)
def one_range(start: int, end: int) -> Ranges:
    """Every query hears these keys: what most steps with a cache are, at another length each."""
    edges = torch.tensor([start, end], dtype=torch.int32, device="cpu").view(2, 1, 1, 1, 1)
    return Ranges.of(edges[0], edges[1], None)
