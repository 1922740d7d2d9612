"""What an audit found, as plain values: the verdict, each check, the witnesses, the place, who heard whom.

>>> from rearview.audit.report import Check, Verdict
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

if TYPE_CHECKING:
    from rearview.audit.witness import Witness
    from rearview.masks.drawing import Drawing

Status = Literal["passed", "failed", "skipped", "inconclusive"]
Number = float | int | str | bool


class Verdict(Enum):
    """PROVEN for every weight and input, HELD in every trial, LEAKS with a witness, INCONCLUSIVE and why."""

    PROVEN = "PROVEN"
    HELD = "HELD"
    LEAKS = "LEAKS"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def ok(self) -> bool:
        """Is this an answer to rely on, within its conditions?"""
        return self in (Verdict.PROVEN, Verdict.HELD)

    @property
    def exit_code(self) -> int:
        """For a command line: 0 is good, 1 leaks, 3 nobody knows. 2 is left to wrong usage."""
        return 0 if self.ok else 1 if self is Verdict.LEAKS else 3


@dataclass(frozen=True)
class Check:
    """One question that was put to the model, and the answer."""

    name: str
    status: Status
    why: str
    """One sentence: what was seen, or why it was skipped."""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    """What was measured: trials, cuts, the largest difference, the noise floor."""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.status:<14}{self.name}: {self.why}"


@dataclass(frozen=True)
class Place:
    """Where what must not be heard gets in."""

    module: str
    """The path of the innermost module, as in `model.named_modules()`; empty for the model itself."""
    module_class: str
    op: str
    """The ATen operator, `aten.mean.dim`; empty where only the module is known."""
    file: str
    line: int
    source: str
    """The text of that line."""
    hint: str
    """What is probably wrong, in words; empty where there is nothing to go by."""
    confirmed: bool
    """Was the leak gone when this place, with those named before it, was given its clean output?"""
    evidence: str = ""
    """What speaks for it, in words."""
    check: str = ""
    """The check whose leak this is the place of."""
    also: tuple[str, ...] = ()
    """Other modules with the same class, op and line that let it through as well."""

    def __str__(self) -> str:
        module = f"{self.module or 'the model'} ({self.module_class})" if self.module_class else self.module
        op = f", {self.op}" if self.op else ""
        where = f", {self.file}:{self.line}" if self.file else ""
        return f"{module}{op}{where}"


@dataclass(frozen=True, eq=False)
class Hears:
    """Who heard whom: how far each output moved when one source position was changed."""

    amounts: Tensor
    """float64 [time, sources]: the largest change of any output at a position."""
    forbidden: Tensor
    """bool [time, sources]: True where the contract says that the source must not be heard."""
    sources: tuple[int, ...]
    """The positions that were changed, one a column; all of them unless the input is long."""
    floor: float = 0.0
    """Differences up to this one are rounding."""
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
    """What the structural proof said."""

    status: Literal["proven", "conditional", "not proven", "failed"]
    why: str
    conditions: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()
    unknown_ops: tuple[str, ...] = ()
    value_escapes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Cost:
    """What the audit took."""

    seconds: float
    forwards: int
    positions: int
    """Positions that went through the model, over all forward passes."""
    parameters: int


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """What `audit` returns. `report.ok` and `report.verdict` decide; `print(report)` explains."""

    verdict: Verdict
    why: str
    """The verdict in one sentence."""
    contract: str
    subject: str
    """The class of the model, or the name of the function."""
    sizes: dict[str, int]
    """batch, time; vocab where tokens were drawn."""
    mode: str
    conditions: tuple[str, ...]
    """What the verdict rests on."""
    checks: tuple[Check, ...]
    witnesses: tuple[Witness, ...] = ()
    places: tuple[Place, ...] = ()
    hears: Hears | None = None
    proof: ProofSummary | None = None
    modules: tuple[tuple[str, str], ...] = ()
    """The module tree: (path, class), for a picture of where the places lie."""
    cost: Cost = Cost(0.0, 0, 0, 0)
    seed: int = 0
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """PROVEN or HELD."""
        return self.verdict.ok

    @property
    def exit_code(self) -> int:
        """0 for PROVEN and HELD, 1 for LEAKS, 3 for INCONCLUSIVE."""
        return self.verdict.exit_code

    @property
    def witness(self) -> Witness | None:
        """The first witness."""
        return self.witnesses[0] if self.witnesses else None

    @property
    def place(self) -> Place | None:
        """The first place."""
        return self.places[0] if self.places else None

    def check(self, name: str) -> Check:
        """The check of that name."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check {name!r}; there are {', '.join(check.name for check in self.checks)}")

    def __bool__(self) -> bool:
        raise TypeError("a Report is neither true nor false; ask report.ok")

    def __repr__(self) -> str:
        return f"<Report {self.verdict.value}: {self.why}>"

    def __str__(self) -> str:
        return self.show()

    def show(self, *, matrix: bool = True) -> Drawing:
        """The report as text for the terminal; `matrix` draws who heard whom."""
        from rearview.audit.text import draw

        return draw(self, matrix=matrix)

    def to_json(self) -> str:
        """All of it, the inputs of the witnesses included; `Report.from_json` reads it back."""
        from rearview.audit.serial import to_json

        return to_json(self)

    @staticmethod
    def from_json(text: str) -> Report:
        """The Report that `to_json` wrote."""
        from rearview.audit.serial import from_json

        return from_json(text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report: .html for a page, .json for all of it, .txt for what `show` draws."""
        from rearview.audit.serial import save

        save(self, path)

    def _repr_html_(self) -> str:
        from rearview.audit.html import to_notebook

        return to_notebook(self)
