"""The mean of a token's own block.

karpathy/nanochat#844 (I). Each token was given the mean of its own block, which includes later tokens.
"""

import torch.nn.functional as F
from torch import nn

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Tiny, tokens

PLACE = "mix"


class Leaks(nn.Module):
    def forward(self, x, block=4):
        means = x.unflatten(1, (-1, block)).mean(2)
        return means.repeat_interleave(block, 1)  # here


class Fixed(nn.Module):
    def forward(self, x, block=4):
        means = x.unflatten(1, (-1, block)).mean(2)
        # Of the block before.
        return F.pad(means, (0, 0, 1, 0))[:, :-1].repeat_interleave(block, 1)


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
