"""Experts at capacity.

microsoft/Tutel#230 (I). A user asked why results changed with the batch: an expert takes a limited number of tokens
from the whole batch, and the tokens of one item displace those of the next.
"""

from torch import nn

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import DIM, Tiny, tokens

PLACE = "mix"


class Leaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.expert = nn.Linear(DIM, 1), nn.Linear(DIM, DIM)

    def forward(self, x, capacity=3):
        wanted = self.router(x) > 0
        place = wanted.flatten(0, 1).cumsum(0).view_as(wanted)  # here
        return (wanted & (place <= capacity)) * self.expert(x)


class Fixed(Leaks):
    def forward(self, x, capacity=3):
        wanted = self.router(x) > 0
        return (wanted & (wanted.cumsum(1) <= capacity)) * self.expert(x)


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
