"""A convolution padded on both sides.

peustr/wavenet#1 (G). padding="same" puts half of the kernel on what comes next.
"""

import torch.nn.functional as F
from torch import nn

from rearview.audit import Report, audit
from tests.audit.gallery.parts import DIM, Tiny, tokens

PLACE = "mix.conv"


class Leaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, 3, padding="same")

    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)  # here


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, 3)

    def forward(self, x):
        return self.conv(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
