"""A witness: the two inputs that show a leak, kept so that anyone can see it again.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit import audit, replay
>>> model = lambda x: x + 0.5 * x.roll(-1, 1)
>>> witness = audit(model, torch.arange(8.0).view(1, 8), causal()).witness
>>> print(replay(model, witness))
position ... still moves when position ... changes
>>> print(replay(lambda x: x, witness))
nothing moves any more
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rearview.audit.probe import difference
from rearview.audit.state import kept, seed_all
from rearview.audit.twins import redrawn
from rearview.errors import BadArgument, BadFile, MissingExtra

FORMAT, VERSION = "rearview-witness", 1
SIDES = ("clean", "other")


@dataclass(frozen=True, eq=False)
class Witness:
    """Which output heard whom, by how much, and the two inputs that show it."""

    check: str
    kind: str
    """Who is heard: "time" (other positions), "batch" (other items), "length" (how long the input is), "form"."""
    query: int
    """The position whose output moved."""
    sources: tuple[int, ...]
    """The positions that were changed; for the kind "batch" the items."""
    item: int
    amount: float
    """How far the output moved."""
    clean: dict[str, Tensor]
    """The inputs as they were given, by name; "" is the only one, "0", "1" those of a tuple."""
    other: dict[str, Tensor]
    """Those that were changed."""
    training: bool = False
    """Does it show in train mode?"""
    weights: str = "given"
    seed: int = 0
    output: tuple[str | int, ...] = ()
    """Where the output lies in what the model returns, then its batch axis and its time axis."""
    batch_axis: int = 0
    time_axis: int = 1
    constants: dict[str, Any] = field(default_factory=dict)
    """Inputs that are no tensors, by name: numbers, words, booleans."""
    steps: tuple[int, ...] = ()
    """The lengths of the steps in which the model is called, with its cache; none for one plain call."""

    @property
    def source(self) -> int:
        """The first position, or batch item, that was changed."""
        return self.sources[0]

    @property
    def sentence(self) -> str:
        """The witness in words."""
        if self.kind == "batch":
            return f"item {self.item}, position {self.query} moves by {self.amount:.3g} when item {self.source} changes"
        if self.kind == "length":
            return f"position {self.query} moves by {self.amount:.3g} with the length of the input"
        if self.kind == "form":
            return f"position {self.query} differs by {self.amount:.3g} ({self.check})"
        many = f"{self.source}" if len(self.sources) == 1 else f"{self.source} to {self.sources[-1]}"
        change = f"position {many} changes" if len(self.sources) == 1 else f"positions {many} change"
        return f"position {self.query} moves by {self.amount:.3g} when {change}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as .npz or .safetensors; `replay(model, path)` shows the leak again."""
        names = {f"clean.{name}": value for name, value in self.clean.items()}
        names |= {f"other.{name}": value for name, value in self.other.items()}
        tensors = {name: value.detach().cpu().contiguous() for name, value in names.items()}
        about = json.dumps({"format": FORMAT, "version": VERSION, **self.facts()})
        match os.path.splitext(os.fspath(path))[1]:
            case ".safetensors":
                _safetensors("saving a witness").torch.save_file(tensors, path, metadata={"witness": about})
            case ".npz":
                numpy = _numpy("saving a witness")
                with open(path, "wb") as file:
                    numpy.savez(file, witness=numpy.array(about), **{name: t.numpy() for name, t in tensors.items()})
            case ending:
                raise BadArgument("path", expected="a name that ends in .npz or .safetensors", came=ending or str(path))

    def facts(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON has it."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items() if name not in SIDES}

    @classmethod
    def of_facts(cls, facts: dict[str, Any], clean: dict[str, Tensor], other: dict[str, Tensor]) -> Witness:
        known = {name: facts[name] for name in cls.__dataclass_fields__ if name in facts and name not in SIDES}
        known |= {name: tuple(known[name]) for name in ("sources", "output", "steps") if name in known}
        return cls(**known, clean=clean, other=other)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Witness:
        """The witness that `save` wrote."""
        try:
            if os.path.splitext(os.fspath(path))[1] == ".safetensors":
                with _safetensors("loading a witness").safe_open(path, framework="pt") as file:
                    about = (file.metadata() or {})["witness"]
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            else:
                with _numpy("loading a witness").load(path, allow_pickle=False) as file:
                    about = str(file["witness"])
                    tensors = {name: torch.from_numpy(file[name].copy()) for name in file.files if name != "witness"}
            facts = json.loads(about)
        except (MissingExtra, FileNotFoundError):
            raise
        except Exception as error:
            raise BadFile(path, f"not a witness that rearview saved ({type(error).__name__})") from error
        if facts.get("format") != FORMAT or facts.get("version") != VERSION:
            raise BadFile(
                path, f"expected {FORMAT} version {VERSION}, got {facts.get('format')} {facts.get('version')}"
            )
        parts = {side: {n[6:]: t for n, t in tensors.items() if n.startswith(f"{side}.")} for side in SIDES}
        return cls.of_facts(facts, parts["clean"], parts["other"])


@dataclass(frozen=True)
class Replay:
    """What came of running a witness again."""

    leaks: bool
    amount: float
    witness: Witness

    def __str__(self) -> str:
        if not self.leaks:
            return "nothing moves any more"
        heard = "when the length changes" if self.witness.kind == "length" else ""
        kind = "item" if self.witness.kind == "batch" else "position"
        heard = heard or f"when {kind} {self.witness.source} changes"
        return f"position {self.witness.query} still moves {heard}"


def replay(
    model: Any, witness: Witness | str | os.PathLike[str], call: Callable[[Any, Any], Any] | None = None
) -> Replay:
    """Run a saved witness through a model again: does the same output still move?

    >>> import torch
    >>> from rearview import causal
    >>> from rearview.audit import audit
    >>> model = lambda x: x.flip(1)
    >>> replay(model, audit(model, torch.randn(1, 8), causal()).witness).leaks
    True
    """
    from rearview.audit.decoding import InSteps
    from rearview.audit.outputs import Output

    witness = witness if isinstance(witness, Witness) else Witness.load(witness)
    if witness.kind == "form":
        raise BadArgument("witness", expected="one with two inputs", came=f"{witness.check}: audit the model again")
    *path, batch_axis, time_axis = witness.output
    output = Output(tuple(path), int(batch_axis), int(time_axis))
    with kept(model):
        if isinstance(model, nn.Module):
            model.train(witness.training)
        if witness.steps:
            call, output = InSteps(witness.steps, output), Output((), 0, 1)
        kind, _, rest = witness.weights.partition(" redrawn, seed ")
        runner = redrawn(model, "zeros" if kind == "zeros" else "all", seed=int(rest)) if rest else model
        outputs = []
        for changes in ({}, witness.other):
            inputs = _inputs({**witness.clean, **changes, **witness.constants})
            seed_all(witness.seed)
            with torch.set_grad_enabled(witness.training):
                outputs.append(output.read(_called(runner, inputs, call)))
    length = min(run.shape[1] for run in outputs)
    amounts, _ = difference(*(run[:, :length] for run in outputs))
    amount = float(amounts[witness.item, witness.query])
    # Another length is another shape: there a little rounding is no leak.
    threshold = 1e-3 * witness.amount if witness.kind == "length" else 0.0
    return Replay(amount > threshold, amount, witness)


def _inputs(named: dict[str, Any]) -> Any:
    if list(named) == [""]:
        return named[""]
    if all(name.isdigit() for name in named):
        return tuple(named[str(n)] for n in range(len(named)))
    return named


def _called(model: Any, inputs: Any, call: Callable[[Any, Any], Any] | None) -> Any:
    if call is not None:
        return call(model, inputs)
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _safetensors(needed_for: str) -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise MissingExtra("safetensors", extra="models", needed_for=needed_for) from error
    return safetensors


def _numpy(needed_for: str) -> Any:
    try:
        import numpy
    except ImportError as error:
        raise MissingExtra("numpy", extra="all", needed_for=needed_for) from error
    return numpy
