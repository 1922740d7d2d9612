"""A model, its data and its optimizer, one step at a time.

>>> from rearview.models import GPT, GPTConfig
>>> from rearview.text import ByteTokenizer
>>> from rearview.training import TextData, TrainConfig
>>> model = GPT(GPTConfig(vocab_size=257, context=8, layers=1, heads=1, width=4))
>>> trainer = Trainer(model, TextData.of(["to be or not to be " * 9], ByteTokenizer()), TrainConfig(batch=2))
>>> loss, norm = trainer.step(1)
>>> 5.4 < float(loss) < 5.7
True
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.training.batches import Batches
from rearview.training.config import TrainConfig
from rearview.training.data import TextData
from rearview.training.evaluate import evaluate
from rearview.training.events import Sample, Validation
from rearview.training.objectives import Objective, objective_of
from rearview.training.optimizer import Optimizer
from rearview.training.precision import chosen
from rearview.training.randomness import generator_of, seed_everything, seed_of
from rearview.training.samples import sample
from rearview.training.schedule import learning_rate


class Trainer:
    """A model, its data and its optimizer: `step(n)` moves the weights once."""

    def __init__(
        self,
        model: Any,
        data: TextData,
        config: TrainConfig,
        *,
        objective: Objective | None = None,
    ):
        self.model, self.data, self.config = model, data, config
        self.context = context_of(model, config)
        data.check_context(self.context)
        self.objective = objective or objective_of(model, data.tokenizer)
        self.device = next(model.parameters()).device
        self.dtype = chosen(config.precision, self.device)
        self.optimizer = Optimizer(
            model, weight_decay=config.weight_decay, betas=(config.beta1, config.beta2), clip=config.clip
        )
        self.batches = Batches(data.train, context=self.context, batch=config.batch, seed=config.seed)
        if config.checkpointing:
            model.gradient_checkpointing = True
        model.train()
        # The loss and not the model alone: masks of packed documents are then made inside the graph, from tensors.
        self._loss = torch.compile(self.objective.loss) if config.compile else self.objective.loss

    def lr(self, step: int) -> float:
        config = self.config
        return learning_rate(step, steps=config.steps, peak=config.lr, warmup=config.warmup, floor=config.floor)

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        """The loss and the norm of the gradients, of step 1, 2 ..., as tensors: reading them can wait."""
        config, total = self.config, None
        seed_everything(seed_of(config.seed, "step", step), self.device)
        generator = generator_of(config.seed, "objective", step)
        for part in range(config.accumulate):
            batch = self.batches[(step - 1) * config.accumulate + part].to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
                loss = self._loss(self.model, batch, generator)
            (loss if config.accumulate == 1 else loss / config.accumulate).backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total if config.accumulate == 1 else total / config.accumulate, self.optimizer.step(self.lr(step))

    def validate(self, step: int) -> Validation:
        found = evaluate(
            self.model,
            self.objective,
            self.data.validation,
            context=self.context,
            most_tokens=self.config.eval_tokens,
            seed=self.config.seed,
            dtype=self.dtype,
        )
        return Validation(step, found.loss, found.bits_per_character)

    def sample(self, step: int) -> Sample:
        config = self.config
        text = sample(
            self.model,
            self.objective,
            self.data,
            prompt=config.sample_prompt,
            most_tokens=config.sample_tokens,
            seed=config.seed,
            shown=min(self.context, 64),
        )
        return Sample(step, text)


def context_of(model: Any, config: TrainConfig) -> int:
    """Tokens in a row: what the config says, else the model's own, which is the most."""
    own = getattr(getattr(model, "config", None), "context", None)
    wanted = own if config.context is None else config.context
    if wanted is None:
        raise BadArgument("context", expected="tokens in a row: this model has no context of its own", came="none")
    if own is not None and wanted > own:
        raise BadArgument("context", expected=f"at most {own}, the model's own", came=wanted)
    return wanted
