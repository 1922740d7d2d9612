"""A mask as words, numbers and tensors: what an operator of torch takes as arguments and a compiled graph can carry.

    >>> from rearview import causal, window
    >>> text, numbers, tensors = encode(causal() & window(3))
    >>> text, numbers
    ('causal window:nn and:mm', [3, 0])
    >>> decode(text, numbers, tensors)
    causal() & window(3)

A word is the name of a family with one letter per field: n for a number, t for a tensor, m for a mask. Masks come
before the word that joins them, so the text is read with a stack; numbers and tensors are taken in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rearview.errors import Unsupported
from rearview.masks.mask import FAMILIES, Mask


def can_encode(mask: Mask) -> bool:
    """Whether every family in the mask has a word."""
    return all([bool(part.word) for part in mask.walk()])


def encode(mask: Mask) -> tuple[str, list[int], list[Tensor]]:
    """The words of a mask, its numbers and its tensors; `Unsupported` where a family has no word."""
    numbers: list[int] = []
    tensors: list[Tensor] = []
    return " ".join(_words(mask, numbers, tensors)), numbers, tensors


def _words(mask: Mask, numbers: list[int], tensors: list[Tensor]) -> list[str]:
    if not mask.word:
        raise Unsupported(f"{mask!r} as an operator's argument", ["its family has no encoding for compiled graphs"])
    values, words, letters = mask._flatten(), [], ""
    for value in values:
        if isinstance(value, Mask):
            words += _words(value, numbers, tensors)
    for value in values:
        if isinstance(value, Mask):
            letters += "m"
        elif isinstance(value, Tensor):
            letters += "t"
            tensors.append(value)
        else:
            letters += "n"
            numbers.append(value)  # pyright: ignore[reportArgumentType]
    return [*words, f"{mask.word}:{letters}" if letters else mask.word]


def decode(text: str, numbers: Sequence[int], tensors: Sequence[Tensor]) -> Mask:
    """The mask that `encode` wrote."""
    stack: list[Mask] = []
    number, tensor = iter(numbers), iter(tensors)
    for each in text.split():
        word, _, letters = each.partition(":")
        first = len(stack) - letters.count("m")
        part, stack = iter(stack[first:]), stack[:first]
        values = {"m": part, "t": tensor, "n": number}
        stack.append(FAMILIES[word]._unflatten([next(values[letter]) for letter in letters]))
    (mask,) = stack
    return mask
