"""The settings of training.

>>> TrainConfig(steps=0)
Traceback (most recent call last):
rearview.errors.BadArgument: steps: expected an integer of at least 1, got 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Self, TypeVar, cast

from rearview.errors import BadArgument
from rearview.masks.frame import whole_number
from rearview.training.precision import Precision

Value = TypeVar("Value")

# Metadata of the fields that may differ when a run is resumed: they change no number, or are meant to.
CHANGEABLE = "may change on resume"


def changeable(default: Value) -> Value:
    """A field of a config that may change when a run is resumed."""
    return cast(Value, field(default=default, metadata={CHANGEABLE: True}))


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings of training: sizes, rates and intervals.

    Args:
        steps: the number of optimizer steps.
        context: the number of tokens per row; by default the context of the model. A T5 has none of its own.
        batch, accumulate: the rows per batch, and the batches per step.
        lr, warmup, floor: the peak of the learning rate, the steps until it is reached, and the fraction of it at the
            last step.
        weight_decay, beta1, beta2: the parameters of AdamW.
        clip: the largest norm of the gradients; 0 for no clipping.
        seed: the seed of the batches and of all random numbers.
        precision: the dtype of matrix products; "auto" is bfloat16 where the hardware supports it.
        compile: whether to compile the model with torch.compile.
        checkpointing: whether to recompute activations in the backward pass instead of keeping them.
        shard: whether several processes divide the parameters and the state of the optimizer between them (FSDP2),
            instead of each having a copy.
        context_parallel: the number of processes that share each sequence.
        log_every: the number of steps between two reports; a report has the loss of every step.
        eval_every, eval_tokens: the steps between two validations, and the most tokens that one reads.
        sample_every, sample_tokens, sample_prompt: the same for samples of text; 0 for none.
        save_every: the steps between two checkpoints. The last step is always validated and saved.
    """

    steps: int = changeable(2000)
    context: int | None = None
    batch: int = 12
    accumulate: int = 1
    lr: float = 2e-3
    warmup: int = 100
    floor: float = 0.1
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    clip: float = 1.0
    seed: int = 0
    precision: Precision = "auto"
    compile: bool = False
    checkpointing: bool = False
    shard: bool = changeable(False)
    context_parallel: int = changeable(1)
    log_every: int = changeable(10)
    eval_every: int = changeable(250)
    eval_tokens: int = changeable(65536)
    sample_every: int = changeable(500)
    sample_tokens: int = changeable(200)
    sample_prompt: str = changeable("")
    save_every: int = changeable(250)

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "log_every", "eval_tokens", "sample_tokens", "context_parallel"):
            whole_number(getattr(self, name), name, at_least=1)
        if self.context is not None:
            whole_number(self.context, "context", at_least=1)
        for name in ("warmup", "seed", "eval_every", "sample_every", "save_every"):
            whole_number(getattr(self, name), name, at_least=0)
        for name in ("lr", "floor", "weight_decay", "beta1", "beta2", "clip"):
            most = 1 if name in ("floor", "beta1", "beta2") else None
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not (0 <= value < float("inf")) or (most is not None and value > most):
                expected = "a number of at least 0" if most is None else f"a number from 0 to {most}"
                raise BadArgument(name, expected=expected, got=repr(value))
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise BadArgument("precision", expected='"auto", "float32" or "bfloat16"', got=repr(self.precision))

    @property
    def rows(self) -> int:
        """The number of rows per step."""
        return self.batch * self.accumulate

    def check_continues(self, before: TrainConfig, folder: object) -> None:
        """Check that a run in `folder` that had the settings `before` may be resumed with these.

        >>> TrainConfig(steps=9, lr=0.1).check_continues(TrainConfig(steps=5, lr=0.2), "book")
        Traceback (most recent call last):
        rearview.errors.BadArgument: lr: expected 0.2, as in the run in book, got 0.1. A run keeps its settings; ...
        """
        for each in fields(before):
            was, got = getattr(before, each.name), getattr(self, each.name)
            if got != was and not each.metadata.get(CHANGEABLE):
                advice = "A run keeps its settings; start another run in another folder to change them."
                raise BadArgument(each.name, expected=f"{was}, as in the run in {folder}", got=got, advice=advice)

    def to_json(self) -> dict[str, object]:
        """The settings by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        """The settings that `to_json` returned; names that this class does not have are left out.

        >>> TrainConfig.from_json(TrainConfig(steps=7).to_json()).steps
        7
        """
        known = {each.name for each in fields(cls)}
        # A tuple in JSON is a list.
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        values: dict[str, object] = {name: value for name, value in plain.items() if name in known}
        return cls(**values)  # pyright: ignore[reportArgumentType]  # checked by __post_init__
