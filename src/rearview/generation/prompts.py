"""Prompts and seeds, checked: one or several, each token an id of the model.

>>> as_prompts([1, 2], vocab_size=65), as_prompts([[1, 2], [3]], vocab_size=65)
([[1, 2]], [[1, 2], [3]])
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rearview.errors import BadArgument
from rearview.generation.sampling import check_seed


def as_prompts(prompt: object, *, vocab_size: int) -> list[list[int]]:
    expected = "a list of token ids, or several such lists"
    if isinstance(prompt, Tensor):
        prompt = prompt.tolist()
    if not isinstance(prompt, Sequence) or isinstance(prompt, (str, bytes)):
        advice = "complete() takes text." if isinstance(prompt, str) else ""
        raise BadArgument("prompt", expected=expected, came=type(prompt).__name__, advice=advice)
    several = [prompt] if not prompt or not isinstance(prompt[0], (Sequence, Tensor)) else prompt
    prompts = [one.tolist() if isinstance(one, Tensor) else one for one in several]
    for number, one in enumerate(prompts):
        name = "prompt" if len(prompts) == 1 else f"prompt[{number}]"
        if not isinstance(one, Sequence) or isinstance(one, (str, bytes)):
            raise BadArgument(name, expected=expected, came=repr(one))
        if not one:
            advice = "To start from nothing, give the token that ends a document."
            raise BadArgument(name, expected="at least one token", came="none", advice=advice)
        for id in one:
            if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocab_size:
                raise BadArgument(name, expected=f"ids from 0 to {vocab_size - 1}", came=repr(id))
    return [list(one) for one in prompts]


def as_seeds(seed: int | Sequence[int], count: int) -> list[int]:
    seeds = [seed] * count if isinstance(seed, int) or not isinstance(seed, Sequence) else list(seed)
    if len(seeds) != count:
        raise BadArgument("seed", expected=f"one seed, or one for each of the {count} sequences", came=len(seeds))
    return [check_seed(each) for each in seeds]
