"""What the kernel reads of a mask: its ranges in memory, made once for a mask and a frame.

>>> from rearview import causal
>>> ranges_of(causal().spans(3), key_heads=2).ends.flatten().tolist()
[1, 2, 3]
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from rearview.attention.call import Call
from rearview.attention.pages import Pages
from rearview.masks import Frame, Spans
from rearview.masks.encoding import decode

CPU = torch.device("cpu")


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


def ranges_for(call: Call, key_heads: int) -> Ranges:
    """What the kernel reads of the call's mask. The call may be without its tensors."""
    if call.hears_everything:
        return one_range(0, call.frame.k_len)
    if call.pages is not None:
        return _ranges_in_pages(call, call.pages, key_heads)
    return ranges_of(call.mask.spans_in(call.frame, CPU), key_heads)


def _ranges_in_pages(call: Call, pages: Pages, key_heads: int) -> Ranges:
    if call.frame.q_len == 1:
        # A step: without building the ranges of the mask, which change at every step.
        if pages.is_even and (heard := call.simplified.one_range(call.frame)):
            return one_range(*heard, keys=keys_to_name(call.query, call.frame.k_len))
        found = [call.mask.one_range(Frame(1, length, length - 1)) for length in pages.lengths]
        if all(found):
            edges = torch.tensor(found, dtype=torch.int32, device="cpu").view(-1, 2, 1, 1, 1)
            keys, lengths = keys_to_name(call.query, call.frame.k_len), pages.lengths_tensor.view(-1, 1, 1)
            return _one_range_each(edges[:, 0], edges[:, 1], keys, lengths)
    spans = call.placed.spans_in(call.frame, CPU)
    if pages.is_even or not spans.some_key_unheard:
        return ranges_of(spans, key_heads)
    # That an item has fewer keys than another is said by its length.
    there = torch.arange(call.frame.k_len) < pages.lengths_tensor.view(-1, 1, 1)
    every = bool((spans.heard_keys | ~there).all())
    return Ranges.of(spans.starts, spans.ends, None) if every else ranges_of(spans, key_heads)


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
def one_range(start: int, end: int, keys: int | None = None) -> Ranges:
    """Every query hears these keys: what most steps with a cache are, at another length each.

    With `keys`, their number, the kernel is told that no query hears the others.
    """
    edges = torch.tensor([start, end], dtype=torch.int32, device="cpu").view(2, 1, 1, 1, 1)
    return _one_range_each(edges[0], edges[1], keys)


def _one_range_each(starts: Tensor, ends: Tensor, keys: int | None, lengths: Tensor | None = None) -> Ranges:
    """One range for each batch item. The kernel knows that item b has no more than `lengths[b]` keys."""
    if keys is None:
        return Ranges.of(starts, ends, None)
    key = torch.arange(keys, device="cpu")
    heard = (key >= starts[..., 0]) & (key < ends[..., 0])
    unheard = ~heard if lengths is None else ~heard & (key < lengths)
    return Ranges.of(starts, ends, heard if bool(unheard.any()) else None)


def keys_to_name(query: Tensor, keys: int) -> int | None:
    """The number of keys, where the kernel must know which of them a step does not hear; otherwise None.

    In bfloat16 it reads values in pairs, and batch-invariant in whole tiles. In other dtypes it reads what is heard and
    nothing else, and is faster if it need not ask.
    """
    return keys if query.dtype == torch.bfloat16 else None


# The layers of a compiled model ask with the same mask one after another, and so does backward.
REMEMBERED = 16
_one_at_a_time = threading.Lock()
_remembered: dict[tuple[str, tuple[int, ...], Frame], tuple[list[Tensor], Spans]] = {}


def ranges_in(text: str, numbers: Sequence[int], tensors: Sequence[Tensor], frame: Frame, key_heads: int) -> Ranges:
    """The ranges of an encoded mask. The same text with equal numbers and tensors is worked out once."""
    asked = (text, tuple(numbers), frame)
    with _one_at_a_time:
        known = _remembered.pop(asked, None)
        if known is None or not all(torch.equal(one, other) for one, other in zip(known[0], tensors, strict=True)):
            spans = decode(text, numbers, tensors).spans_in(frame, torch.device("cpu"))
            # Copies: the caller may write into its own tensors.
            known = ([each.clone() for each in tensors], spans)
        _remembered[asked] = known
        while len(_remembered) > REMEMBERED:
            del _remembered[next(iter(_remembered))]
        return ranges_of(known[1], key_heads)
