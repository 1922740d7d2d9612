"""The mask is skipped when there is a cache.

Mikyx-1/TinyLLM#18 (A). A step of one token needs no mask, so none was built when a cache was passed. But a prompt has
many tokens.
"""

import torch.nn.functional as F

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, tokens

PLACE = "mix"


class Leaks(Heads):
    def attend(self, q, k, v, cache=None):
        if cache is not None:
            cache.append((k, v))
            return F.scaled_dot_product_attention(q, k, v)  # here
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Fixed(Heads):
    def attend(self, q, k, v, cache=None):
        if cache is not None:
            cache.append((k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[1] > 1)


def prefill(model, prompt):
    return model(prompt, cache=[])


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens, call=prefill)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens, call=prefill)
