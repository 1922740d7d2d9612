"""BERT's objective: predict hidden tokens from both sides.

>>> import torch
>>> objective = MaskedTokens(mask_id=9, vocab_size=10, special_ids=(8, 9))
>>> hidden, chosen = objective.hide(torch.arange(8).repeat(4, 1), torch.Generator().manual_seed(0))
>>> 0 < int(chosen.sum()) < 16
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rearview.training.batches import NO_TARGET, Batch


class MaskedTokens:
    """A fraction `share` of the ordinary tokens is chosen: 80 % of them are hidden, 10 % replaced, 10 % unchanged."""

    def __init__(self, *, mask_id: int, vocab_size: int, special_ids: Sequence[int], share: float = 0.15):
        self.mask_id, self.share = mask_id, share
        self._is_special = torch.zeros(vocab_size, dtype=torch.bool)
        self._is_special[list(special_ids)] = True
        self._ordinary = (~self._is_special).nonzero().flatten()

    def hide(self, tokens: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The tokens that the model reads, and which of them it must predict."""
        draw = torch.rand(tokens.shape, generator=generator).to(tokens.device)
        others = self._ordinary[torch.randint(len(self._ordinary), tokens.shape, generator=generator)].to(tokens.device)
        draw = draw.masked_fill(self._is_special.to(tokens.device)[tokens], 1.0)
        chosen = draw < self.share
        # Even a tiny batch needs one target: the token that was nearest to being chosen.
        chosen.view(-1)[draw.argmin()] = True
        # The draw of a chosen token is uniform within the share, so it also decides between the three cases.
        hidden = torch.where(draw < 0.8 * self.share, self.mask_id, tokens)
        replaced = (draw >= 0.8 * self.share) & (draw < 0.9 * self.share)
        return torch.where(replaced, others, hidden), chosen

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        """The mean cross entropy of the chosen tokens."""
        seen, chosen = self.hide(batch.tokens, generator)
        logits = replace(batch, tokens=seen).logits(model)
        return F.cross_entropy(logits[chosen].float(), batch.tokens[chosen])

    def prepare(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The tokens that the model reads, with the chosen tokens as targets."""
        seen, chosen = self.hide(batch.tokens, generator)
        return replace(batch, tokens=seen, targets=torch.where(chosen, batch.tokens, NO_TARGET))
