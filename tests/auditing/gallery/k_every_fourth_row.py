"""One mask for four rows.

pytorch/pytorch#195910 (K). A fused kernel computed its causal bound only once for every four queries: three of them
heard up to three tokens ahead.
"""

import torch
import torch.nn.functional as F

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, tokens

PLACE = "mix"


class Leaks(Heads):
    def attend(self, q, k, v):
        rows = torch.arange(q.shape[1])[:, None] // 4 * 4 + 3
        mask = torch.arange(q.shape[1]) <= rows
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # here


class Fixed(Heads):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
