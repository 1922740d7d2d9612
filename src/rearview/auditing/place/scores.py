"""What is wrong with a mask, judged by the scores or the weights that it should have masked.

>>> import torch
>>> from rearview.auditing.place.scores import fault_of_scores
>>> forbidden = torch.ones(4, 4).triu(1).bool()
>>> fault_of_scores(torch.randn(1, 4, 4), forbidden)
'no mask reaches this softmax: every score counts'
>>> fault_of_scores(torch.randn(4, 4).masked_fill(torch.ones(4, 4).triu(2).bool(), -torch.inf), forbidden)
'the mask is off by one: each position hears the next one'
"""

from __future__ import annotations

import torch
from torch import Tensor

# Scores of a trained model are in the tens; a lower number than this is a mask.
BLOCKS = -1000.0


def square(tensor: Tensor, time: int) -> Tensor | None:
    """The last two axes as [rows, time, time], where they are queries and keys; else None."""
    if tensor.ndim < 2 or tensor.shape[-2:] != (time, time):
        return None
    return tensor.reshape(-1, time, time).cpu()


def fault_of_scores(scores: Tensor, forbidden: Tensor) -> str:
    """The fault of scores [..., query, key] that enter a softmax; `forbidden`, bool [query, key], should be masked."""
    rows = square(scores, len(forbidden))
    if rows is None:
        return ""
    masked = (rows <= BLOCKS) | rows.isnan()
    if not bool(masked.any()):
        return _fault_of_unmasked(rows, forbidden)
    fault = fault_of_mask(~masked, forbidden)
    if fault:
        return fault
    values = rows[:, forbidden]
    if bool(values.isfinite().all()):
        return (
            f"the mask is a finite number (about {float(values.double().mean()):.3g}), and scores outweigh it. "
            "Mask with -inf"
        )
    return ""


def _fault_of_unmasked(rows: Tensor, forbidden: Tensor) -> str:
    values = rows[:, forbidden]
    if values.numel() and bool((values == values.flatten()[0]).all()) and values.numel() > 1:
        value = float(values.flatten()[0])
        if value == 0.0:
            return "the mask multiplies the scores, and 0 is a score like any other. Add -inf instead"
        return f"masked scores are {value:.3g} here, like any other score: something (tanh, a clamp) follows the mask"
    if values.numel() > 1 and float(values.double().amax()) < float(rows[:, ~forbidden].double().amin()):
        return (
            f"the mask is too weak: masked scores are about {float(values.double().mean()):.3g} here. "
            "Mask with -inf, as the last step"
        )
    return "no mask reaches this softmax: every score counts"


def fault_of_mask(heard: Tensor, forbidden: Tensor, q_start: int = 0) -> str:
    """The fault of a mask, bool [rows, query, key] with True = heard; `forbidden`, bool [query, key], should be False.

    `q_start` is the position of the first query: after a cache it is not 0.
    """
    heard = heard.cpu()
    if bool(heard.all()):
        return "no mask reaches this attention: every key is heard"
    wrong = (heard & forbidden).any(0)
    if not bool(wrong.any()):
        return ""
    allowed = ~forbidden
    blocked_share = float((~heard[:, allowed]).float().mean()) if bool(allowed.any()) else 0.0
    if blocked_share > 0.5 and float(heard[:, forbidden].float().mean()) > 0.5:
        return "the mask is inverted: it shows what it should hide and hides what it should show"
    query, key = wrong.nonzero().unbind(-1)
    ahead = key - query - q_start
    if bool((ahead == 1).all()):
        return "the mask is off by one: each position hears the next one"
    reach = int(ahead.max())
    distance = torch.arange(forbidden.shape[1]) - torch.arange(len(forbidden)).unsqueeze(1) - q_start
    if bool((ahead > 0).all()) and reach < len(forbidden) - 1 and torch.equal(wrong, forbidden & (distance <= reach)):
        return f"the mask reaches {reach} positions too far ahead"
    if bool((ahead < 0).all()) and torch.equal(forbidden[1:, 1:], forbidden[:-1, :-1]):
        return f"the window is too wide: it reaches back {int((-ahead).max()) + 1} positions"
    size = block_size(wrong, forbidden)
    if size:
        return f"the mask hides nothing within blocks of {size} positions"
    return f"the mask shows {int(wrong.sum())} of {int(forbidden.sum())} forbidden pairs"


def block_size(wrong: Tensor, forbidden: Tensor) -> int:
    """The n for which exactly the forbidden pairs within blocks of n positions are heard; 0 where there is none."""
    time = len(forbidden)
    if wrong.shape != forbidden.shape or wrong.shape[0] != wrong.shape[1]:
        return 0
    for size in range(2, time):
        block = torch.arange(time) // size
        if torch.equal(wrong, forbidden & (block.unsqueeze(0) == block.unsqueeze(1))):
            return size
    return 0
