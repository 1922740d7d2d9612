"""A convolution padded on both sides.

peustr/wavenet#1 (G). padding="same" places half of the kernel over later positions.
"""

import torch.nn.functional as F
from torch import nn

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import DIM, Tiny, tokens

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
