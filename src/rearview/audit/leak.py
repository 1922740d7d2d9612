"""A leak as it is held while the audit runs: with the subject that shows it, and the two inputs.

>>> import torch
>>> from rearview.audit.leak import Leak
>>> from rearview.audit.subject import Subject
>>> subject = Subject.of(lambda x: x.mean(1, keepdim=True).expand_as(x), torch.randn(1, 4))
>>> other = subject.x.clone()
>>> other[0, 3] += 1
>>> watched = torch.tensor([True, True, True, False])
>>> leak = Leak("who heard whom", subject, subject.x, other, watched, query=0, sources=(3,), item=0, amount=0.25)
>>> leak.shows()
0.25
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rearview.audit.probe import difference
from rearview.audit.subject import Subject

Kind = Literal["time", "batch", "length", "form"]


@dataclass(frozen=True, eq=False)
class Leak:
    """Two inputs on which an output differs that may not."""

    check: str
    subject: Subject
    """In the mode, and with the weights, in which it shows."""
    clean: Tensor
    """The varied input, [rows, time, ...], with every batch item."""
    other: Tensor
    watched: Tensor
    """bool [time] of `item`, or bool [rows] for the kind "batch": what must not move."""
    query: int
    sources: tuple[int, ...]
    item: int
    amount: float
    kind: Kind = "time"
    """Who is heard: later positions, other batch items, the length; or another form of the same call."""
    weights: str = "given"
    """`given`, or how the twin that shows it was made."""
    usual: Subject | None = None
    """For the kind "form": the plain call, on `clean`; `subject` is the other form, on `other`."""
    shares_front: bool = False
    """Do the two forms hold the same positions at the front of their outputs? Otherwise at the end."""

    @classmethod
    def of_form(cls, check: str, subject: Subject, *, query: int, source: int, item: int, amount: float) -> Leak:
        """Outputs that differ between two forms of one call, or a loss that asks for what is known: no second input.

        `replace` it with the usual form to have the place found as well.
        """
        watched = torch.ones(subject.time, dtype=torch.bool)
        return cls(check, subject, subject.x, subject.x, watched, query, (source,), item, amount, kind="form")

    def shows(self) -> float:
        """Run both inputs again: the largest difference among what is watched."""
        before, after = self.subject.run(self.clean), self.subject.run(self.other)
        length = min(before.shape[1], after.shape[1])
        amounts, _ = difference(before[:, :length], after[:, :length])
        if self.kind == "batch":
            return float(amounts[self.watched].max())
        return float(amounts[self.item].masked_fill(~self.watched[:length], 0.0).max())

    def of_one_item(self) -> Leak | None:
        """The same leak in a batch of one, if it shows there: quicker to look into."""
        if self.kind not in ("time", "length") or len(self.clean) == 1:
            return None
        rows = slice(self.item, self.item + 1)
        try:
            subject = self.subject.at(self.subject.x[rows]) if len(self.subject.x) > 1 else self.subject
            small = replace(self, subject=subject, clean=self.clean[rows], other=self.other[rows], item=0)
            return small if self.item == 0 and small.shows() > self.amount * 1e-3 else None
        except Exception:
            return None


def worst(amounts: Tensor, hits: Tensor) -> tuple[int, int]:
    """Row and position of the largest amount among the hits.

    >>> worst(torch.tensor([[1.0, 5.0], [3.0, 2.0]]), torch.tensor([[True, False], [True, True]]))
    (1, 0)
    """
    flat = int(torch.where(hits, amounts, torch.full_like(amounts, -1.0)).argmax())
    return flat // amounts.shape[1], flat % amounts.shape[1]
