"""The model under audit, its inputs, which of them is varied, and how it is called.

>>> import torch
>>> from rearview.auditing.model.subject import Subject
>>> subject = Subject.of(torch.nn.Embedding(10, 3), torch.arange(8).view(2, 4))
>>> subject.batch, subject.time, subject.run().shape, subject.sampler.vocab
(2, 4, torch.Size([2, 4, 3]), 10)

A model is any callable. Every run is seeded and, unless said otherwise, in eval mode and without gradients: the same
input gives the same output unless the model keeps state from one call to the next.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from rearview.auditing.model.budget import TimeBudget
from rearview.auditing.model.draws import FixedDraws
from rearview.auditing.model.inputs import (
    Fitting,
    Inputs,
    as_inputs,
    choose_varied,
    companions,
    fit_inputs,
    named_inputs,
    varied_input,
    with_varied,
)
from rearview.auditing.model.outputs import Output, find
from rearview.auditing.model.sampling import InputSampler, lookup_size
from rearview.auditing.model.state import ModelState, seed_all
from rearview.auditing.user_code import enters_program, user_line
from rearview.errors import BadArgument, RearviewError

# The most other inputs as long as the varied one for which it is tried out which of them follow its length.
MOST_COMPANIONS = 4
# The inputs of a dict to vary, in order of preference: those of a decoder before those of an encoder.
VARIED = ("decoder_input_ids", "input_ids", "inputs_embeds", "tokens", "inputs", "x", "idx")


class ModelFailed(RearviewError):
    """The model raised on its own inputs, so there is nothing to audit. `__cause__` is its error."""

    def __init__(self, model: object, shape: list[int], error: BaseException):
        where = user_line(traceback.extract_tb(error.__traceback__))
        place = f"\n  at {where.file}:{where.line}: {where.source}" if where else ""
        super().__init__(
            f"{name_of(model)} fails on its own inputs {shape}: {type(error).__name__}: {error}{place}\n"
            "Try the call that audit makes: model(inputs), model(**inputs) for a dict, model(*inputs) for a tuple. "
            "For another signature give call=lambda model, x: ..."
        )


@dataclass
class Meter:
    """The number of forward passes of an audit, and of the positions that went through the model."""

    forwards: int = 0
    positions: int = 0
    budget: TimeBudget = field(default_factory=lambda: TimeBudget(None))
    """The time that they may take."""


@dataclass(frozen=True, eq=False)
class Subject:
    model: Any
    inputs: Inputs
    call: Callable[[Any, Any], object] | None
    varied: str | int | None
    """The name, or the index, of the varied input; None when there is only one."""
    x: Tensor
    """The varied input as [batch, time, ...]."""
    batch_axis: int
    time_axis: int
    output: Output
    sampler: InputSampler
    seed: int
    device: torch.device
    """The default device while the model runs: torch's, as it was when the audit began."""
    given_training: bool
    """Whether the model was in train mode when it was given."""
    meter: Meter = field(default_factory=Meter)
    state: ModelState | None = None
    """Restored before each run."""
    restores_values: bool = False
    """Whether numbers and tensors are restored before each run as well, for a model that keeps state in them."""
    training: bool = False
    """Whether it runs in train mode, with gradients."""
    gradients: bool = False
    """Whether it runs only with gradients enabled."""
    fixed_draws: int | None = None
    """The seed of draws that do not depend on how many were made before (`draws.py`); None for the generator's."""
    followers: frozenset[str | int] | None = None
    """The other inputs whose length follows that of the varied one; None for all that are as long."""
    around: AbstractContextManager[Any] | None = None
    """Entered around the call of the model and nothing else: a recorder."""

    @classmethod
    def of(
        cls,
        model: Any,
        inputs: object,
        call: Callable[[Any, Any], object] | None = None,
        *,
        vary: str | int | None = None,
        vocab: int | None = None,
        batch_axis: int = 0,
        time_axis: int = 1,
        out_time_axis: int | None = None,
        seed: int = 0,
        device: torch.device | None = None,
        budget: TimeBudget | None = None,
    ) -> Subject:
        """Choose the input to vary, run the model once, and find its output."""
        if not callable(model):
            raise BadArgument("model", expected="an nn.Module or another callable", got=type(model).__name__)
        inputs = as_inputs(inputs)
        varied = choose_varied(inputs, vary, VARIED)
        raw = varied_input(inputs, varied)
        x = _canonical(raw, batch_axis, time_axis, varied)
        given_training = isinstance(model, nn.Module) and model.training
        if isinstance(model, nn.Module):
            # An exported program has one mode only.
            with suppress(NotImplementedError):
                model.eval()
        subject = cls(
            model=model,
            inputs=inputs,
            call=call,
            varied=varied,
            x=x,
            batch_axis=batch_axis,
            time_axis=time_axis,
            output=Output((), 0, 1),
            sampler=InputSampler(None, None),
            seed=seed,
            device=device or torch.get_default_device(),
            given_training=given_training,
            meter=Meter(budget=budget or TimeBudget(None)),
            state=ModelState(model),
        )
        returned: list[Any] = []

        def first_run() -> None:
            try:
                returned.append(subject.returned())
            except Exception as error:
                # The model's own code may raise anything; the message names the user's line.
                raise ModelFailed(model, list(raw.shape), error) from error

        try:
            looked_up = lookup_size(model, raw, first_run)
        except ModelFailed:
            # A model may compute gradients inside its forward pass. Any other failure shows again.
            subject = replace(subject, gradients=True)
            looked_up = lookup_size(model, raw, first_run)
        output = find(returned[0], batch=len(x), time=x.shape[1], batch_axis=batch_axis, time_axis=out_time_axis)
        sampler = InputSampler.of(x, vocab=vocab, model=model, looked_up=looked_up)
        subject = replace(subject, output=output, sampler=sampler)
        return replace(subject, followers=subject._followers())

    @property
    def batch(self) -> int:
        return len(self.x)

    @property
    def time(self) -> int:
        return self.x.shape[1]

    @property
    def real(self) -> Tensor:
        """bool [batch, time]: the positions that are not padding, by the attention mask among the inputs."""
        mask = self.inputs.get("attention_mask") if isinstance(self.inputs, dict) else None
        if self.varied == "decoder_input_ids" and isinstance(self.inputs, dict):
            mask = self.inputs.get("decoder_attention_mask")
        if isinstance(mask, Tensor) and mask.shape == self.x.shape[:2]:
            return mask.cpu() != 0
        return torch.ones(self.x.shape[:2], dtype=torch.bool)

    @property
    def takes(self) -> frozenset[str]:
        """The names that the model can be called with; none where the user's own `call` calls it."""
        if self.call is not None or isinstance(self.inputs, tuple):
            return frozenset()
        return parameter_names(self.model)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters()) if isinstance(self.model, nn.Module) else 0

    def run(self, x: Tensor | None = None, items: Tensor | None = None) -> Tensor:
        """The output [rows, time, features] for `x` [rows, time, ...].

        `items` gives the batch item that each row stands for; the other inputs of that item are used with it.
        """
        return self.output.read(self.returned(x, items))

    def returned(self, x: Tensor | None = None, items: Tensor | None = None, **more: object) -> Any:
        """Everything that the model returns; `more` are further keyword inputs."""
        x = self.x if x is None else x
        inputs = self._inputs_for(x, items)
        if more:
            inputs = {**named_inputs(inputs, self.varied, first_name(self.model)), **more}
        return self.invoke(inputs, rows=len(x), time=x.shape[1])

    @enters_program
    def invoke(self, inputs: Inputs, *, rows: int, time: int) -> Any:
        """Call the model once with these inputs, seeded."""
        self.meter.budget.check()
        self.meter.forwards += 1
        self.meter.positions += rows * time
        if self.state is not None:
            # The ops that compare and copy are not the model's.
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                self.state.restore(values=self.restores_values)
        seed_all(self.seed)
        # The auditor computes on the CPU, whatever the default device is; the model runs under its usual one.
        device = nullcontext() if self.device == torch.get_default_device() else self.device
        draws = nullcontext() if self.fixed_draws is None else FixedDraws(self.fixed_draws, self.model)
        with torch.set_grad_enabled(self.training or self.gradients), device, draws, self.around or nullcontext():
            if self.call is not None:
                return self.call(self.model, inputs)
            if isinstance(inputs, dict):
                return self.model(**inputs)
            return self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)

    def with_model(self, model: Any) -> Subject:
        """The same inputs and call for another model: a copy."""
        return replace(self, model=model, state=ModelState(model))

    def with_inputs(self, x: Tensor, **more: object) -> Subject:
        """The same model with another varied input and further inputs by name.

        Labels and attention masks are left out, since they have the length of the old input.
        """
        varied = self.varied if isinstance(self.varied, str) else first_name(self.model)
        given = named_inputs(self.inputs, self.varied, varied)
        kept = {name: value for name, value in given.items() if name not in ("labels", "attention_mask", varied)}
        return replace(self, inputs={varied: x, **kept, **more}, varied=varied, x=x)

    def of_items(self, items: Tensor) -> Subject:
        """The same model with the given batch items, in that order; an item may occur several times."""
        x = self.x[items.to(self.x.device)]
        return replace(self, inputs=self._inputs_for(x, items), x=x)

    def at(self, x: Tensor) -> Subject:
        """The same model at another input, which may be longer or shorter, or another batch of items like item 0."""
        items = None if len(x) == self.batch else torch.zeros(len(x), dtype=torch.long)
        return replace(self, inputs=self._inputs_for(x, items), x=x)

    @property
    def fitting(self) -> Fitting:
        """How the other inputs follow the varied one."""
        return Fitting(self.batch, self.time, self.batch_axis, self.time_axis, self.followers)

    def _followers(self) -> frozenset[str | int] | None:
        """Find out which inputs follow the length: the fewest that must be cut for a shorter input to run.

        The source of an encoder-decoder may be as long as its target, and has nothing to do with its length.
        """
        names = companions(self.inputs, self.varied, time=self.time)
        if not names or len(names) > MOST_COMPANIONS or self.time < 3:
            return None
        for count in range(len(names) + 1):
            for chosen in combinations(names, count):
                shorter = replace(self, followers=frozenset(chosen))
                try:
                    output = shorter.run(self.x[:, :-1])
                except Exception:
                    # The model may raise anything on inputs whose lengths do not fit.
                    continue
                if output.shape[:2] == (self.batch, self.time - 1):
                    return shorter.followers
        return None

    def _inputs_for(self, x: Tensor, items: Tensor | None) -> Inputs:
        """The inputs with `x` as the varied one, and the others at its rows and its length."""
        inputs = fit_inputs(self.inputs, self.varied, x, items=items, fitting=self.fitting)
        return with_varied(inputs, self.varied, x.movedim((0, 1), (self.batch_axis, self.time_axis)))


