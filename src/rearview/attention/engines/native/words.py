"""A mask as words, numbers and tensors: what an operator of torch can be given, and a compiled graph can carry.

    >>> from rearview import causal, window
    >>> words, numbers, data = words_of(causal() & window(3))
    >>> words, numbers
    ('causal window and', [3, 0, 2])
    >>> mask_of(words, numbers, data)
    causal() & window(3)

The words stand behind what they join, so they are read with a stack. Numbers and tensors are taken in order.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.attention.engines.native.ranges import Ranges, ranges_of
from rearview.errors import Unsupported
from rearview.masks import Frame, Mask, Spans
from rearview.masks.behind import Behind
from rearview.masks.combine import And, Not, Or, PerHead
from rearview.masks.families import Causal, Chunks, Full, Prefix, Window
from rearview.masks.packing import Documents, Padding, RealKeys

JOINED = {"and": And, "or": Or, "per_head": PerHead}
WITH_DATA = {"prefixes": Prefix, "documents": Documents, "padding": Padding, "real": RealKeys}

# Layers of a compiled model ask with the same mask one after another, and so does backward.
REMEMBERED = 16
_one_at_a_time = threading.Lock()
_remembered: dict[tuple[str, tuple[int, ...], Frame], tuple[list[Tensor], Spans]] = {}


def has_words(mask: Mask) -> bool:
    if isinstance(mask, (And, Or, PerHead)):
        return all(has_words(part) for part in mask.parts)
    if isinstance(mask, (Not, Behind)):
        return has_words(mask.part)
    return isinstance(mask, (Full, Causal, Window, Prefix, Chunks, Documents, Padding, RealKeys))


def words_of(mask: Mask) -> tuple[str, list[int], list[Tensor]]:
    """Words, numbers, tensors."""
    numbers: list[int] = []
    data: list[Tensor] = []
    return " ".join(_words(mask, numbers, data)), numbers, data


def _words(mask: Mask, numbers: list[int], data: list[Tensor]) -> list[str]:
    if isinstance(mask, (And, Or, PerHead)):
        words = [word for part in mask.parts for word in _words(part, numbers, data)]
        numbers.append(len(mask.parts))
        return [*words, "and" if isinstance(mask, And) else "or" if isinstance(mask, Or) else "per_head"]
    if isinstance(mask, Not):
        return [*_words(mask.part, numbers, data), "not"]
    if isinstance(mask, Behind):
        words = _words(mask.part, numbers, data)
        data.append(mask.by)
        return [*words, "behind"]
    if isinstance(mask, Window):
        numbers += [mask.back, mask.ahead]
        return ["window"]
    if isinstance(mask, Prefix) and isinstance(mask.lengths, Tensor):
        data.append(mask.lengths)
        return ["prefixes"]
    if isinstance(mask, Prefix):
        numbers.append(mask.lengths)  # pyright: ignore[reportArgumentType]
        return ["prefix"]
    if isinstance(mask, Chunks):
        numbers.append(mask.size)
        return ["chunks"]
    if isinstance(mask, Documents):
        data.append(mask.ids)
        return ["documents"]
    if isinstance(mask, Padding):
        data.append(mask.lengths)
        return ["padding"]
    if isinstance(mask, RealKeys):
        data.append(mask.real)
        return ["real"]
    if isinstance(mask, (Causal, Full)):
        return ["causal" if isinstance(mask, Causal) else "full"]
    raise Unsupported(f"{mask!r} as an operator's argument", ["there are no words for it"])


def mask_of(words: str, numbers: Sequence[int], data: Sequence[Tensor]) -> Mask:
    """The mask that `words_of` said."""
    stack: list[Mask] = []
    number, tensor = iter(numbers), iter(data)
    for word in words.split():
        if word in JOINED:
            count = next(number)
            parts = [stack.pop() for _ in range(count)][::-1]
            stack.append(JOINED[word](parts))
        elif word == "not":
            stack.append(Not(stack.pop()))
        elif word == "behind":
            stack.append(Behind(stack.pop(), next(tensor)))
        elif word in WITH_DATA:
            stack.append(WITH_DATA[word](next(tensor)))
        elif word == "window":
            stack.append(Window(next(number), next(number)))
        elif word == "prefix":
            stack.append(Prefix(next(number)))
        elif word == "chunks":
            stack.append(Chunks(next(number)))
        else:
            stack.append({"causal": Causal, "full": Full}[word]())
    (mask,) = stack
    return mask


def ranges_in(words: str, numbers: Sequence[int], data: Sequence[Tensor], frame: Frame, key_heads: int) -> Ranges:
    """The ranges of a mask that came as words. The same words with equal data are worked out once."""
    asked = (words, tuple(numbers), frame)
    with _one_at_a_time:
        known = _remembered.pop(asked, None)
        if known is None or not all(torch.equal(one, other) for one, other in zip(known[0], data, strict=True)):
            spans = mask_of(words, numbers, data).spans_in(frame, torch.device("cpu"))
            # Copies: the caller may write other numbers into its own.
            known = ([each.clone() for each in data], spans)
        _remembered[asked] = known
        while len(_remembered) > REMEMBERED:
            del _remembered[next(iter(_remembered))]
        return ranges_of(known[1], key_heads)
