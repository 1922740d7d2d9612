"""What changed between two reports: the verdict, the checks, the places, the conditions, the model itself.

>>> import torch
>>> from rearview.auditing import audit
>>> x = torch.randn(1, 4)
>>> found = compare_reports(audit(lambda x: x.cumsum(1), x), audit(lambda x: x.flip(1), x))
>>> found.is_worse, found.lines[0]
(True, 'verdict: PROVEN -> LEAKS')
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rearview.auditing.reporting.report import Report, Verdict

# From the best verdict to the worst.
RANKS = (Verdict.PROVEN, Verdict.HELD, Verdict.INCONCLUSIVE, Verdict.LEAKS)


@dataclass(frozen=True)
class ReportDifference:
    """The changes, a line each, and whether the second report is worse."""

    lines: tuple[str, ...]
    is_worse: bool
    """Whether its verdict is worse: PROVEN, HELD, INCONCLUSIVE, LEAKS."""

    def __str__(self) -> str:
        return "\n".join(self.lines) if self.lines else "The reports say the same."


def compare_reports(before: Report, after: Report) -> ReportDifference:
    """Compare two reports; times and random draws do not count."""
    lines = []
    for name in ("verdict", "subject", "contract", "mode"):
        one, other = getattr(before, name), getattr(after, name)
        if one != other:
            lines.append(f"{name}: {_word(one)} -> {_word(other)}")
    for name in sorted({*before.sizes, *after.sizes}):
        if before.sizes.get(name) != after.sizes.get(name):
            lines.append(f"{name}: {before.sizes.get(name, 'none')} -> {after.sizes.get(name, 'none')}")
    for name in sorted({*before.fingerprint, *after.fingerprint}):
        one, other = before.fingerprint.get(name, ""), after.fingerprint.get(name, "")
        if one != other:
            lines.append(f"{name}: {one[:12] or 'not hashed'} -> {other[:12] or 'not hashed'}")
    was, now = ({check.name: check.status for check in report.checks} for report in (before, after))
    for name in dict.fromkeys((*was, *now)):
        if was.get(name) != now.get(name):
            lines.append(f"check {name}: {was.get(name, 'not run')} -> {now.get(name, 'not run')}")
    places = [[f"{place.module_class}, {place.op}, {place.source}" for place in one.places] for one in (before, after)]
    lines += _listed("place", *places)
    lines += _listed("condition", before.conditions, after.conditions)
    assumed = [() if report.proof is None else report.proof.assumptions for report in (before, after)]
    lines += _listed("assumption", *assumed)
    return ReportDifference(tuple(lines), RANKS.index(after.verdict) > RANKS.index(before.verdict))


def _listed(name: str, before: Iterable[str], after: Iterable[str]) -> list[str]:
    was, now = dict.fromkeys(before), dict.fromkeys(after)
    gone = [f"{name} gone: {text}" for text in was if text not in now]
    return gone + [f"{name} new: {text}" for text in now if text not in was]


def _word(value: object) -> object:
    return value.value if isinstance(value, Verdict) else value
