"""The base class of GPT, BERT and T5: checkpoints, the number of parameters, and initialization.

>>> from rearview.models import GPT, GPTConfig
>>> GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8)).num_parameters()
1472
"""

from __future__ import annotations

import os
from typing import Self

import torch
from torch import nn

from rearview.errors import Unsupported


class Model(nn.Module):
    """A model that is read from and written to Hugging Face folders."""

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], *, dtype: torch.dtype | None = None, device: str | None = None
    ) -> Self:
        """Load a model from a folder that transformers or `save_pretrained` has written."""
        from rearview.models.checkpoint import load

        return load(folder, cls, dtype=dtype, device=device)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write config.json and model.safetensors.

        transformers can read them, unless the model is a GPT with options that GPT-2 does not have.
        """
        from rearview.models.checkpoint import save

        save(self, folder)

    @property
    def batch_invariant(self) -> bool:
        """Whether the bits of a row depend only on the row itself. Only a GPT supports it."""
        return False

    @batch_invariant.setter
    def batch_invariant(self, value: bool) -> None:
        if value is not False:
            reasons = ["the layers around its attention have no batch-invariant form; those of a GPT have"]
            raise Unsupported(f"batch_invariant of a {type(self).__name__}", reasons)

    def num_parameters(self) -> int:
        """The number of parameters, position embeddings included; a tied weight counts once."""
        return sum(parameter.numel() for parameter in self.parameters())


def initialize(module: nn.Module) -> None:
    """Initialize a module as in GPT-2 and BERT: normal weights with standard deviation 0.02, and zero biases."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
