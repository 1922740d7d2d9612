"""The result of an audit as plain values: the verdict, each check, the witnesses, the places, who heard whom.

>>> from rearview.auditing.reporting.report import Check, Verdict
>>> Verdict.HELD.ok, Verdict.LEAKS.exit_code
(True, 1)
>>> print(Check("suffix swap", "passed", "nothing moved", {"trials": 12}))
passed        suffix swap: nothing moved

A Report is a value: it holds no model, and `to_json` writes all of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from rearview.auditing.user_code import shown

if TYPE_CHECKING:
    from rearview.auditing.reporting.witness import Witness
    from rearview.drawing.text import Drawing

Status = Literal["passed", "failed", "skipped", "inconclusive"]
ProofStatus = Literal["proven", "conditional", "not proven", "failed"]
Number = float | int | str | bool


class Verdict(Enum):
    """PROVEN for all weights and inputs, HELD in every trial, LEAKS with a witness, or INCONCLUSIVE."""

    PROVEN = "PROVEN"
    HELD = "HELD"
    LEAKS = "LEAKS"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def ok(self) -> bool:
        """Whether the contract holds, under the conditions of the report: PROVEN or HELD."""
        return self in (Verdict.PROVEN, Verdict.HELD)

    @property
    def exit_code(self) -> int:
        """For a command line: 0 for PROVEN and HELD, 1 for LEAKS, 3 for INCONCLUSIVE. 2 means that something failed."""
        return 0 if self.ok else 1 if self is Verdict.LEAKS else 3


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    status: Status
    why: str
    """What was observed, or why the check was skipped, in one sentence."""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    """Measurements: trials, cuts, the largest difference, the noise floor."""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.status:<14}{self.name}: {self.why}"


@dataclass(frozen=True)
class Place:
    """Where in the model an output begins to hear what it must not."""

    module: str
    """The path of the innermost module, as in `model.named_modules()`; empty for the model itself."""
    module_class: str
    op: str
    """The ATen operator, for example `aten.mean.dim`; empty where only the module is known."""
    file: str
    line: int
    source: str
    """The text of that line."""
    hint: str
    """What is probably wrong, in words; empty where that is not known."""
    confirmed: bool
    """Whether the leak was gone when this place, with the other places, was given its clean output."""
    evidence: str = ""
    """Why it is this place, in words."""
    check: str = ""
    """The check that found the leak."""
    also: tuple[str, ...] = ()
    """Other modules of the same class that have the same fault at the same line."""

    def __str__(self) -> str:
        module = f"{self.module or 'the model'} ({self.module_class})" if self.module_class else self.module
        op = f", {self.op}" if self.op else ""
        where = f", {self.file}:{self.line}" if self.file else ""
        return f"{module}{op}{where}"


@dataclass(frozen=True, eq=False)
class Hears:
    """Who heard whom: by how much each output moved when one source position was changed."""

    amounts: Tensor
    """float64 [time, sources]: the largest change of any output at a position."""
    forbidden: Tensor
    """bool [time, sources]: True where the contract says that the source must not be heard."""
    sources: tuple[int, ...]
    """The positions that were changed, one per column; all of them unless the input is long."""
    floor: float = 0.0
    """Differences up to this are rounding."""
    item: int = 0
    check: str = "who heard whom"

    @property
    def heard(self) -> Tensor:
        """bool [time, sources]"""
        return self.amounts > self.floor

    @property
    def leaks(self) -> Tensor:
        """bool [time, sources]: heard, and forbidden."""
        return self.heard & self.forbidden


@dataclass(frozen=True)
class ProofSummary:
    """The result of the proof."""

    status: ProofStatus
    why: str
    conditions: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()
    unknown_ops: tuple[str, ...] = ()
    value_escapes: tuple[str, ...] = ()
    decided_ahead: tuple[str, ...] = ()
    """Where a value that has heard more than some outputs may decides what runs."""
    assumptions: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    """What an experiment has heard although the proof rules it out."""
    shape: tuple[int, ...] = ()
    """The shape of the input at which the proof ran."""
    lengths: tuple[int, ...] = ()
    """The other lengths at which it ran, and holds."""
    elsewhere: str = ""
    """Why it does not hold at another length that was tried; empty where it holds at all of them."""
    seconds: float = 0.0

    @property
    def is_proven(self) -> bool:
        """Whether it is proven, possibly under conditions."""
        return self.status in ("proven", "conditional")

    @property
    def scope(self) -> str:
        """The inputs that the proof is about, as words.

        >>> ProofSummary("proven", "", shape=(2, 5), lengths=(3,)).scope
        'of shape [2, 5], or with 3 positions,'
        >>> ProofSummary("proven", "", shape=(2, 5), lengths=(1, 2, 3, 4)).scope
        'of up to 5 positions in a batch of 2'
        """
        if not self.shape:
            return "of the given shape"
        batch, length = self.shape[0], self.shape[1]
        if length > 1 and self.lengths == tuple(range(1, length)):
            return f"of up to {length} positions in a batch of {batch}"
        more = f", or with {' or '.join(map(str, self.lengths))} positions," if self.lengths else ""
        return f"of shape {list(self.shape)}{more}"

    @property
    def obstacle(self) -> str:
        """What prevents a proof; empty where the model is proven."""
        if self.is_proven:
            return ""
        return self.why if self.contradictions or not self.decided_ahead else self.decided_ahead[0]

    @property
    def remedy(self) -> str:
        """What would settle the question; empty where the model is proven.

        >>> ProofSummary("not proven", "", unknown_ops=("aten.foo",)).remedy
        'give the proof a rule for aten.foo, or compute it with other ops'
        """
        if self.is_proven:
            return ""
        if self.contradictions:
            return "find out what reaches these outputs without an op of torch: the experiment is right"
        if self.value_escapes:
            return "keep the value in a tensor, for example with torch.where instead of an if, where a proof can follow"
        if self.unknown_ops:
            return f"give the proof a rule for {self.unknown_ops[0]}, or compute it with other ops"
        if self.violations:
            return "mask this path with -inf, or remove it; no input was found that uses it with these weights"
        return "audit a shorter input" if "too many" in self.why else "see why the proof stopped"

    @property
    def leaves_open(self) -> bool:
        """Whether the proof found a way for a leak: in the structure of the model, or through a value that was read."""
        return self.status == "not proven" and bool(self.violations or self.value_escapes)


@dataclass(frozen=True)
class Cost:
    """The time and work of an audit."""

    seconds: float
    forwards: int
    positions: int
    """The number of positions that went through the model, over all forward passes."""
    parameters: int


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """The result of `audit`: `report.ok` and `report.verdict` decide, `print(report)` explains."""

    verdict: Verdict
    why: str
    """The verdict in one sentence."""
    contract: str
    subject: str
    """The class of the model, or the name of the function."""
    sizes: dict[str, int]
    """The sizes batch and time, and vocab where tokens were drawn."""
    mode: str
    conditions: tuple[str, ...]
    """The conditions under which the verdict holds."""
    checks: tuple[Check, ...]
    witnesses: tuple[Witness, ...] = ()
    places: tuple[Place, ...] = ()
    hears: Hears | None = None
    proof: ProofSummary | None = None
    modules: tuple[tuple[str, str], ...] = ()
    """The modules of the model as (path, class), to show where the places are."""
    cost: Cost = Cost(0.0, 0, 0, 0)
    seed: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    fingerprint: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the weights and of the code; empty where there is nothing to hash, or the weights are large."""
    must_prove: bool = False
    """Whether only PROVEN passes."""

    @property
    def ok(self) -> bool:
        """Whether the verdict is PROVEN or HELD; with `must_prove`, whether it is PROVEN."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0 for PROVEN and HELD, 1 for LEAKS, 3 for INCONCLUSIVE, and with `must_prove` for HELD as well."""
        unproven = self.must_prove and self.verdict is Verdict.HELD
        return Verdict.INCONCLUSIVE.exit_code if unproven else self.verdict.exit_code

    @property
    def line(self) -> str:
        """The report in one line: verdict, model, contract, hashes, time, the reason, conditions and assumptions.

        >>> Report(Verdict.HELD, "", "causal()", "GPT", {"batch": 2, "time": 8}, "quick", (), ()).line
        'HELD  GPT  against causal()  batch 2  time 8  0.00 s'
        """
        sizes = [f"{name} {size}" for name, size in self.sizes.items()]
        hashes = [f"{name} {digest[:12]}" for name, digest in self.fingerprint.items() if digest]
        where = [f"at {shown(self.place.file)}:{self.place.line}"] if self.place is not None and self.place.file else []
        parts = [self.verdict.value, self.subject, f"against {self.contract}", *where, *sizes, *hashes]
        return "  ".join([*parts, f"{self.cost.seconds:.2f} s", *self._provisos()])

    def _provisos(self) -> list[str]:
        """Why there is no proof, or what a verdict that passes depends on, a phrase each."""
        assumed = self.proof.assumptions if self.proof is not None and self.verdict is Verdict.PROVEN else ()
        conditions = self.conditions if self.verdict.ok else ()
        reason = (self.why,) if self.verdict is not Verdict.PROVEN and self.why else ()
        found = {"": reason, "provided: ": conditions, "assuming: ": assumed}
        return [f"{word}{' '.join('; '.join(texts).split())}" for word, texts in found.items() if texts]

    @property
    def annotations(self) -> list[str]:
        """Workflow commands of GitHub Actions that show a leak beside its line; none where the report is ok."""
        from rearview.auditing.reporting.annotations import annotate

        return annotate(self)

    @property
    def witness(self) -> Witness | None:
        """The first witness; None where there is no leak."""
        return self.witnesses[0] if self.witnesses else None

    @property
    def place(self) -> Place | None:
        """The first place; None where none was found."""
        return self.places[0] if self.places else None

    def check(self, name: str) -> Check:
        """The check of that name; raises KeyError where it was not run."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check {name!r}; there are {', '.join(check.name for check in self.checks)}")

    def __bool__(self) -> bool:
        raise TypeError("a Report has no truth value; use report.ok")

    def __repr__(self) -> str:
        return f"<Report {self.verdict.value}: {self.why}>"

    def __str__(self) -> str:
        return self.show()

    def show(self, *, matrix: bool = True, width: int = 100) -> Drawing:
        """The report as text for a terminal of that width; `matrix` says whether to draw who heard whom."""
        from rearview.auditing.reporting.text import draw

        return draw(self, matrix=matrix, width=width)

    def to_json(self) -> str:
        """The whole report as JSON, with the inputs of the witnesses; `Report.from_json` reads it back."""
        from rearview.auditing.reporting.serial import to_json

        return to_json(self)

    @staticmethod
    def from_json(text: str) -> Report:
        """Read a report that `to_json` wrote."""
        from rearview.auditing.reporting.serial import from_json

        return from_json(text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file: .html for a page, .json for the whole report, .txt for what `show` draws."""
        from rearview.auditing.reporting.serial import save

        save(self, path)

    def _repr_html_(self) -> str:
        from rearview.auditing.reporting.html import to_notebook

        return to_notebook(self)
