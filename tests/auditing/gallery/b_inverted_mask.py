"""A mask with inverted polarity.

rasbt/LLMs-from-scratch#1061 (B). triu() marks the keys to hide, but for SDPA True means that a key is heard, so each
query heard only the future.
"""

import torch
import torch.nn.functional as F

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, tokens

PLACE = "mix"


class Leaks(Heads):
    def attend(self, q, k, v):
        mask = torch.ones(q.shape[1], q.shape[1]).triu(1).bool()
        mask[-1, -1] = True
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # here


class Fixed(Heads):
    def attend(self, q, k, v):
        mask = torch.ones(q.shape[1], q.shape[1]).triu(1).bool()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
