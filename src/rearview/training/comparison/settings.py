"""What is compared: one model, one text, one seed; and how long the exam is.

>>> Settings(exam_windows=0)
Traceback (most recent call last):
rearview.errors.BadArgument: exam_windows: expected an integer of at least 1, got 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from rearview.errors import BadArgument
from rearview.masks import Mask, causal
from rearview.masks.frame import whole_number
from rearview.models import GPTConfig
from rearview.training.config import TrainConfig


def short_training(**changes: Any) -> TrainConfig:
    """The training of a comparison, unless given: a minute or so for both models on a laptop."""
    defaults = {
        "steps": 1500, "batch": 16, "lr": 3e-3, "warmup": 50, "eval_every": 100, "eval_tokens": 8192, "save_every": 250,
    }  # fmt: skip
    # Samples are the exam's affair.
    return TrainConfig(**{**defaults, "sample_every": 0, **changes})


@dataclass(frozen=True)
class Settings:
    """The size of the model, its training, and the exam.

    Args:
        context, layers, heads, width, positions, dropout: of both models; see `GPTConfig`.
        training: of both; its seed is also that of the first weights.
        exam_windows: rows of held-out text, each as long as the context, that the exam is taken on.
        prompts: pieces of held-out text that each model continues.
        new_tokens: how many tokens it adds to each.
        temperature: of what it writes; 0 is greedy.
    """

    context: int = 64
    layers: int = 2
    heads: int = 4
    width: int = 96
    positions: Literal["learned", "rotary"] = "learned"
    dropout: float = 0.0
    training: TrainConfig = field(default_factory=short_training)
    exam_windows: int = 64
    prompts: int = 3
    new_tokens: int = 200
    temperature: float = 0.8

    def __post_init__(self) -> None:
        for name in ("exam_windows", "prompts", "new_tokens"):
            whole_number(getattr(self, name), name, at_least=1)
        whole_number(self.context, "context", at_least=2)
        if self.training.context not in (None, self.context):
            raise BadArgument(
                "context", expected="one length for the model and its training", came=self.training.context
            )
        # The shape is checked where it is defined.
        self.model(vocab_size=1)

    def model(self, *, vocab_size: int, mask: Mask = causal()) -> GPTConfig:
        """The shape of both models."""
        return GPTConfig(
            vocab_size=vocab_size,
            context=self.context,
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            positions=self.positions,
            dropout=self.dropout,
            mask=mask,
        )

    @property
    def prompt_tokens(self) -> int:
        """Half the context, so that there is room to go on."""
        return max(1, self.context // 2)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Settings:
        """From what `to_json` gave.

        >>> Settings.from_json(Settings(width=32).to_json()) == Settings(width=32)
        True
        """
        known = {each.name for each in fields(cls)} - {"training"}
        kept = {name: value for name, value in data.items() if name in known}
        return cls(**kept, training=TrainConfig.from_json(data["training"]))
