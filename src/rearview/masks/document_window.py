"""A window within the own document: packed training, as four values from which a device can make the ranges.

>>> import torch
>>> window = DocumentWindow(ids=torch.tensor([[0, 0, 0, 1]]), documents=2) & DocumentWindow(ahead=0)
>>> window.back == EVERY, window.ahead, window.mean_keys
(True, 0, 1.0)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

# More than any number of keys.
EVERY = 1 << 30


@dataclass(frozen=True, eq=False)
class DocumentWindow:
    """Of its document, a query hears `back` positions, its own included, and `ahead` positions after it.

    Args:
        ids: [T] or [batch, T] on the CPU, which never fall along a row; None where all positions are one document.
        documents: how many there are in `ids`.
    """

    back: int = EVERY
    ahead: int = EVERY
    ids: Tensor | None = None
    documents: int = 0

    def __and__(self, other: DocumentWindow) -> DocumentWindow | None:
        """None where both have documents."""
        if self.ids is not None and other.ids is not None:
            return None
        own = other if self.ids is None else self
        return DocumentWindow(min(self.back, other.back), min(self.ahead, other.ahead), own.ids, own.documents)

    @property
    def hears_itself(self) -> bool:
        """Whether every query hears at least its own position."""
        return self.back >= 1 and self.ahead >= 0

    @property
    def mean_keys(self) -> float:
        """How many keys a query hears on average, if all documents are of one length; infinite without documents."""
        if self.ids is None:
            return float("inf")
        length = self.ids.numel() / self.documents
        return min(length / 2 if self.ahead == 0 else length, self.back + self.ahead)
