"""What the checks of one audit share: the model, the contract, the tools, and what earlier checks found.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.context import AuditContext
>>> context = AuditContext.of(lambda x: x.cumsum(1), torch.randn(2, 8), causal())
>>> context.subject.time, context.deterministic, context.finite
(8, True, True)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rearview.auditing.contract import Contract
from rearview.auditing.evidence.leak import Leak
from rearview.auditing.evidence.probe import Prober, difference, scale_of
from rearview.auditing.evidence.rounding import Judge
from rearview.auditing.model.budget import TimeBudget
from rearview.auditing.model.decoding import CacheAdapter
from rearview.auditing.model.subject import ModelFailed, Subject
from rearview.auditing.reporting.report import Check, Hears
from rearview.errors import RearviewError
from rearview.masks import Mask


@dataclass(frozen=True)
class Outcome:
    """The result of a check, with the leak where it found one."""

    check: Check
    leak: Leak | None = None


@dataclass
class AuditContext:
    """What the checks of one audit share, and what one of them leaves for the next."""

    subject: Subject
    contract: Contract
    baseline: Tensor
    """The output for the inputs as given."""
    generator: torch.Generator
    full: bool = False
    cache: CacheAdapter | None = None
    """How to decode with a cache of another form than the known ones."""
    step: Callable[[Any, Tensor], Any] | None = None
    loss: Callable[..., Any] | None = None
    repeated: float = 0.0
    """The largest difference between two runs of the same input."""
    random: bool = False
    """Whether another seed gives another output. Then runs of different shapes cannot be compared."""
    batched: bool = True
    """Whether the model takes a batch of any size."""
    coupled: bool = False
    """Whether batch items hear each other."""
    hears: Hears | None = None
    conditions: list[str] = field(default_factory=list)
    _judges: dict[int, Judge] = field(default_factory=dict)
    _prober: Prober | None = None

    @classmethod
    def of(
        cls, model: Any, inputs: Any, mask: Mask, call: Any = None, *, full: bool = False, **options: Any
    ) -> AuditContext:
        """Prepare the model, and run it twice to see whether its runs can be compared."""
        seed = options.get("seed", 0)
        step, loss = options.pop("step", None), options.pop("loss", None)
        cache = options.pop("cache", None)
        subject = Subject.of(model, inputs, call, **options)
        contract = Contract.of(mask, batch=subject.batch, time=subject.time)
        first, second = _run(subject), _run(subject)
        if not _alike(first, second) and subject.state is not None and subject.state.changed:
            # It keeps state in buffers or attributes, which can be restored before each run.
            subject = replace(subject, restores_values=True)
            first, second = _run(subject), _run(subject)
        repeated = 0.0 if _alike(first, second) else float(difference(first, second)[0].max())
        return cls(
            subject=subject,
            contract=contract,
            baseline=first,
            generator=torch.Generator().manual_seed(seed),
            full=full,
            cache=cache,
            step=step,
            loss=loss,
            repeated=repeated,
            random=not _alike(first, _run(replace(subject, seed=seed + 1))),
            batched=_takes_batches(subject, first),
        )

    @property
    def budget(self) -> TimeBudget:
        return self.subject.meter.budget

    @property
    def deterministic(self) -> bool:
        return self.repeated == 0.0

    @property
    def finite(self) -> bool:
        """Whether every output at a real position is finite."""
        return bool(self.baseline.isfinite().all(-1).cpu()[self.subject.real].all())

    @property
    def prober(self) -> Prober:
        if self._prober is None or self._prober.alone != (self.coupled or not self.batched):
            self._prober = Prober(self.subject, alone=self.coupled or not self.batched)
        return self._prober

    def prober_for(self, subject: Subject) -> Prober:
        """A prober for another subject, which runs rows alone where this one does."""
        return Prober(subject, alone=self.coupled or not self.batched)

    def judge_for(self, subject: Subject) -> Judge:
        return self._judges.setdefault(id(subject), Judge(subject))

    def contract_for(self, subject: Subject) -> Contract:
        """The contract at the size of another subject."""
        if subject.x.shape[:2] == self.subject.x.shape[:2]:
            return self.contract
        return Contract.of(self.contract.mask, batch=subject.batch, time=subject.time)

    def contract_at(self, time: int) -> Contract | None:
        """The contract at another length; None where its mask is not defined there."""
        try:
            return Contract.of(self.contract.mask, batch=self.subject.batch, time=time)
        except RearviewError:
            return None

    @property
    def items(self) -> list[int]:
        """The batch items to examine: one, unless their contracts or their padding differ."""
        if self.contract.mask.batch is None and bool(self.subject.real.all()):
            return [0]
        rows = self.contract.forbidden & self.subject.real.unsqueeze(-1)
        kinds = [item for item in range(len(rows)) if not any(torch.equal(rows[item], rows[n]) for n in range(item))]
        return kinds[: 8 if self.full else 3]


def _run(subject: Subject) -> Tensor:
    try:
        return subject.run()
    except Exception as error:
        # A model may fail when it is called again.
        raise ModelFailed(subject.model, list(subject.x.shape), error) from error


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _takes_batches(subject: Subject, baseline: Tensor) -> bool:
    """Whether a batch with one more row runs, and gives the same outputs."""
    items = torch.arange(subject.batch + 1) % subject.batch
    try:
        more = subject.run(subject.x[items.to(subject.x.device)], items)
    except Exception:
        # The model may raise anything on a batch of another size.
        return False
    if more.shape[1:] != baseline.shape[1:]:
        return False
    gap = (more[: subject.batch] - baseline).abs().nan_to_num(0.0)
    return float(gap.max()) <= 1e-2 * max(1e-6, scale_of(baseline))
