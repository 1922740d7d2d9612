"""The division of a batch between processes: one batch and one loss, whatever their number.

The rows are divided over data parallel processes, and each sequence over context parallel ones. Every process gets the
sum of the losses of its own targets, divided by the number of all targets; so the sum over the processes is the mean
over the batch, and the sum of the gradients is its gradient. No part needs to be as large as another.

>>> [rows_of(part, 3, rows=8) for part in range(3)]
[slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rearview.errors import BadArgument, Unsupported
from rearview.masks import Mask, full
from rearview.models import BERT, GPT
from rearview.training.batches import NO_TARGET, Batch
from rearview.training.objectives import DivisibleObjective, Objective
from rearview.training.processes.world import World

if TYPE_CHECKING:
    from rearview.parallel import Layout


def rows_of(part: int, parts: int, *, rows: int) -> slice:
    """The rows of one of several parts, as equal as they can be."""
    return slice(part * rows // parts, (part + 1) * rows // parts)


class Division:
    """How the processes of a world divide a batch.

    Args:
        masks: the masks of the layers, by which a sequence is divided over context parallel processes.
    """

    def __init__(self, world: World, objective: DivisibleObjective, masks: tuple[Mask, ...]):
        self.world, self.objective, self.masks = world, objective, masks
        self._layouts: dict[int, Layout] = {}

    @classmethod
    def of(cls, world: World, model: nn.Module, objective: Objective, *, batch: int) -> Division:
        """The division of batches of this many rows; what cannot be divided is refused."""
        if not isinstance(objective, DivisibleObjective):
            reasons = [f"its objective {type(objective).__name__} has no prepare(batch, generator)"]
            raise Unsupported("Training in several processes", reasons)
        if batch < world.data_parallel:
            raise BadArgument(
                "batch",
                expected=f"at least {world.data_parallel} rows, one for each data parallel process",
                got=batch,
                advice="Use fewer processes, or a larger --batch.",
            )
        masks: tuple[Mask, ...] = getattr(getattr(model, "config", None), "masks", (full(),))
        if world.context_parallel > 1:
            _check_context_parallel(model, masks)
        return cls(world, objective, masks)

    def loss(
        self,
        model: nn.Module,
        batch: Batch,
        generator: torch.Generator,
        *,
        dtype: torch.dtype,
        weight: float | None = None,
    ) -> Tensor:
        """This process's part of the mean loss; with a `weight`, the gradients of that multiple are computed too."""
        question = self.objective.prepare(batch, generator)
        targets = max(int((question.targets != NO_TARGET).sum()), 1)
        own = rows_of(self.world.replica, self.world.data_parallel, rows=len(question.targets))
        # In validation a batch may have fewer rows than there are processes. A process without rows calls the model
        # all the same, because the others wait for it there.
        is_idle = own.start == own.stop
        part = question.rows(slice(0, 1) if is_idle else own)
        with ExitStack() as stack:
            if self.world.context_parallel > 1:
                assert isinstance(part, Batch), "a T5 is refused"
                layout = self._layout(part)
                stack.enter_context(layout.on(self.world.mesh["cp"]))
                part = _cut(part, layout)
            with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                logits = part.logits(model).flatten(0, 1).float()
                answers = part.targets.flatten()
                loss = F.cross_entropy(logits, answers, ignore_index=NO_TARGET, reduction="sum") / targets
            loss = loss * 0.0 if is_idle else loss
            if weight is not None:
                # On the layout: the backward pass of a divided sequence exchanges keys again.
                (loss * weight).backward()
        return loss.detach()

    def _layout(self, part: Batch) -> Layout:
        """Which positions each context parallel process has; every process of the group computes the same."""
        # Here, because one process alone needs none of it.
        from rearview.parallel import shard

        length = part.tokens.shape[1]
        if part.mask is not None:
            return shard([mask & part.mask for mask in self.masks], length, self.world.context_parallel)
        if length not in self._layouts:
            self._layouts[length] = shard(self.masks, length, self.world.context_parallel)
        return self._layouts[length]


def _cut(part: Batch, layout: Layout) -> Batch:
    """The positions of this process. Masks speak of the whole sequence, so the ids of documents are not cut."""
    positions = None if part.positions is None else layout.split(part.positions)
    tokens, targets = layout.split(part.tokens), layout.split(part.targets)
    return replace(part, tokens=tokens, targets=targets, positions=positions)


def _check_context_parallel(model: nn.Module, masks: tuple[Mask, ...]) -> None:
    from rearview.parallel.workload import check_has_ranges

    if not isinstance(model, (GPT, BERT)):
        reasons = [f"a sequence of a {type(model).__name__} cannot be divided; that of a GPT or BERT can"]
        raise Unsupported("--context-parallel", reasons)
    if model.config.dropout:
        raise BadArgument(
            "dropout",
            expected="0 with --context-parallel: the dropout of attention weights has no form on a divided sequence",
            got=model.config.dropout,
        )
    for mask in masks:
        check_has_ranges(mask)
