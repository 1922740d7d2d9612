"""The suite `serving`: its cases, the pools that it makes, and a judge that notices a wrong answer."""

import argparse

import pytest
import torch

from bench.harness import Outcome, Row, Settings
from bench.suites.serving import PAGES, SINKS, SUITES, Sizes, Way, cases, in_blocks, pages_case, sinks_case, table_of
from rearview import attend
from tests.native_kernel import needs_native

SMALL = Sizes(2, 4, 2, 3, 40, 8)


def test_every_case_has_a_name_of_its_own_and_quick_leaves_some_out():
    titles = [case.title for case in cases()]
    assert len(set(titles)) == len(titles)
    quick = SUITES[0].items(argparse.Namespace(quick=True, rounds=None))
    assert 0 < len(quick) < len(titles)


@pytest.mark.parametrize("shared", [0, 32])
def test_blocks_hold_the_same_keys(shared):
    tensors = SMALL.tensors(torch.float64, shared=shared)
    pools, pages = in_blocks(tensors, 16, shared=shared)
    expected = attend(*tensors, engine="reference")
    torch.testing.assert_close(attend(tensors[0], *pools, pages=pages, engine="reference"), expected)
    assert pages.shared_prefixes(16) == ([([0, 1], 2)] if shared else [])


@needs_native
@pytest.mark.parametrize(
    "case",
    [pages_case(SMALL, "fp32", 16), sinks_case(Sizes(1, 4, 2, 20, 20, 8), "bf16", "forward+backward")],
    ids=lambda case: case.title,
)
def test_a_case_is_judged_and_timed(case):
    outcome = case.run(Settings())
    assert [row.note for row in outcome.rows] == ["", ""]
    assert all(len(row.samples) == 9 for row in outcome.rows)
    assert len(outcome.verdicts()) == 1


def test_a_wrong_answer_is_noticed():
    right = [torch.tensor([1.0, 2.0], dtype=torch.float64)]
    way = Way("rearview, pages", lambda: [torch.tensor([1.0, 2.1])], right, torch.float32)
    assert way.fault() == "result 0 is off by 5.0e-02 (allowed 1e-04)"


def test_the_table():
    case = pages_case(SMALL, "fp32", 16)
    rows = [Row("rearview, contiguous", (1.0, 2.0)), Row(f"rearview, {PAGES}", (1.5, 3.0))]
    skipped = [Row("rearview, contiguous", note="skipped: no kernel"), Row(f"rearview, {PAGES}")]
    table = table_of([Outcome(case, rows), Outcome(case, skipped)])
    assert table.headers == (PAGES, "contiguous ms", "with it ms", "takes", "target")
    assert table.rows[0][1:] == ("1.5", "2.25", "1.50x", "MISSED, asked 1.1x")
    assert table.rows[1][1:] == ("-", "-", "-", "skipped: no kernel")
    assert sinks_case(SMALL, "fp32", "forward").part == SINKS
