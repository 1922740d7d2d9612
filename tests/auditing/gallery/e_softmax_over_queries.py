"""Softmax over the queries.

datawhalechina/llms-from-scratch-cn#54 (E). Axis 1 of [batch, query, key] holds the queries: each weight was divided
by a sum that includes later queries.
"""

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, lower, tokens

PLACE = "mix"


class Leaks(Heads):
    def attend(self, q, k, v):
        scores = (q @ k.transpose(1, 2)).masked_fill(~lower(q.shape[1]), float("-inf"))
        return scores.softmax(1) @ v  # here


class Fixed(Heads):
    def attend(self, q, k, v):
        scores = (q @ k.transpose(1, 2)).masked_fill(~lower(q.shape[1]), float("-inf"))
        return scores.softmax(-1) @ v


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
