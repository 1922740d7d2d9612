"""Positions that count the padding.

TransformerLensOrg/TransformerLens#1609 (M). With padding on the left, the first word stood at position 3. The loss
went from 4.50 to 13.59.
"""

# Each case has the signature of the bug.
# pyright: reportIncompatibleMethodOverride=false

import torch
import torch.nn.functional as F
from torch import nn

from rearview import causal, padding
from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import DIM, Heads, Tiny, lower, tokens

PLACE = "mix"


class Leaks(Heads):
    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(64, DIM)

    def place(self, real):
        return torch.arange(real.shape[1]).expand(real.shape)

    def forward(self, x, attention_mask):
        real = attention_mask.bool()
        return super().forward(x + self.positions(self.place(real)), real=real)  # here

    def attend(self, q, k, v, real):
        mask = lower(q.shape[1]) & real[:, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).nan_to_num()


class Fixed(Leaks):
    def place(self, real):
        return (real.cumsum(1) - 1).clamp(min=0)


class Model(Tiny):
    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids, attention_mask=attention_mask)


real = torch.ones_like(tokens)
real[1, :3] = 0
padded = {"input_ids": tokens, "attention_mask": real}
contract = causal() & padding(real.bool())


def leaks() -> Report:
    return audit(Model(Leaks()), padded, contract=contract)


def fixed() -> Report:
    return audit(Model(Fixed()), padded, contract=contract)
