"""The part of this process in every step that several processes train together."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rearview.errors import Unsupported
from rearview.training.batches import Batch
from rearview.training.config import TrainConfig
from rearview.training.objectives import Objective
from rearview.training.processes.division import Division
from rearview.training.processes.replication import Copies, Shards, whole
from rearview.training.processes.world import World
from rearview.training.randomness import seed_everything, seed_of


class SharedSteps:
    """Computes the losses and gradients of steps, for the part of this process.

    The model is on the device of the process. It stays the same object; with `config.shard` its parameters become
    parts.
    """

    def __init__(self, world: World, model: nn.Module, objective: Objective, config: TrainConfig):
        if config.compile:
            raise Unsupported("--compile in several processes", ["compiled losses are tested in one process only"])
        self.world, self.config, self.model = world, config, model
        self._kind = type(model)
        self.division = Division.of(world, model, objective, batch=config.batch)
        self._replicas = Shards(model, world) if config.shard else Copies(model, world)

    def losses(self, batches: Iterable[Batch], generator: torch.Generator, step: int, dtype: torch.dtype) -> Tensor:
        """The mean loss of the batches of a step, over all processes; the gradients are in the parameters."""
        config, device = self.config, self.world.device
        # Dropout differs between processes: each has other rows.
        seed_everything(seed_of(config.seed, "step", step, self.world.rank), device)
        total, weight = torch.zeros((), device=device), 1 / config.accumulate
        for part, batch in enumerate(batches, start=1):
            with self._replicas.summing(last=part == config.accumulate):
                total += self.division.loss(self._replicas.module, batch, generator, dtype=dtype, weight=weight)
        return self.world.sum(total * weight)

    def plain_model(self) -> nn.Module | None:
        """The whole model in rank 0, None in the others; every process must ask. A model in shards is copied."""
        model, world = self.model, self.world
        if isinstance(self._replicas, Copies):
            return model if world.is_first else None
        copy = self._kind(model.config) if world.is_first else None
        own = {} if copy is None else dict(copy.named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # One after the other: at no time is more than one parameter whole on a device.
                found = whole(parameter)
                if copy is not None:
                    own[name].copy_(found)
        return copy
