"""A leak found during an audit: the model that shows it, and the two inputs whose outputs differ.

>>> import torch
>>> from rearview.auditing.evidence.leak import Leak
>>> from rearview.auditing.model.subject import Subject
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

from rearview.auditing.evidence.probe import difference
from rearview.auditing.model.decoding import StepwiseCall
from rearview.auditing.model.draws import SEEDS
from rearview.auditing.model.inputs import Inputs, fit_inputs
from rearview.auditing.model.subject import Subject
from rearview.auditing.reporting.witness import Constant, Witness

# With fixed draws, a difference by chance becomes smaller than this fraction of itself: rounding. A leak that keeps
# more than the other fraction is no matter of chance.
CHANCE_LEAVES, CHANCE_AT_MOST = 1e-4, 0.1
Kind = Literal["time", "batch", "length", "form"]


@dataclass(frozen=True, eq=False)
class Leak:
    """Two inputs for which an output differs that must not."""

    check: str
    subject: Subject
    """The model in the mode, and with the weights, in which it shows."""
    clean: Tensor
    """The varied input, [rows, time, ...], with all batch items."""
    other: Tensor
    watched: Tensor
    """The outputs that must not move: bool [time] of `item`, or bool [rows] for the kind "batch"."""
    query: int
    sources: tuple[int, ...]
    item: int
    amount: float
    kind: Kind = "time"
    """What is heard: other positions, other batch items, the length of the input; or "form", two forms of one call."""
    weights: str = "given"
    """`given`, or how the copy that shows it was reinitialized."""
    usual: Subject | None = None
    """For the kind "form": the usual form, run on `clean`; `subject` is the other form, run on `other`."""
    shares_front: bool = False
    """Whether the positions common to both forms stand at the front of their outputs; otherwise at the end."""

    @classmethod
    def of_form(cls, check: str, subject: Subject, *, query: int, source: int, item: int, amount: float) -> Leak:
        """A leak without a second input: outputs that differ between two forms of one call, or a misaligned loss.

        The place can be found where the usual form is added with `replace`.
        """
        watched = torch.ones(subject.time, dtype=torch.bool)
        return cls(check, subject, subject.x, subject.x, watched, query, (source,), item, amount, kind="form")

    def shows(self) -> float:
        """Run both inputs again; the largest difference among the watched outputs."""
        return float(self._differences().max())

    def _differences(self) -> Tensor:
        """float64 [rows, time], or [time] of the item: the differences among the watched outputs."""
        before, after = self.subject.run(self.clean), self.subject.run(self.other)
        length = min(before.shape[1], after.shape[1])
        amounts, _ = difference(before[:, :length], after[:, :length])
        if self.kind == "batch":
            return amounts[self.watched]
        return amounts[self.item].masked_fill(~self.watched[:length], 0.0)

    def without_chance(self) -> Leak | None:
        """The leak with draws that do not depend on how many were made before; None where nothing remains of it.

        A leak that keeps its size stays as it is, since its number of draws does not depend on the data.
        """
        if self.subject.fixed_draws is not None or not self._draws():
            return self
        fixed = [replace(self, subject=replace(self.subject, fixed_draws=seed)) for seed in SEEDS]
        try:
            found = [leak._differences() for leak in fixed]
        except Exception:
            # The model may raise anything when its draws are replaced. Then the leak stands.
            return self
        amounts = [float(differences.max()) for differences in found]
        largest = max(amounts)
        if largest > CHANCE_AT_MOST * self.amount:
            return self
        # Experts that get other tokens round differently.
        if largest <= CHANCE_LEAVES * self.amount:
            return None
        which = amounts.index(largest)
        query = int(found[which].argmax()) % self.clean.shape[1]
        return replace(fixed[which], amount=largest, query=query)

    def _draws(self) -> bool:
        """Whether another seed gives other outputs."""
        reseeded = replace(self.subject, seed=self.subject.seed + 1)
        return not torch.equal(self.subject.run(self.clean), reseeded.run(self.clean))

    def of_one_item(self) -> Leak | None:
        """The same leak in a batch of one, where it shows there: faster to examine."""
        if self.kind not in ("time", "length") or len(self.clean) == 1:
            return None
        rows = slice(self.item, self.item + 1)
        try:
            subject = self.subject.at(self.subject.x[rows]) if len(self.subject.x) > 1 else self.subject
            small = replace(self, subject=subject, clean=self.clean[rows], other=self.other[rows], item=0)
            return small if self.item == 0 and small.shows() > self.amount * 1e-3 else None
        except Exception:
            # The model may raise anything on a batch of another size.
            return None

    def witness(self) -> Witness:
        """The leak as plain values, which can be saved and replayed."""
        subject = self.subject
        varied = "" if subject.varied is None else str(subject.varied)
        other = {varied: self.other.movedim((0, 1), (subject.batch_axis, subject.time_axis))}
        if self.clean.shape[1] != self.other.shape[1]:
            fitted = fit_inputs(subject.inputs, subject.varied, self.other, items=None, fitting=subject.fitting)
            other = {**_tensors(fitted), **other}
        stepwise = subject.call if isinstance(subject.call, StepwiseCall) else None
        output = subject.output if stepwise is None else stepwise.output
        return Witness(
            check=self.check,
            kind=self.kind,
            query=self.query,
            sources=self.sources,
            item=self.item,
            amount=self.amount,
            clean=_tensors(subject.inputs),
            other=other,
            training=subject.training,
            weights=self.weights,
            seed=subject.seed,
            fixed_draws=subject.fixed_draws,
            output=(*output.path, output.batch_axis, output.time_axis),
            steps=() if stepwise is None else stepwise.steps,
            constants=_constants(subject.inputs),
            batch_axis=subject.batch_axis,
            time_axis=subject.time_axis,
        )


def _named(inputs: Inputs) -> dict[str, object]:
    if isinstance(inputs, Tensor):
        return {"": inputs}
    return dict(inputs) if isinstance(inputs, dict) else {str(n): value for n, value in enumerate(inputs)}


def _tensors(inputs: Inputs) -> dict[str, Tensor]:
    return {name: value for name, value in _named(inputs).items() if isinstance(value, Tensor)}


def _constants(inputs: Inputs) -> dict[str, Constant]:
    named = _named(inputs).items()
    return {name: value for name, value in named if value is None or isinstance(value, (bool, int, float, str))}


def worst(amounts: Tensor, hits: Tensor) -> tuple[int, int]:
    """Row and position of the largest amount among the hits.

    >>> worst(torch.tensor([[1.0, 5.0], [3.0, 2.0]]), torch.tensor([[True, False], [True, True]]))
    (1, 0)
    """
    flat = int(torch.where(hits, amounts, torch.full_like(amounts, -1.0)).argmax())
    return flat // amounts.shape[1], flat % amounts.shape[1]
