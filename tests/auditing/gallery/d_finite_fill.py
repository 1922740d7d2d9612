"""A finite number as a mask.

karpathy/minGPT#75 (D). Forbidden scores were set to -1e4. Training drove the allowed scores below that, and the loss
went to zero.
"""

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, lower, tokens

PLACE = "mix"


class Leaks(Heads):
    def attend(self, q, k, v):
        # As training leaves it: every score far below zero.
        scores = -3e4 - (q @ k.transpose(1, 2)).square()
        scores = scores.masked_fill(~lower(q.shape[1]), -1e4)
        return scores.softmax(-1) @ v  # here


class Fixed(Heads):
    def attend(self, q, k, v):
        scores = -3e4 - (q @ k.transpose(1, 2)).square()
        return scores.masked_fill(~lower(q.shape[1]), float("-inf")).softmax(-1) @ v


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
