"""Validation of prompts and seeds: each may be one or several.

>>> as_prompts([1, 2], vocab_size=65), as_prompts([[1, 2], [3]], vocab_size=65)
([[1, 2]], [[1, 2], [3]])
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rearview.errors import BadArgument


def as_prompts(prompt: object, *, vocab_size: int) -> list[list[int]]:
    """One or several prompts as lists of token ids."""
    expected = "a list of token ids, or several such lists"
    if isinstance(prompt, Tensor):
        prompt = prompt.tolist()
    if not isinstance(prompt, Sequence) or isinstance(prompt, (str, bytes)):
        advice = "To generate from text, call complete()." if isinstance(prompt, str) else ""
        raise BadArgument("prompt", expected=expected, got=type(prompt).__name__, advice=advice)
    several = [prompt] if not prompt or not isinstance(prompt[0], (Sequence, Tensor)) else prompt
    prompts = [one.tolist() if isinstance(one, Tensor) else one for one in several]
    for number, one in enumerate(prompts):
        name = "prompt" if len(prompts) == 1 else f"prompt[{number}]"
        if not isinstance(one, Sequence) or isinstance(one, (str, bytes)):
            raise BadArgument(name, expected=expected, got=repr(one))
        if not one:
            advice = "To start a new document, give the token that ends a document."
            raise BadArgument(name, expected="at least one token", got="none", advice=advice)
        for id in one:
            if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocab_size:
                raise BadArgument(name, expected=f"ids from 0 to {vocab_size - 1}", got=repr(id))
    return [list(one) for one in prompts]


def as_seeds(seed: int | Sequence[int], count: int) -> list[int]:
    """A seed per sequence, from one seed for all or a list of them."""
    seeds = [seed] * count if isinstance(seed, int) or not isinstance(seed, Sequence) else list(seed)
    if len(seeds) != count:
        raise BadArgument("seed", expected=f"one seed, or a list of {count} seeds", got=f"{len(seeds)} seeds")
    for each in seeds:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < 2**63:
            raise BadArgument("seed", expected="an integer from 0 to 2**63 - 1", got=repr(each))
    return seeds
