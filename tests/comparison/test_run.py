"""A comparison in a folder: started, resumed, and its files."""

import io
import itertools
import json
import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from rearview.comparison import ComparisonConfig, ComparisonFinished, ComparisonRun, ComparisonStopped, load
from rearview.comparison.folder import CONFIG, REPORT, RESULT
from rearview.errors import BadArgument, BadFile
from rearview.training import FolderInUse
from tests.comparison.example import SETTINGS, TEXTS

SMALL = ComparisonConfig.from_json({**SETTINGS.to_json(), "validation": 0.4, "separator": "|", "threads": 1})


@pytest.fixture
def config(tmp_path: Path) -> ComparisonConfig:
    (tmp_path / "text.txt").write_text("|".join(TEXTS))
    return replace(SMALL, text=str(tmp_path / "text.txt"), command="rearview compare")


def test_it_is_kept_with_its_report(config: ComparisonConfig, tmp_path: Path):
    out = tmp_path / "out"
    run = ComparisonRun.start(config, out)
    assert not out.exists()
    *_, last = run.compare()
    assert isinstance(last, ComparisonFinished)
    assert load(out) == last.comparison
    assert sorted(path.name for path in out.iterdir()) == [CONFIG, RESULT, REPORT, "with-mask", "without-mask"]
    assert last.comparison.conditions.command == "rearview compare"
    assert last.comparison.conditions.text == config.text
    assert json.loads((out / CONFIG).read_text()).keys() == {each.name for each in fields(ComparisonConfig)}


def test_a_resumed_comparison_of_a_piped_text_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = replace(SMALL, text="-")
    results = []
    for after in (10_000, 9):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("|".join(TEXTS).encode())))
        count = itertools.count()
        run = ComparisonRun.start(config, tmp_path / str(after))
        *_, last = run.compare(stop=lambda count=count, after=after: next(count) >= after)
        results.append(last)
    assert isinstance(results[1], ComparisonStopped)
    # The folder may move: the text is in it.
    moved = shutil.move(tmp_path / "9", tmp_path / "moved")
    *_, last = ComparisonRun.resume(moved).compare()
    assert last == results[0]
    assert isinstance(last, ComparisonFinished)
    assert last.comparison.conditions.text == "standard input"


def test_one_process_at_a_time(config: ComparisonConfig, tmp_path: Path):
    out = tmp_path / "out"
    first, late = ComparisonRun.start(config, out), ComparisonRun.start(replace(config, seed=1), out)
    events = first.compare()
    next(events)
    with pytest.raises(FolderInUse, match="is writing to this folder"):
        next(late.compare())
    with pytest.raises(FolderInUse, match="is writing to this folder"):
        ComparisonRun.resume(out)
    events.close()
    with pytest.raises(BadArgument, match="out: expected a folder without a comparison"):
        next(late.compare())
    assert json.loads((out / CONFIG).read_text())["seed"] == 0


def test_settings_that_cannot_be_read_are_named(config: ComparisonConfig, tmp_path: Path):
    out = tmp_path / "out"
    next(ComparisonRun.start(config, out).compare())
    kept = json.loads((out / CONFIG).read_text())
    (out / CONFIG).write_text(json.dumps({**kept, "heads": "two"}))
    with pytest.raises(BadFile, match=r'compare\.json: heads: expected an integer, got "two"'):
        ComparisonRun.resume(out)
