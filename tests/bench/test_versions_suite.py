"""The suite `versions`: this source tree against itself, and against one that is not what it should be."""

import argparse
from pathlib import Path

import pytest

from bench.harness import Settings
from bench.measured_calls import CALLS
from bench.process import ROOT
from bench.suites.versions import BEFORE, NOW, SUITES, Version, cases, describe, fault, table_of

NAME = "16 tokens, 100 calls"


def case(before: Path):
    return next(case for case in cases(before, rounds=2) if case.name == NAME)


def test_the_version_is_compared_with_itself():
    outcome = case(ROOT).run(Settings())
    assert [(row.name, len(row.samples), row.note) for row in outcome.rows] == [(BEFORE, 2, ""), (NOW, 2, "")]
    assert table_of([outcome]).rows[0][0] == NAME


def test_every_call_is_a_case():
    args = argparse.Namespace(before=ROOT, rounds=None, quick=True)
    assert SUITES[0].missing(args) == ""
    assert [item.name for item in SUITES[0].items(args)] == list(CALLS)


def test_another_answer_is_noticed():
    assert fault([[1.0, 2.0]], [[1.001, 2.001]]) == ""
    assert fault([[1.0, 2.0]], [[1.0, 3.0]]) == "result 0 is [1.0, 2.0], before [1.0, 3.0]"
    assert fault([[1.0, 2.0]], []) == "1 results, before 0"


def test_a_folder_without_the_package(tmp_path: Path):
    args = argparse.Namespace(before=None)
    assert SUITES[0].missing(args).startswith("expected --before DIR")
    args.before = tmp_path
    assert SUITES[0].missing(args) == (
        f"--before: expected a source tree of Rearview, got {tmp_path}, which has no src/rearview"
    )
    # A tree whose code fails is told by its own error, and the other is still timed.
    package = tmp_path / "src" / "rearview"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.0.1"\nraise ValueError("broken")\n')
    assert describe(tmp_path) == "0.0.1"
    outcome = case(tmp_path).run(Settings())
    assert [(len(row.samples), row.note) for row in outcome.rows] == [(0, "skipped: ValueError: broken"), (2, "")]


def test_another_source_than_the_named_one_is_refused(tmp_path: Path):
    # Nothing is there, so the installed package is imported.
    with pytest.raises(RuntimeError, match=r"was imported instead of"):
        Version(tmp_path, NAME)
