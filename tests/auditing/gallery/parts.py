"""The parts that the models of the gallery share: a tiny decoder around one layer that mixes positions."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, DIM, TIME = 29, 12, 16


class Tiny(nn.Module):
    """Tokens in, logits out; `mix` is the only layer through which positions can hear each other."""

    def __init__(self, mix: nn.Module):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(VOCAB, DIM), mix, nn.Linear(DIM, VOCAB)

    def forward(self, tokens, **others):
        x = self.embed(tokens)
        return self.head(x + self.mix(x, **others))


class Heads(nn.Module):
    """One head of attention; the leaking models override `attend`."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, x, **others):
        return self.attend(*self.qkv(x).chunk(3, -1), **others)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def lower(time):
    return torch.ones(time, time, dtype=torch.bool).tril()


torch.manual_seed(0)
tokens = torch.randint(VOCAB, (2, TIME))
signal = torch.randn(2, TIME, DIM)
