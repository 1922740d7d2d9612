"""A pytest plugin with a fixture that audits a model and lists the verdicts, and what they rest on, at the end.

def test_my_model_cannot_peek(only_looks_back):
    only_looks_back(MyModel(), tokens, window(8))

pytest finds the plugin when Rearview is installed. The auditor is imported when a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from rearview.auditing import Report


class Listed(NamedTuple):
    """An audit as the summary lists it."""

    line: str
    reservations: tuple[str, ...]
    """Why it is not proven, and its conditions."""
    assumptions: tuple[str, ...]


AUDITS = pytest.StashKey[list[Listed]]()


@pytest.fixture
def only_looks_back(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """`rearview.testing.assert_only_looks_back`; the verdicts are listed at the end of the run."""
    from rearview.testing import LooksAhead, assert_only_looks_back

    audits = request.config.stash.setdefault(AUDITS, [])

    def check(*arguments: Any, **options: Any) -> Report:
        __tracebackhide__ = True
        try:
            report = assert_only_looks_back(*arguments, **options)
        except LooksAhead as failure:
            audits.append(_listed(failure.report, request.node.nodeid))
            raise
        audits.append(_listed(report, request.node.nodeid))
        return report

    return check


def _listed(report: Report, where: str) -> Listed:
    line = f"{report.verdict.value}  {report.subject}  against {report.contract}  ({where})"
    if report.verdict.value == "PROVEN":
        return Listed(line, report.conditions, report.proof.assumptions if report.proof is not None else ())
    return Listed(line, (report.why, *report.conditions) if report.verdict.ok else (report.why,), ())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    audits = terminalreporter.config.stash.get(AUDITS, [])
    if not audits:
        return
    terminalreporter.section("rearview audits", sep="-")
    for audit in audits:
        terminalreporter.write_line(audit.line)
        for text in audit.reservations:
            terminalreporter.write_line(f"  {text}")
    assumptions = dict.fromkeys(text for audit in audits for text in audit.assumptions)
    if assumptions:
        terminalreporter.write_line("PROVEN assumes that")
        for text in assumptions:
            terminalreporter.write_line(f"  - {text}")
