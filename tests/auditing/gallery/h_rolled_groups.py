"""Groups that wrap around the end.

JIA-Lab-research/LongLoRA#90 (H). Half of the heads attend within groups that are shifted by half a group. The last
group then begins with the last tokens and ends with the first.
"""

import torch
import torch.nn.functional as F

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, lower, tokens

PLACE = "mix"


class Leaks(Heads):
    def attend(self, q, k, v, group=8):
        q, k, v = (t.roll(-group // 2, 1).unflatten(1, (-1, group)) for t in (q, k, v))  # here
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.flatten(1, 2).roll(group // 2, 1)


class Fixed(Heads):
    def attend(self, q, k, v, group=8):
        moved = (torch.arange(q.shape[1]) + group // 2) // group
        mask = lower(q.shape[1]) & (moved[:, None] == moved)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
