"""What is audited: a model, its inputs, which of them is varied, and how it is called.

>>> import torch
>>> from rearview.audit.subject import Subject
>>> subject = Subject.of(torch.nn.Embedding(10, 3), torch.arange(8).view(2, 4))
>>> subject.batch, subject.time, subject.run().shape, subject.drawer.vocab
(2, 4, torch.Size([2, 4, 3]), 10)

A model is any callable. Runs are seeded, in eval mode, without gradients, and alike: the same input gives the same
output unless the model keeps something from one call to the next.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from rearview.audit import companions
from rearview.audit.draws import Drawer, lookup_size
from rearview.audit.outputs import Output, find
from rearview.audit.signature import first_name, parameter_names
from rearview.audit.source import user_line
from rearview.audit.state import Buffers, seed_all
from rearview.errors import BadArgument, RearviewError

Inputs = Tensor | dict[str, Any] | tuple[Any, ...]
# In a dict: what a decoder is fed, before what an encoder is.
VARIED = ("decoder_input_ids", "input_ids", "inputs_embeds", "tokens", "inputs", "x", "idx")


class ModelFailed(RearviewError):
    """The model raised on its own inputs: nothing to audit. `__cause__` is its error."""

    def __init__(self, model: Any, shape: list[int], error: BaseException):
        where = user_line(traceback.extract_tb(error.__traceback__))
        place = f"\n  at {where.file}:{where.line}: {where.source}" if where else ""
        super().__init__(
            f"{name_of(model)} fails on its own inputs {shape}: {type(error).__name__}: {error}{place}\n"
            "Try the call that audit makes: model(inputs), model(**inputs) for a dict, model(*inputs) for a tuple. "
            "For another signature give call=lambda model, x: ..."
        )


@dataclass
class Meter:
    """What the runs of an audit amount to."""

    forwards: int = 0
    positions: int = 0


@dataclass(frozen=True, eq=False)
class Subject:
    model: Any
    inputs: Inputs
    call: Callable[[Any, Any], Any] | None
    varied: str | int | None
    """The name, or the place, of the input that is varied; None when it is the only one."""
    x: Tensor
    """The varied input as [batch, time, ...]."""
    batch_axis: int
    time_axis: int
    output: Output
    drawer: Drawer
    seed: int
    device: torch.device
    """Where the model makes new tensors, unless it says otherwise: torch's default device."""
    given_training: bool
    """Was the model in train mode when it was given?"""
    meter: Meter = field(default_factory=Meter)
    buffers: Buffers | None = None
    """Put back before each run, for a model that changes them."""
    training: bool = False
    """Is it audited in train mode, with gradients?"""
    gradients: bool = False
    """Does it run only with gradients on?"""
    around: AbstractContextManager[Any] | None = None
    """Entered around the call of the model and nothing else: a recorder."""

    @classmethod
    def of(
        cls,
        model: Any,
        inputs: Any,
        call: Callable[[Any, Any], Any] | None = None,
        *,
        vary: str | int | None = None,
        vocab: int | None = None,
        batch_axis: int = 0,
        time_axis: int = 1,
        out_time_axis: int | None = None,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> Subject:
        """Look at the inputs, run the model once, and find its output."""
        if not callable(model):
            raise BadArgument("model", expected="an nn.Module or another callable", came=type(model).__name__)
        inputs = companions.as_inputs(inputs)
        varied = companions.choose(inputs, vary, VARIED)
        raw = companions.get(inputs, varied)
        x = _canonical(raw, batch_axis, time_axis, varied)
        given_training = isinstance(model, nn.Module) and model.training
        if isinstance(model, nn.Module):
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
            drawer=Drawer(None, None),
            seed=seed,
            device=device or torch.get_default_device(),
            given_training=given_training,
        )
        returned: list[Any] = []

        def first_run() -> None:
            try:
                returned.append(subject.returned())
            except Exception as error:
                raise ModelFailed(model, list(raw.shape), error) from error

        try:
            looked_up = lookup_size(model, raw, first_run)
        except ModelFailed:
            # A model may take gradients of its own on the way. Any other failure shows again.
            subject = replace(subject, gradients=True)
            looked_up = lookup_size(model, raw, first_run)
        output = find(returned[0], batch=len(x), time=x.shape[1], batch_axis=batch_axis, time_axis=out_time_axis)
        return replace(subject, output=output, drawer=Drawer.of(x, vocab=vocab, model=model, looked_up=looked_up))

    @property
    def batch(self) -> int:
        return len(self.x)

    @property
    def time(self) -> int:
        return self.x.shape[1]

    @property
    def real(self) -> Tensor:
        """bool [batch, time]: positions that an attention mask given with the inputs does not call padding."""
        mask = self.inputs.get("attention_mask") if isinstance(self.inputs, dict) else None
        if self.varied == "decoder_input_ids" and isinstance(self.inputs, dict):
            mask = self.inputs.get("decoder_attention_mask")
        if isinstance(mask, Tensor) and mask.shape == self.x.shape[:2]:
            return mask.cpu() != 0
        return torch.ones(self.x.shape[:2], dtype=torch.bool)

    @property
    def is_module(self) -> bool:
        return isinstance(self.model, nn.Module)

    @property
    def takes(self) -> frozenset[str]:
        """The names that the model can be called with; none when the user's own `call` stands between."""
        if self.call is not None or isinstance(self.inputs, tuple):
            return frozenset()
        return parameter_names(self.model)

    def with_inputs(self, x: Tensor, **more: Any) -> Subject:
        """The same model with another input and further ones by name; what has its own length is left out."""
        varied = self.varied if isinstance(self.varied, str) else first_name(self.model)
        given = companions.named(self.inputs, self.varied, varied)
        kept = {name: value for name, value in given.items() if name not in ("labels", "attention_mask", varied)}
        return replace(self, inputs={varied: x, **kept, **more}, varied=varied, x=x)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters()) if isinstance(self.model, nn.Module) else 0

    def run(self, x: Tensor | None = None, items: Tensor | None = None) -> Tensor:
        """The output [rows, time, features] for `x` [rows, time, ...].

        `items` tells which batch item each row stands for, so that the other inputs come along.
        """
        return self.output.read(self.returned(x, items))

    def returned(self, x: Tensor | None = None, items: Tensor | None = None, **more: Any) -> Any:
        """All that the model returns; `more` are further keyword inputs."""
        x = self.x if x is None else x
        inputs = companions.fit(self.inputs, self.varied, x, items=items, batch=self.batch, time=self.time)
        raw = x.movedim((0, 1), (self.batch_axis, self.time_axis))
        inputs = companions.put(inputs, self.varied, raw)
        if more:
            inputs = {**companions.named(inputs, self.varied, first_name(self.model)), **more}
        return self.invoke(inputs, rows=len(x), time=x.shape[1])

    def invoke(self, inputs: Inputs, *, rows: int, time: int) -> Any:
        """One call of the model with these inputs, seeded."""
        self.meter.forwards += 1
        self.meter.positions += rows * time
        if self.buffers is not None:
            self.buffers.restore()
        seed_all(self.seed)
        # The auditor counts on the CPU, whatever the default is; the model is to see what it always sees.
        device = nullcontext() if self.device == torch.get_default_device() else self.device
        with torch.set_grad_enabled(self.training or self.gradients), device, self.around or nullcontext():
            if self.call is not None:
                return self.call(self.model, inputs)
            if isinstance(inputs, dict):
                return self.model(**inputs)
            return self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)

    def with_model(self, model: Any) -> Subject:
        """The same questions to another model: a twin."""
        return replace(self, model=model, buffers=None if self.buffers is None else Buffers(model))

    def of_items(self, items: Tensor) -> Subject:
        """The same model with some of the batch items, as often as they are named."""
        x = self.x[items.to(self.x.device)]
        inputs = companions.fit(self.inputs, self.varied, x, items=items, batch=self.batch, time=self.time)
        raw = x.movedim((0, 1), (self.batch_axis, self.time_axis))
        return replace(self, inputs=companions.put(inputs, self.varied, raw), x=x)

    def at(self, x: Tensor) -> Subject:
        """The same model at another input, which may be longer or shorter, or another batch of items like item 0."""
        items = None if len(x) == self.batch else torch.zeros(len(x), dtype=torch.long)
        inputs = companions.fit(self.inputs, self.varied, x, items=items, batch=self.batch, time=self.time)
        raw = x.movedim((0, 1), (self.batch_axis, self.time_axis))
        return replace(self, inputs=companions.put(inputs, self.varied, raw), x=x)


