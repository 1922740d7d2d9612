"""Batch normalisation over events.

pytorch-lifestream/pytorch-lifestream#128 (F). In train mode its statistics are taken over every position and item; in
eval mode nothing shows.
"""

from torch import nn

from rearview.audit import Report, audit
from tests.audit.gallery.parts import DIM, Heads, Tiny, tokens

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
