"""Batch normalization over events.

pytorch-lifestream/pytorch-lifestream#128 (F). In train mode its statistics are taken over all positions and batch
items. In eval mode nothing shows.
"""

# Each case has the signature of the bug.
# pyright: reportIncompatibleMethodOverride=false

from torch import nn

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import DIM, Heads, Tiny, tokens

PLACE = "mix.norm"


class Leaks(Heads):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(DIM)

    def forward(self, x):
        return super().forward(self.norm(x.transpose(1, 2)).transpose(1, 2))  # here


class Fixed(Heads):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x):
        return super().forward(self.norm(x))


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