def name_of(model: Any) -> str:
    """The class of a module, or the name of a function.

    >>> name_of(torch.nn.Linear(1, 1)), name_of(len)
    ('Linear', 'len')
    """
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", type(model).__name__)


def _canonical(raw: Any, batch_axis: int, time_axis: int, varied: str | int | None) -> Tensor:
    name = "inputs" if varied is None else f"inputs[{varied!r}]"
    if not isinstance(raw, Tensor):
        raise BadArgument(name, expected="a tensor [batch, time] or [batch, time, features]", came=type(raw).__name__)
    for axis, argument in ((batch_axis, "batch_axis"), (time_axis, "time_axis")):
        if not isinstance(axis, int) or not 0 <= axis < raw.ndim or batch_axis == time_axis:
            advice = "A single sequence is a batch of one: x[None]." if raw.ndim == 1 else ""
            expected = f"two different axes of the {raw.ndim} of {name}, batch_axis={batch_axis}, time_axis={time_axis}"
            raise BadArgument(argument, expected=expected, came=f"{name} {list(raw.shape)}", advice=advice)
    x = raw.detach().movedim((batch_axis, time_axis), (0, 1))
    if len(x) < 1 or x.shape[1] < 2:
        advice = "With one position there is nothing that it must not hear. 16 or more are a good start."
        raise BadArgument(name, expected="at least 1 batch item and 2 positions", came=list(raw.shape), advice=advice)
    return x
