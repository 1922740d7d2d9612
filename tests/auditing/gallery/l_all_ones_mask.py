"""A mask of ones that undoes packing.

fla-org/flash-linear-attention#842 (L). "Nothing is padded" was read as "this is one sequence", and the boundaries of
the documents were dropped.
"""

# Each case has the signature of the bug.
# pyright: reportIncompatibleMethodOverride=false

import torch
import torch.nn.functional as F

from rearview import causal, documents
from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import TIME, Heads, Tiny, lower, tokens

PLACE = "mix"


packed = causal() & documents(torch.arange(TIME) // 5)


class Leaks(Heads):
    def attend(self, q, k, v, attention_mask):
        mask = lower(q.shape[1])
        if not attention_mask.all():
            mask = packed.to_bool(q.shape[1])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # here


class Fixed(Heads):
    def attend(self, q, k, v, attention_mask):
        mask = packed.to_bool(q.shape[1])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask & attention_mask.bool()[:, None, :])


def packed_call(model, x):
    return model(x, attention_mask=torch.ones_like(x))


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens, contract=packed, call=packed_call)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens, contract=packed, call=packed_call)
