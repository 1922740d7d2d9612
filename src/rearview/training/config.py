"""How a model is trained.

>>> TrainConfig(steps=0)
Traceback (most recent call last):
rearview.errors.BadArgument: steps: expected an integer of at least 1, got 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from rearview.errors import BadArgument
from rearview.masks.frame import whole_number
from rearview.training.precision import Precision


@dataclass(frozen=True)
class TrainConfig:
    """Sizes, rates and habits of a run.

    Args:
        steps: how often the weights are moved.
        context: tokens in a row; the model's own context unless given. A T5 has none of its own.
        batch, accumulate: rows in a batch, batches in a step.
        lr, warmup, floor: the highest learning rate, the steps until it, and the share of it at the end.
        weight_decay, beta1, beta2, clip: of AdamW; `clip` is the largest norm of gradients, 0 for any.
        seed: of the batches and of whatever else is drawn.
        precision: of products: "auto" is bfloat16 where the hardware multiplies it.
        compile: compile the model with torch.compile?
        checkpointing: keep no activations, compute them again in backward?
        log_every: steps between two reports of losses; those of all steps are reported.
        eval_every, eval_tokens: steps between two validations, and the most tokens that one reads.
        sample_every, sample_tokens, sample_prompt: the same for samples of text; 0 for none.
        save_every: steps between two checkpoints. The last step is always validated and saved.
    """

    steps: int = 2000
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
    log_every: int = 10
    eval_every: int = 250
    eval_tokens: int = 65536
    sample_every: int = 500
    sample_tokens: int = 200
    sample_prompt: str = ""
    save_every: int = 250

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "log_every", "eval_tokens", "sample_tokens"):
            whole_number(getattr(self, name), name, at_least=1)
        if self.context is not None:
            whole_number(self.context, "context", at_least=1)
        for name in ("warmup", "seed", "eval_every", "sample_every", "save_every"):
            whole_number(getattr(self, name), name, at_least=0)
        for name, most in (
            ("lr", None),
            ("floor", 1),
            ("weight_decay", None),
            ("beta1", 1),
            ("beta2", 1),
            ("clip", None),
        ):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not (0 <= value < float("inf")) or (most is not None and value > most):
                expected = "a number of at least 0" if most is None else f"a number from 0 to {most}"
                raise BadArgument(name, expected=expected, came=repr(value))
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise BadArgument("precision", expected='"auto", "float32" or "bfloat16"', came=repr(self.precision))

    @property
    def rows(self) -> int:
        """Rows in a step."""
        return self.batch * self.accumulate

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TrainConfig:
        """From what `to_json` gave; what another version added is left out.

        >>> TrainConfig.from_json(TrainConfig(steps=7).to_json()).steps
        7
        """
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})
