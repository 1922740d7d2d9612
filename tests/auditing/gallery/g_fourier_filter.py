"""A filter in the Fourier domain.

karpathy/nanochat#844 (G). Zeros appended to the sequence do not make a learned filter causal: its values in the time
domain must be zero for negative lags.
"""

import torch
import torch.nn.functional as F
from torch import nn

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import DIM, TIME, Tiny, tokens

PLACE = "mix"


class Leaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(TIME + 1, DIM, dtype=torch.cfloat))

    def forward(self, x):
        spectrum = torch.fft.rfft(x, n=2 * TIME, dim=1)  # here
        return torch.fft.irfft(spectrum * self.filter, n=2 * TIME, dim=1)[:, : x.shape[1]]


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(DIM, 1, TIME))

    def forward(self, x):
        # The same filter, as taps in time: those that reach back.
        return F.conv1d(F.pad(x.transpose(1, 2), (TIME - 1, 0)), self.taps, groups=DIM).transpose(1, 2)


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
