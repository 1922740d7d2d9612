"""Models that are right when they are called plainly, and wrong in another form of the call: what `full` is for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.auditing.zoo import DIM, HEADS, VOCAB, Causal, Heads, lower


class Cached(nn.Module):
    """Attention with a cache; `how` says what becomes of the mask when there is one."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how
        self.embed, self.mix, self.head = nn.Embedding(VOCAB, DIM), Heads(), nn.Linear(DIM, VOCAB)

    def new_cache(self, batch: int) -> list[Tensor]:
        return []

    def forward(self, tokens: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        x = self.embed(tokens)
        q, k, v = self.mix.split(x)
        before = 0
        if cache is not None:
            if cache:
                before = cache[0].shape[2]
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        mask = torch.ones(tokens.shape[1], before + tokens.shape[1], dtype=torch.bool).tril(before)
        if self.how == "skips the mask" and cache is not None:
            heard = F.scaled_dot_product_attention(q, k, v)  # here
        elif self.how == "off by one" and before:
            heard = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | mask.roll(1, 1))  # here
        elif self.how == "aligned top left":
            heard = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            heard = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.head(x + self.mix.join(heard))


class Padded(nn.Module):
    """Takes an attention mask; `how` says what it does with it."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how
        self.embed, self.mix, self.head = nn.Embedding(VOCAB, DIM), Heads(), nn.Linear(DIM, VOCAB)

    def forward(
        self, tokens: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        x = self.embed(tokens)
        time = tokens.shape[1]
        positions = torch.arange(time).expand_as(tokens) if position_ids is None else position_ids
        if self.how == "counts the padding":
            positions = torch.arange(time).expand_as(tokens)
        x = x + 0.1 * positions.unsqueeze(-1).cos()
        q, k, v = self.mix.split(x)
        heard = lower(time)
        if attention_mask is not None and self.how != "ignores the mask":
            real = attention_mask.bool()
            # A padded query has to hear something, or its softmax is NaN.
            heard = (heard & real[:, None, None]) | torch.eye(time, dtype=torch.bool)
        return self.head(x + self.mix.join(F.scaled_dot_product_attention(q, k, v, attn_mask=heard)))


class OneBackend(Heads):
    """Forgets the mask where the flash kernel is off."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        usual = torch.backends.cuda.flash_sdp_enabled()
        return self.join(F.scaled_dot_product_attention(q, k, v, is_causal=usual))


class OnePrecision(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.join(F.scaled_dot_product_attention(q, k, v, is_causal=x.dtype != torch.bfloat16))


class LongOnly(Heads):
    """A chunk of 40 is masked; what is beyond it is not."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        heard = lower(x.shape[1])
        heard[:, 40:] = True
        return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=heard))


class SlidingAttention(Causal):
    """Declares one window and has another."""

    def __init__(self, declared: int, width: int):
        super().__init__("dense", width=width)
        self.sliding_window = declared


def shifted_loss(model: nn.Module, tokens: Tensor, labels: Tensor, shift: int = 1) -> Tensor:
    logits = model(tokens)
    logits, labels = (logits[:, :-shift], labels[:, shift:]) if shift else (logits, labels)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class RepeatedMask(Padded):
    """Repeats a mask over heads in the wrong order: an item gets the padding of another."""

    def forward(
        self, tokens: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        x = self.embed(tokens)
        q, k, v = (part.flatten(0, 1) for part in self.mix.split(x))
        time = tokens.shape[1]
        heard = lower(time).expand(len(tokens), time, time)
        if attention_mask is not None:
            heard = (heard & attention_mask.bool().unsqueeze(1)) | torch.eye(time, dtype=torch.bool)
        heard = heard.repeat(HEADS, 1, 1) if self.how == "wrong" else heard.repeat_interleave(HEADS, 0)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=heard).view(len(tokens), HEADS, time, -1)
        return self.head(x + self.mix.join(mixed))
