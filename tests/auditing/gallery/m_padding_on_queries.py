"""Padding masked along the wrong axis.

hyunwoongko/transformer#40 (M). The padding mask was applied to the queries, so every real token heard the padding.
"""

# Each case has the signature of the bug.
# pyright: reportIncompatibleMethodOverride=false

import torch
import torch.nn.functional as F

from rearview import causal, padding
from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, lower, tokens

PLACE = "mix"


class Leaks(Heads):
    def attend(self, q, k, v, real):
        mask = lower(q.shape[1]) & real[:, :, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).nan_to_num()  # here


class Fixed(Heads):
    def attend(self, q, k, v, real):
        mask = lower(q.shape[1]) & real[:, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).nan_to_num()


class Model(Tiny):
    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids, real=attention_mask.bool())


real = torch.ones_like(tokens)
real[1, :3] = 0
padded = {"input_ids": tokens, "attention_mask": real}
contract = causal() & padding(real.bool())


def leaks() -> Report:
    return audit(Model(Leaks()), padded, contract=contract)


def fixed() -> Report:
    return audit(Model(Fixed()), padded, contract=contract)
