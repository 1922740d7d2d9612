"""The mask is dropped when dropout is on.

keras-team/keras#23038 (A). A shortcut for dropout lost the mask: training peeked, evaluation did not.
"""

import torch.nn.functional as F

from rearview.audit import Report, audit
from tests.audit.gallery.parts import Heads, Tiny, tokens

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
