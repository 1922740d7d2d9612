"""Experts that choose their tokens.

piotrpiekos/MoSA#3 (I). Top-k over the sequence: whether a token is chosen depends on later tokens. Gradients do not
show it.
"""

# Each case has the signature of the bug.
# pyright: reportIncompatibleMethodOverride=false

import torch
from torch import nn

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import DIM, Heads, Tiny, tokens

PLACE = "mix"


class Leaks(Heads):
    def __init__(self):
        super().__init__()
        self.router, self.expert = nn.Linear(DIM, 1), nn.Linear(DIM, DIM)

    def forward(self, x):
        x = super().forward(x)
        chosen = self.router(x).topk(4, dim=1).indices  # here
        return torch.zeros_like(x).scatter(1, chosen.expand(-1, -1, DIM), 1.0) * self.expert(x)  # or here


class Fixed(Leaks):
    def forward(self, x):
        x = Heads.forward(self, x)
        return self.router(x).sigmoid() * self.expert(x)


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
