"""What GPT, BERT and T5 share beside the block: their folders, their size, how their weights start.

>>> from rearview.models import GPT, GPTConfig
>>> GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8)).num_parameters()
1472
"""

from __future__ import annotations

import os
from typing import Self

import torch
from torch import nn


class Model(nn.Module):
    """A model that reads and writes Hugging Face's folders."""

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], *, dtype: torch.dtype | None = None, device: str | None = None
    ) -> Self:
        """A model from a folder with config.json and safetensors, of Hugging Face's class or saved here."""
        from rearview.models.checkpoint import load

        return load(folder, cls, dtype=dtype, device=device)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write config.json and model.safetensors, which transformers reads; a GPT that is no GPT-2 says so there."""
        from rearview.models.checkpoint import save

        save(self, folder)

    def num_parameters(self) -> int:
        """Trained numbers; tied ones count once, positions are counted."""
        return sum(parameter.numel() for parameter in self.parameters())


def start_small(module: nn.Module) -> None:
    """The start of GPT-2 and BERT: small normals, no bias."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