def name_of(model: object) -> str:
    """The class of a module, or the name of a function.

    >>> name_of(torch.nn.Linear(1, 1)), name_of(len)
    ('Linear', 'len')
    """
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", type(model).__name__)


def parameter_names(model: Any) -> frozenset[str]:
    """The names of the parameters of its forward function; none where they are not known.

    >>> parameter_names(torch.nn.Linear(1, 1))
    frozenset({'input'})
    """
    try:
        return frozenset(inspect.signature(getattr(model, "forward", model)).parameters)
    except (TypeError, ValueError):
        return frozenset()


def first_name(model: Any) -> str:
    """The name of its first parameter."""
    try:
        return next(iter(inspect.signature(getattr(model, "forward", model)).parameters))
    except (TypeError, ValueError, StopIteration):
        return "input_ids"


def _canonical(raw: object, batch_axis: int, time_axis: int, varied: str | int | None) -> Tensor:
    name = "inputs" if varied is None else f"inputs[{varied!r}]"
    if not isinstance(raw, Tensor):
        raise BadArgument(name, expected="a tensor [batch, time] or [batch, time, features]", got=type(raw).__name__)
    for axis, argument in ((batch_axis, "batch_axis"), (time_axis, "time_axis")):
        if not isinstance(axis, int) or not 0 <= axis < raw.ndim or batch_axis == time_axis:
            advice = "A single sequence is a batch of one: x[None]." if raw.ndim == 1 else ""
            expected = f"two different axes of the {raw.ndim} of {name}, batch_axis={batch_axis}, time_axis={time_axis}"
            raise BadArgument(argument, expected=expected, got=f"{name} {list(raw.shape)}", advice=advice)
    x = raw.detach().movedim((batch_axis, time_axis), (0, 1))
    if len(x) < 1 or x.shape[1] < 2:
        advice = "A single position has no future to hear. 16 or more positions are a good start."
        raise BadArgument(name, expected="at least 1 batch item and 2 positions", got=list(raw.shape), advice=advice)
    return x
