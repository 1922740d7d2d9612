"""A prompt in chunks without a mask.

lablup/mlxcel#891 (N). The first chunk was causal. For the following ones the mask was dropped, since "all keys in a
cache are past".
"""

import torch
import torch.nn.functional as F

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, lower, tokens

PLACE = "mix"


class Leaks(Heads):
    def attend(self, q, k, v, chunk=8):
        first = F.scaled_dot_product_attention(q[:, :chunk], k[:, :chunk], v[:, :chunk], is_causal=True)
        return torch.cat([first, F.scaled_dot_product_attention(q[:, chunk:], k, v)], 1)  # here


class Fixed(Heads):
    def attend(self, q, k, v, chunk=8):
        first = F.scaled_dot_product_attention(q[:, :chunk], k[:, :chunk], v[:, :chunk], is_causal=True)
        mask = lower(q.shape[1])[chunk:]
        return torch.cat([first, F.scaled_dot_product_attention(q[:, chunk:], k, v, attn_mask=mask)], 1)


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
