"""BERT's objective: some tokens are hidden, and guessed from both sides.

>>> import torch
>>> objective = MaskedTokens(mask_id=9, vocab_size=10, special_ids=(8, 9))
>>> hidden, chosen = objective.hide(torch.arange(8).repeat(4, 1), torch.Generator().manual_seed(0))
>>> 0 < int(chosen.sum()) < 16
True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rearview.training.batches import Batch


class MaskedTokens:
    """A `share` of the ordinary tokens is chosen; 80 % of these are hidden, 10 % replaced, 10 % left as they are."""

    covers_text = False

    def __init__(self, *, mask_id: int, vocab_size: int, special_ids: Sequence[int], share: float = 0.15):
        self.mask_id, self.share = mask_id, share
        self._is_special = torch.zeros(vocab_size, dtype=torch.bool)
        self._is_special[list(special_ids)] = True
        self._ordinary = (~self._is_special).nonzero().flatten()

    def hide(self, tokens: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The tokens as the model sees them, and where it must guess."""
        draw = torch.rand(tokens.shape, generator=generator).to(tokens.device)
        others = self._ordinary[torch.randint(len(self._ordinary), tokens.shape, generator=generator)].to(tokens.device)
        draw = draw.masked_fill(self._is_special.to(tokens.device)[tokens], 1.0)
        chosen = draw < self.share
        # A tiny batch must ask for something: the one that was nearest to being chosen.
        chosen.view(-1)[draw.argmin()] = True
        # Where a choice fell within the share says which of the three it is: again a uniform draw.
        hidden = torch.where(draw < 0.8 * self.share, self.mask_id, tokens)
        replaced = (draw >= 0.8 * self.share) & (draw < 0.9 * self.share)
        return torch.where(replaced, others, hidden), chosen

    def loss(self, model: Any, batch: Batch, generator: torch.Generator) -> Tensor:
        """The mean cross entropy of the tokens that were chosen."""
        seen, chosen = self.hide(batch.tokens, generator)
        if batch.ids is None:
            logits = model(seen)
        else:
            logits = model(seen, mask=batch.mask, positions=batch.positions)
        return F.cross_entropy(logits[chosen].float(), batch.tokens[chosen])
