"""GPT's objective: predict the next token at each position.

>>> import torch
>>> from rearview.models import GPT, GPTConfig
>>> from rearview.training.batches import Batch
>>> model = GPT(GPTConfig(vocab_size=4, context=3, layers=1, heads=1, width=4))
>>> batch = Batch(torch.tensor([[0, 1, 2]]), torch.tensor([[1, 2, 3]]))
>>> NextToken().loss(model, batch).shape
torch.Size([])
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rearview.training.batches import Batch


class NextToken:
    """Every token is a target, and nothing is random."""

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        """The mean cross entropy, in float32 whatever the dtype of the logits."""
        return F.cross_entropy(batch.logits(model).flatten(0, 1).float(), batch.targets.flatten())

    def prepare(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch itself."""
        return batch
