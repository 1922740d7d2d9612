"""A convolution across packed documents.

PrimeIntellect-ai/prime-rl#3000 (L). Attention stayed within each document. The short convolution before it did not.
"""

import torch
import torch.nn.functional as F
from torch import nn

from rearview import causal, documents
from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import DIM, TIME, Tiny, tokens

PLACE = "mix"


documents_of = torch.arange(TIME) // 5
packed = causal() & documents(documents_of)


class Leaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(DIM, 1, 3))

    def forward(self, x):
        return F.conv1d(F.pad(x.transpose(1, 2), (2, 0)), self.taps, groups=DIM).transpose(1, 2)  # here


class Fixed(Leaks):
    def forward(self, x):
        out = torch.zeros_like(x)
        for back in range(3):
            there = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]
            same = documents_of == F.pad(documents_of, (back, 0), value=-1)[: x.shape[1]]
            out = out + there * same.unsqueeze(-1) * self.taps[:, 0, 2 - back]
        return out


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens, contract=packed)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens, contract=packed)
