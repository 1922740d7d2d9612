"""One sample of torch's own operators: what brute force hears, the proof allows. `bench audit_ops` runs all samples."""

import pytest

from bench.suites import audit_ops

PARTS = 8


@pytest.fixture(scope="module")
def operators():
    return audit_ops.database()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_rule_is_narrower_than_brute_force(operators, part: int):
    # Every second operator: a minute on one core.
    rows = [audit_ops.examined(op, 1, draws=2, tensors=1, sources=4) for op in operators[2 * part :: 2 * PARTS]]
    assert [row for row in rows if row.narrow] == []
    assert [row for row in rows if row.failed] == []
    assert sum(row.exact for row in rows) > len(rows) // 3


def test_a_narrow_rule_is_found(monkeypatch: pytest.MonkeyPatch, operators):
    from rearview.auditing.proof.rules import RULES

    monkeypatch.setitem(RULES, "flip", lambda call: call.args[0].sets)
    (flip,) = (op for op in operators if op.name == "flip")
    assert audit_ops.examined(flip, 3).verdict == "NARROW"


def test_the_report_counts_and_fails(operators):
    rows = [audit_ops.OperatorRow("a", samples=2, exact=2), audit_ops.OperatorRow("b", samples=1, narrow=1)]
    report = audit_ops.AuditOps().report(None, rows)  # pyright: ignore[reportArgumentType]
    assert report.is_wrong
    assert "3 one-operator programs; 1 of them denied something heard" in report.about
    assert [cells[0] for cells in report.tables[0][1].rows] == ["b"]
