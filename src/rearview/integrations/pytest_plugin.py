"""A pytest plugin with a fixture that audits a model and prints one line per audit at the end of the run.

def test_my_model_cannot_peek(only_looks_back):
    only_looks_back(MyModel(), tokens, window(8))

pytest finds the plugin when Rearview is installed. The auditor is imported when a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rearview.auditing import Report

AUDITS = pytest.StashKey[list[tuple[str, str]]]()


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
            audits.append((request.node.nodeid, _line(failure.report)))
            raise
        audits.append((request.node.nodeid, _line(report)))
        return report

    return check


def _line(report: Report) -> str:
    return f"{report.verdict.value}  {report.subject}  against {report.contract}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    audits = terminalreporter.config.stash.get(AUDITS, [])
    if audits:
        terminalreporter.section("rearview audits", sep="-")
        for where, line in audits:
            terminalreporter.write_line(f"{line}  ({where})")
