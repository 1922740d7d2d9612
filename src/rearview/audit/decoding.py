"""A sequence through a model step by step, with its cache: the same outputs should come as in one pass.

>>> import torch
>>> from rearview.audit.decoding import InSteps, has_cache
>>> from rearview.audit.outputs import Output
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=9, context=8, layers=1, heads=1, width=4))
>>> has_cache(model), InSteps((3, 1), Output((), 0, 1))(model, torch.tensor([[1, 2, 3, 4]])).shape
(True, torch.Size([1, 4, 9]))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rearview.audit.outputs import Output
from rearview.audit.signature import first_name, parameter_names
from rearview.audit.subject import Subject


def has_cache(model: Any) -> bool:
    """Is its cache one that is known here: `past_key_values` and `use_cache`, or `new_cache(batch)` and `cache`?"""
    names = parameter_names(model)
    return {"past_key_values", "use_cache"} <= names or ("cache" in names and hasattr(model, "new_cache"))


@dataclass(frozen=True)
class InSteps:
    """A way to call a model, as `call` of a Subject: in steps of these lengths, each continuing the cache."""

    steps: tuple[int, ...]
    output: Output
    """Where the output lies in what the model returns."""

    def __call__(self, model: Any, inputs: Any) -> Tensor:
        """[batch, time, features]"""
        tokens = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs
        name = next(iter(inputs)) if isinstance(inputs, dict) else first_name(model)
        parts = tokens.split(list(self.steps), 1)
        own = hasattr(model, "new_cache") and "cache" in parameter_names(model)
        outputs = self._own(model, parts) if own else self._transformers(model, name, parts)
        return torch.cat(outputs, 1)

    def _own(self, model: Any, parts: tuple[Tensor, ...]) -> list[Tensor]:
        cache = model.new_cache(len(parts[0]))
        return [self.output.read(model(part, cache=cache)) for part in parts]

    def _transformers(self, model: Any, name: str, parts: tuple[Tensor, ...]) -> list[Tensor]:
        outputs, more = [], {}
        for part in parts:
            returned = model(**{name: part}, use_cache=True, **more)
            known = isinstance(returned, Mapping)
            past = returned.get("past_key_values") if known else getattr(returned, "past_key_values", None)
            if past is None:
                raise ValueError("no past_key_values came back")
            more = {"past_key_values": past}
            outputs.append(self.output.read(returned))
        return outputs


def in_steps(subject: Subject, steps: tuple[int, ...]) -> Subject:
    """The subject, called in steps."""
    return replace(subject, call=InSteps(steps, subject.output), output=Output((), 0, 1))
