"""Positions that depend on the length.

huggingface/transformers#25104 (N). Dynamic NTK scaling derives the base of the rotary angles from the total length:
each new token changes all earlier outputs.
"""

import torch
import torch.nn.functional as F

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import DIM, Heads, Tiny, tokens

PLACE = "mix"
LINE = False


class Leaks(Heads):
    def base(self, time):
        return 10000.0 * max(1.0, time / 8)  # here

    def attend(self, q, k, v):
        time = q.shape[1]
        angles = torch.outer(torch.arange(time), self.base(time) ** -torch.linspace(0, 1, DIM // 2))
        turn = torch.polar(torch.ones_like(angles), angles)
        q, k = (torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()) * turn) for t in (q, k))
        return F.scaled_dot_product_attention(q.flatten(-2), k.flatten(-2), v, is_causal=True)


class Fixed(Leaks):
    def base(self, time):
        return 10000.0


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
