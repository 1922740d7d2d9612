"""Calling a model step by step with its cache, which should give the same outputs as one pass over the sequence.

A cache of a known form is used as it is; for any other, a `CacheAdapter` says how to start empty and how to step.

>>> import torch
>>> from rearview.auditing.model.decoding import StepwiseCall, has_cache
>>> from rearview.auditing.model.outputs import Output
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=9, context=8, layers=1, heads=1, width=4))
>>> has_cache(model), StepwiseCall((3, 1), Output((), 0, 1))(model, torch.tensor([[1, 2, 3, 4]])).shape
(True, torch.Size([1, 4, 9]))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rearview.auditing.model.outputs import Output
from rearview.auditing.model.subject import Subject, first_name, parameter_names


class CacheAdapter(NamedTuple):
    """How to decode with a model's own cache: a pair of functions.

    `start(model, batch)` returns an empty cache for that many sequences. `step(model, x, cache)` continues it with the
    inputs `x` [batch, steps, ...], and returns `(output, cache)`, or only the output if it changes the cache in place.

    >>> import torch
    >>> from rearview.auditing import audit
    >>> adapter = CacheAdapter(lambda model, batch: [0.0], lambda model, x, cache: running_sum(x, cache))
    >>> def running_sum(x, cache):
    ...     out = x.cumsum(1) + cache[0]
    ...     cache[0] = out[:, -1:]
    ...     return out
    >>> report = audit(lambda x: x.cumsum(1), torch.randn(2, 8), cache=adapter)
    >>> report.check("cached decoding").why
    'the outputs agree with the full pass: in two chunks, token by token at the end'
    """

    start: Callable[..., object]
    step: Callable[..., object]


def has_cache(model: object) -> bool:
    """Whether the model has a cache of a known form.

    Known are `past_key_values` with `use_cache`, as in transformers, and `new_cache(batch)` with `cache`.
    """
    names = parameter_names(model)
    return {"past_key_values", "use_cache"} <= names or ("cache" in names and hasattr(model, "new_cache"))


def seems_cached(model: object) -> bool:
    """Whether a parameter of the model is named like a cache, of whatever form."""
    return any(word in name for name in parameter_names(model) for word in ("cache", "past", "state", "memory", "kv"))


@dataclass(frozen=True)
class StepwiseCall:
    """A `call` of a Subject: the sequence in steps of these lengths, each continuing the cache."""

    steps: tuple[int, ...]
    output: Output
    """Where the output is in what the model returns."""
    adapter: CacheAdapter | None = None
    """How to decode, for a cache of another form than the known ones."""

    def __call__(self, model: Any, inputs: Any) -> Tensor:
        """[batch, time, features]"""
        tokens = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs
        name = next(iter(inputs)) if isinstance(inputs, dict) else first_name(model)
        parts = tokens.split(list(self.steps), 1)
        if self.adapter is not None:
            return torch.cat(self._with_adapter(model, parts, self.adapter), 1)
        has_new_cache = hasattr(model, "new_cache") and "cache" in parameter_names(model)
        outputs = self._with_new_cache(model, parts) if has_new_cache else self._with_past(model, name, parts)
        return torch.cat(outputs, 1)

    def _with_adapter(self, model: Any, parts: tuple[Tensor, ...], adapter: CacheAdapter) -> list[Tensor]:
        cache, outputs = adapter.start(model, len(parts[0])), []
        for part in parts:
            returned = adapter.step(model, part, cache)
            if isinstance(returned, tuple) and len(returned) == 2:
                returned, cache = returned
            is_plain = isinstance(returned, Tensor)
            outputs.append((Output((), self.output.batch_axis, 1) if is_plain else self.output).read(returned))
        return outputs

    def _with_new_cache(self, model: Any, parts: tuple[Tensor, ...]) -> list[Tensor]:
        cache = model.new_cache(len(parts[0]))
        return [self.output.read(model(part, cache=cache)) for part in parts]

    def _with_past(self, model: Any, name: str, parts: tuple[Tensor, ...]) -> list[Tensor]:
        outputs, more = [], {}
        for part in parts:
            returned = model(**{name: part}, use_cache=True, **more)
            is_mapping = isinstance(returned, Mapping)
            past = returned.get("past_key_values") if is_mapping else getattr(returned, "past_key_values", None)
            if past is None:
                raise ValueError("the model returned no past_key_values")
            more = {"past_key_values": past}
            outputs.append(self.output.read(returned))
        return outputs


def decode_in_steps(subject: Subject, steps: tuple[int, ...], adapter: CacheAdapter | None = None) -> Subject:
    """The subject, called in steps of these lengths."""
    return replace(subject, call=StepwiseCall(steps, subject.output, adapter), output=Output((), 0, 1))
