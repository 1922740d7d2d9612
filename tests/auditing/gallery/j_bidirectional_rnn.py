"""A bidirectional recurrent decoder.

timbmg/Sentence-VAE#22 (J). The second direction reads from the end of the sentence that the model is to generate.
"""

from torch import nn

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import DIM, Tiny, tokens

PLACE = "mix.rnn"


class Leaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(DIM, DIM // 2, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.rnn(x)[0]  # here


class Fixed(Leaks):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
