"""Trainer: a model, its data and its optimizer, one step at a time.

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

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument
from rearview.training.batches import Batches
from rearview.training.config import TrainConfig
from rearview.training.data import TextData
from rearview.training.evaluation import evaluate
from rearview.training.events import Sample, Validation
from rearview.training.objectives import Objective, objective_of
from rearview.training.optimizer import Optimizer
from rearview.training.precision import chosen
from rearview.training.processes.shared_steps import SharedSteps
from rearview.training.processes.world import World
from rearview.training.randomness import generator_of, seed_everything, seed_of
from rearview.training.samples import sample
from rearview.training.schedule import learning_rate


class Trainer:
    """A model, its data and its optimizer; `step(n)` is one optimizer step.

    Args:
        world: the processes that train together, each with a part of every batch; by default this one alone.
    """

    def __init__(
        self,
        model: nn.Module,
        data: TextData,
        config: TrainConfig,
        *,
        objective: Objective | None = None,
        world: World | None = None,
    ):
        self.model, self.data, self.config, self.world = model, data, config, world
        self.context = context_of(model, config)
        data.check_context(self.context)
        self.objective = objective or objective_of(model, data.tokenizer)
        self.device = next(model.parameters()).device
        self.dtype = chosen(config.precision, self.device)
        self._shared = None if world is None else SharedSteps(world, model, self.objective, config)
        self.optimizer = Optimizer(
            model, weight_decay=config.weight_decay, betas=(config.beta1, config.beta2), clip=config.clip, world=world
        )
        self.batches = Batches(data.train, context=self.context, batch=config.batch, seed=config.seed)
        if config.checkpointing:
            setattr(model, "gradient_checkpointing", True)  # noqa: B010  # a module's own attributes have no type
        model.train()
        # The whole loss is compiled, so that the masks of packed documents are made inside the graph.
        self._loss = torch.compile(self.objective.loss) if config.compile else self.objective.loss

    def lr(self, step: int) -> float:
        """The learning rate of a step."""
        config = self.config
        return learning_rate(step, steps=config.steps, peak=config.lr, warmup=config.warmup, floor=config.floor)

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        """Train step 1, 2, ...; returns the loss and the gradient norm as tensors, which are read later."""
        config, total = self.config, None
        generator = generator_of(config.seed, "objective", step)
        if self._shared is not None:
            parts = range((step - 1) * config.accumulate, step * config.accumulate)
            batches = (self.batches[part].to(self.device) for part in parts)
            return self._shared.losses(batches, generator, step, self.dtype), self.optimizer.step(self.lr(step))
        seed_everything(seed_of(config.seed, "step", step), self.device)
        for part in range(config.accumulate):
            batch = self.batches[(step - 1) * config.accumulate + part].to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
                loss = self._loss(self.model, batch, generator)
            (loss if config.accumulate == 1 else loss / config.accumulate).backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total if config.accumulate == 1 else total / config.accumulate, self.optimizer.step(self.lr(step))

    def validate(self, step: int) -> Validation:
        """The loss on the validation part."""
        found = evaluate(
            self.model,
            self.objective,
            self.data.validation,
            context=self.context,
            most_tokens=self.config.eval_tokens,
            seed=self.config.seed,
            dtype=self.dtype,
            division=None if self._shared is None else self._shared.division,
        )
        return Validation(step, found.loss, found.bits_per_character)

    def plain_model(self) -> nn.Module | None:
        """The model with all of its parameters; in a world only rank 0 gets it."""
        return self.model if self._shared is None else self._shared.plain_model()

    def sample(self, step: int) -> Sample:
        """A sample of the model; in a world rank 0 makes it, and the others have an empty text."""
        config, model = self.config, self.plain_model()
        if model is None:
            return Sample(step, "")
        text = sample(
            model,
            self.objective,
            self.data,
            prompt=config.sample_prompt,
            most_tokens=config.sample_tokens,
            seed=config.seed,
            shown=min(self.context, 64),
        )
        return Sample(step, text)


def context_of(model: nn.Module, config: TrainConfig) -> int:
    """The tokens per row: the context of the config, by default that of the model, which is the most."""
    own: int | None = getattr(getattr(model, "config", None), "context", None)
    wanted = own if config.context is None else config.context
    if wanted is None:
        raise BadArgument("context", expected="the tokens per row: this model has no context of its own", got="none")
    if own is not None and wanted > own:
        raise BadArgument("context", expected=f"at most {own}, the context of the model", got=wanted)
    return wanted
