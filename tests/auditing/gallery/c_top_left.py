"""A causal mask aligned with the wrong corner.

pytorch/pytorch#108108 (C). is_causal counts queries from the first key: with a cache, a new token hears the oldest
keys and not itself.
"""

import torch
import torch.nn.functional as F
from torch import nn

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, lower, tokens

PLACE = "decoder.mix"


class Leaks(Heads):
    def attend(self, q, k, v, past=None):
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        self.present = (k, v)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # here


class Fixed(Leaks):
    def attend(self, q, k, v, past=None):
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        self.present = (k, v)
        mask = lower(k.shape[1])[-q.shape[1] :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Cached(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.decoder = Tiny(mix)

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        logits = self.decoder(input_ids, past=past_key_values)
        return {"logits": logits, "past_key_values": self.decoder.mix.present if use_cache else None}


def leaks() -> Report:
    return audit(Cached(Leaks()), {"input_ids": tokens})


def fixed() -> Report:
    return audit(Cached(Fixed()), {"input_ids": tokens})
