"""Normalization over time.

espnet/espnet#5900 (F). A model described as causal took mean and variance over all frames. Published results used it.
"""

import torch
from torch import nn

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import signal

PLACE = ""


class Leaks(nn.Module):
    def forward(self, x):
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)  # here


class Fixed(nn.Module):
    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
        mean = x.cumsum(1) / count
        square = x.square().cumsum(1) / count
        return (x - mean) / (square - mean.square()).clamp(min=1e-5).sqrt()


def leaks() -> Report:
    return audit(Leaks(), signal)


def fixed() -> Report:
    return audit(Fixed(), signal)
