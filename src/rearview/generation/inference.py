"""Inference mode: no gradients and no dropout, for the duration of a `with` block.

>>> from torch import nn
>>> model = nn.Dropout(0.5)
>>> with inference(model):
...     model.training
False
>>> model.training
True
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn


def inference(model: nn.Module) -> AbstractContextManager[object]:
    """Run `model` in evaluation and inference mode, and restore its training mode afterwards."""
    return torch.inference_mode() if not model.training else _evaluating(model)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True
