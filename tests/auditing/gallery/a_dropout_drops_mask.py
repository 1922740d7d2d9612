"""The mask is lost when dropout is on.

keras-team/keras#23038 (A). A fast path for dropout ignored the mask: the model looked ahead in training, but not in
evaluation.
"""

import torch.nn.functional as F

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, tokens

PLACE = "mix"


class Leaks(Heads):
    def attend(self, q, k, v):
        if self.training:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)  # here
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Fixed(Heads):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
