"""The trial: the subject, the contract and the tools that the checks share.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.trial import Trial
>>> trial = Trial.of(lambda x: x.cumsum(1), torch.randn(2, 8), causal())
>>> trial.subject.time, trial.deterministic, trial.finite
(8, True, True)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rearview.audit.contract import Contract
from rearview.audit.leak import Leak
from rearview.audit.noise import Judge
from rearview.audit.probe import Prober, difference, scale_of
from rearview.audit.report import Check, Hears
from rearview.audit.state import Buffers
from rearview.audit.subject import Subject
from rearview.errors import RearviewError
from rearview.masks import Mask


@dataclass(frozen=True)
class Outcome:
    """What a check came to; a failed one brings the leak."""

    check: Check
    leak: Leak | None = None


@dataclass
class Trial:
    """What the checks need, and what one may leave for the next."""

    subject: Subject
    contract: Contract
    baseline: Tensor
    """The output for the inputs as they were given."""
    generator: torch.Generator
    full: bool = False
    step: Callable[[Any, Tensor], Any] | None = None
    loss: Callable[..., Any] | None = None
    repeated: float = 0.0
    """How far two runs of the same input differ."""
    random: bool = False
    """Does another seed give another output? Then another shape draws other numbers, and is another model."""
    batched: bool = True
    """Do rows that stand for one item each run in a batch of any size?"""
    coupled: bool = False
    """Do batch items hear each other?"""
    hears: Hears | None = None
    conditions: list[str] = field(default_factory=list)
    _judges: dict[int, Judge] = field(default_factory=dict)
    _prober: Prober | None = None

    @classmethod
    def of(cls, model: Any, inputs: Any, mask: Mask, call: Any = None, *, full: bool = False, **options: Any) -> Trial:
        """Look at the subject, run it twice, and see whether it can be audited."""
        seed = options.get("seed", 0)
        step, loss = options.pop("step", None), options.pop("loss", None)
        subject = Subject.of(model, inputs, call, **options)
        contract = Contract.of(mask, batch=subject.batch, time=subject.time)
        buffers = Buffers(model)
        first, second = subject.run(), subject.run()
        if not _alike(first, second) and buffers.changed:
            # It keeps something in a buffer from call to call; that much can be undone.
            buffers.restore()
            subject = replace(subject, buffers=buffers)
            first, second = subject.run(), subject.run()
        repeated = 0.0 if _alike(first, second) else float(difference(first, second)[0].max())
        return cls(
            subject=subject,
            contract=contract,
            baseline=first,
            generator=torch.Generator().manual_seed(seed),
            full=full,
            step=step,
            loss=loss,
            repeated=repeated,
            random=not _alike(first, replace(subject, seed=seed + 1).run()),
            batched=_takes_batches(subject, first),
        )

    @property
    def deterministic(self) -> bool:
        return self.repeated == 0.0

    @property
    def finite(self) -> bool:
        """Is every output at a real position a number?"""
        return bool(self.baseline.isfinite().all(-1).cpu()[self.subject.real].all())

    @property
    def prober(self) -> Prober:
        if self._prober is None or self._prober.alone != (self.coupled or not self.batched):
            self._prober = Prober(self.subject, alone=self.coupled or not self.batched)
        return self._prober

    def prober_for(self, subject: Subject) -> Prober:
        """A prober like the trial's for another subject."""
        return Prober(subject, alone=self.coupled or not self.batched)

    def judge_for(self, subject: Subject) -> Judge:
        return self._judges.setdefault(id(subject), Judge(subject))

    def contract_for(self, subject: Subject) -> Contract:
        """The contract at the size of another subject."""
        if subject.x.shape[:2] == self.subject.x.shape[:2]:
            return self.contract
        return Contract.of(self.contract.mask, batch=subject.batch, time=subject.time)

    def contract_at(self, time: int) -> Contract | None:
        """The contract at another length; None where its own data ends before."""
        try:
            return Contract.of(self.contract.mask, batch=self.subject.batch, time=time)
        except RearviewError:
            return None

    @property
    def items(self) -> list[int]:
        """The batch items worth looking at: one, unless their contracts or inputs differ in kind."""
        if self.contract.mask.batch is None and bool(self.subject.real.all()):
            return [0]
        rows = self.contract.forbidden & self.subject.real.unsqueeze(-1)
        kinds = [item for item in range(len(rows)) if not any(torch.equal(rows[item], rows[n]) for n in range(item))]
        return kinds[: 8 if self.full else 3]


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _takes_batches(subject: Subject, baseline: Tensor) -> bool:
    """Does a batch of more rows run, and give what the given one gives?"""
    items = torch.arange(subject.batch + 1) % subject.batch
    try:
        more = subject.run(subject.x[items.to(subject.x.device)], items)
    except Exception:
        return False
    if more.shape[1:] != baseline.shape[1:]:
        return False
    gap = (more[: subject.batch] - baseline).abs().nan_to_num(0.0)
    return float(gap.max()) <= 1e-2 * max(1e-6, scale_of(baseline))
