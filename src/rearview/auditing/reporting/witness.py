"""A witness: the two inputs that show a leak, which can be saved and replayed.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing import audit, replay
>>> model = lambda x: x + 0.5 * x.roll(-1, 1)
>>> witness = audit(model, torch.arange(8.0).view(1, 8), causal()).witness
>>> print(replay(model, witness))
position ... still moves when position ... changes
>>> print(replay(lambda x: x, witness))
the output no longer moves
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rearview.auditing.evidence.probe import difference
from rearview.auditing.model.decoding import CacheAdapter, StepwiseCall
from rearview.auditing.model.draws import FixedDraws
from rearview.auditing.model.outputs import Output
from rearview.auditing.model.reinitialization import reinitialized
from rearview.auditing.model.state import preserved_state, seed_all
from rearview.codec import Reader, check_regular, parse_json, plain, read_archive
from rearview.errors import BadArgument, BadFile, MissingExtra
from rearview.files import write_whole

FORMAT, VERSION = "rearview-witness", 2
# The largest file that is read, packed or unpacked.
LARGEST_FILE = 2**32
SIDES = ("clean", "other")
Constant = bool | int | float | str | None


@dataclass(frozen=True, eq=False)
class Witness:
    """The output that heard what it must not, by how much it moved, and the two inputs that show it."""

    check: str
    kind: str
    """What is heard: "time" (other positions), "batch" (other items), "length" (of the input), or "form"."""
    query: int
    """The position whose output moved."""
    sources: tuple[int, ...]
    """The positions that were changed; for the kind "batch" the items."""
    item: int
    amount: float
    """By how much the output moved."""
    clean: dict[str, Tensor]
    """The inputs as given, by name: "" for a single one, "0", "1", ... for those of a tuple."""
    other: dict[str, Tensor]
    """The inputs that were changed, by name."""
    training: bool = False
    """Whether it shows in train mode."""
    weights: str = "given"
    seed: int = 0
    fixed_draws: int | None = None
    """The seed of random draws that do not depend on how many were made before; None for those of the generator."""
    output: tuple[str | int, ...] = ()
    """The path of the output in what the model returns, then its batch axis and its time axis."""
    batch_axis: int = 0
    time_axis: int = 1
    constants: dict[str, Constant] = field(default_factory=dict)
    """The inputs that are not tensors, by name."""
    steps: tuple[int, ...] = ()
    """The lengths of the steps in which the model is called with its cache; empty for one plain call."""

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
            return f"position {self.query} moves by {self.amount:.3g} when the length of the input changes"
        if self.kind == "form":
            return f"position {self.query} differs by {self.amount:.3g} between two forms of the call"
        many = f"{self.source}" if len(self.sources) == 1 else f"{self.source} to {self.sources[-1]}"
        change = f"position {many} changes" if len(self.sources) == 1 else f"positions {many} change"
        return f"position {self.query} moves by {self.amount:.3g} when {change}"

    def row(self, tensor: Tensor) -> Tensor:
        """The item of an input in which the output moved, with time as its first axis."""
        return tensor.movedim((self.batch_axis, self.time_axis), (0, 1))[self.item]

    def refuse_impossible(self, reader: Reader, place: str = "") -> None:
        """Refuse what a file says and no audit finds; `place` is where the witness is in the file."""
        if not self.sources:
            reader.refuse(f"{place}sources", "at least one position", "none")
        if not self.other:
            reader.refuse(f"{place}other", "at least one input", "none")
        name, changed = next(iter(self.other.items()))
        for tensor in (self.clean.get(name, changed), changed):
            try:
                self.row(tensor)
            except (IndexError, RuntimeError):
                axes = f"the axes {self.batch_axis} and {self.time_axis} and the item {self.item}"
                reader.refuse(f"{place}other", f"inputs with {axes}", f"the shape {list(tensor.shape)}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a .npz or .safetensors file; `replay(model, path)` runs it again."""
        names = {f"clean.{name}": value for name, value in self.clean.items()}
        names |= {f"other.{name}": value for name, value in self.other.items()}
        tensors = {name: value.detach().cpu().contiguous() for name, value in names.items()}
        facts = plain({name: value for name, value in vars(self).items() if name not in SIDES})
        about = json.dumps({"format": FORMAT, "version": VERSION, **facts})
        match os.path.splitext(os.fspath(path))[1]:
            case ".safetensors":
                data = _safetensors("saving a witness").torch.save(tensors, metadata={"witness": about})
            case ".npz":
                numpy, file = _numpy("saving a witness"), io.BytesIO()
                numpy.savez(file, witness=numpy.array(about), **{name: t.numpy() for name, t in tensors.items()})
                data = file.getvalue()
            case ending:
                raise BadArgument("path", expected="a name that ends in .npz or .safetensors", got=ending or str(path))
        write_whole(Path(path), data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Witness:
        """Read a witness that `save` wrote."""
        if Path(path).suffix == ".safetensors":
            about, tensors = _read_safetensors(path)
        else:
            arrays = read_archive(Path(path), most=LARGEST_FILE)
            about = str(arrays.pop("witness", ""))
            tensors = {name: Reader(path, arrays).read(Tensor, {"array": name}, name) for name in arrays}
        reader = Reader(path)
        facts = reader.header(parse_json(about, path), FORMAT, VERSION)
        sides = {side: {n[6:]: t for n, t in tensors.items() if n.startswith(f"{side}.")} for side in SIDES}
        found = reader.read(cls, facts, given=sides)
        found.refuse_impossible(reader)
        return found


def _read_safetensors(path: str | os.PathLike[str]) -> tuple[str, dict[str, Tensor]]:
    safetensors = _safetensors("loading a witness")
    check_regular(Path(path))
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return (file.metadata() or {}).get("witness", ""), tensors
    except (OSError, MemoryError, safetensors.SafetensorError) as error:
        raise BadFile(path, f"this .safetensors file cannot be read: {error}") from error


@dataclass(frozen=True)
class Replay:
    """The result of replaying a witness: whether the same output still moves, and by how much."""

    leaks: bool
    amount: float
    witness: Witness

    def __str__(self) -> str:
        if not self.leaks:
            return "the output no longer moves"
        heard = "when the length changes" if self.witness.kind == "length" else ""
        kind = "item" if self.witness.kind == "batch" else "position"
        heard = heard or f"when {kind} {self.witness.source} changes"
        return f"position {self.witness.query} still moves {heard}"


def replay(
    model: Callable[..., object],
    witness: Witness | str | os.PathLike[str],
    call: Callable[..., object] | None = None,
    *,
    cache: CacheAdapter | None = None,
) -> Replay:
    """Run the two inputs of a witness through a model again, and see whether the same output still moves.

    Args:
        model: The model, as it was or as it is now.
        witness: The witness, or the path of a file that `Witness.save` wrote.
        call: How to call the model, as in `audit`.
        cache: How to decode with the model's own cache, as in `audit`.

    >>> import torch
    >>> from rearview import causal
    >>> from rearview.auditing import audit
    >>> model = lambda x: x.flip(1)
    >>> replay(model, audit(model, torch.randn(1, 8), causal()).witness).leaks
    True
    """
    witness = witness if isinstance(witness, Witness) else Witness.load(witness)
    if witness.kind == "form":
        raise BadArgument(
            "witness",
            expected="a witness with two inputs",
            got=f"one of the check {witness.check!r}",
            advice="Audit the model again.",
        )
    *path, batch_axis, time_axis = witness.output
    output = Output(tuple(path), int(batch_axis), int(time_axis))
    with preserved_state(model):
        if isinstance(model, nn.Module):
            model.train(witness.training)
        if witness.steps:
            adapter = None if cache is None else CacheAdapter(*cache)
            call, output = StepwiseCall(witness.steps, output, adapter), Output((), 0, 1)
        kind, _, rest = witness.weights.partition(" redrawn, seed ")
        runner = model
        if rest and isinstance(model, nn.Module):
            runner = reinitialized(model, "zeros" if kind == "zeros" else "all", seed=int(rest))
        outputs = []
        for changes in ({}, witness.other):
            inputs = _inputs({**witness.clean, **changes, **witness.constants})
            seed_all(witness.seed)
            draws = nullcontext() if witness.fixed_draws is None else FixedDraws(witness.fixed_draws, runner)
            with torch.set_grad_enabled(witness.training), draws:
                outputs.append(output.read(_called(runner, inputs, call)))
    length = min(run.shape[1] for run in outputs)
    amounts, _ = difference(*(run[:, :length] for run in outputs))
    amount = float(amounts[witness.item, witness.query])
    # Another length is another shape, where a little rounding is not a leak.
    threshold = 1e-3 * witness.amount if witness.kind == "length" else 0.0
    return Replay(amount > threshold, amount, witness)


def _inputs(named: dict[str, Any]) -> Any:
    if list(named) == [""]:
        return named[""]
    if all(name.isdigit() for name in named):
        return tuple(named[str(n)] for n in range(len(named)))
    return named


def _called(model: Callable[..., object], inputs: Any, call: Callable[[Any, Any], object] | None) -> object:
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
