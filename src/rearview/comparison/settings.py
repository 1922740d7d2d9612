"""The settings of a comparison: one model, one training and one exam for both sides.

>>> Settings(exam_windows=0)
Traceback (most recent call last):
rearview.errors.BadArgument: exam_windows: expected an integer of at least 1, got 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from rearview.masks import Mask
from rearview.masks.frame import whole_number
from rearview.models import GPT, GPTConfig
from rearview.text import Tokenizer
from rearview.training.config import TrainConfig, changeable
from rearview.training.factory import new_model
from rearview.training.run_config import ModelConfig, TextConfig


@dataclass(frozen=True, kw_only=True)
class Settings(ModelConfig, TrainConfig):
    """The settings of `ModelConfig` and `TrainConfig`, for both models, and these. The defaults are a short training.

    Args:
        exam_windows: the number of rows of held-out text in the exam, each as long as the context.
        prompts: the number of held-out prompts that each model continues.
        new_tokens: the number of tokens that it generates for each.
        temperature: the temperature of the generated text; 0 is greedy.
    """

    context: int = 64
    layers: int = 2
    width: int = 96
    steps: int = changeable(1500)
    batch: int = 16
    lr: float = 3e-3
    warmup: int = 50
    eval_every: int = changeable(100)
    eval_tokens: int = changeable(8192)
    # The exam has samples of its own.
    sample_every: int = changeable(0)
    exam_windows: int = 64
    prompts: int = 3
    new_tokens: int = 200
    temperature: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("exam_windows", "prompts", "new_tokens"):
            whole_number(getattr(self, name), name, at_least=1)
        whole_number(self.context, "context", at_least=2)
        # The sizes are checked where they are defined.
        GPTConfig(
            vocab_size=1, context=self.context, layers=self.layers, heads=self.heads, width=self.width,
            positions=self.positions, dropout=self.dropout,
        )  # fmt: skip

    def new_model(self, tokenizer: Tokenizer, mask: Mask) -> GPT:
        """A model with this mask; its weights depend on the seed alone."""
        model = new_model(
            "gpt",
            tokenizer,
            context=self.context,
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            positions=self.positions,
            mask=mask,
            dropout=self.dropout,
            seed=self.seed,
        )
        assert isinstance(model, GPT)
        return model

    @property
    def prompt_tokens(self) -> int:
        """The length of a prompt: half the context, which leaves room for the continuation."""
        return max(1, self.context // 2)


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig(TextConfig, Settings):
    """What `ComparisonRun.start` needs to know: the settings of `TextConfig` and `Settings`, and these.

    Args:
        threads: the number of threads of torch, in the whole process; by default it is left as it is, except that a
            small model is trained on one thread.
        command: the command that repeats the comparison, for the report.
    """

    tokenizer: str = "chars"
    threads: int | None = changeable(None)
    command: str = ""
