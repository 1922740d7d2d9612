"""The files of a comparison: its settings, its result and its report.

OUT/
  with-mask/, without-mask/   training runs, as `rearview train` writes them
  compare.json                the settings, for resuming
  comparison.json             the result
  report.html                 the result as a page

>>> load("nowhere")
Traceback (most recent call last):
rearview.errors.BadFile: nowhere: does not exist.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from rearview.codec import Reader, parse_json, read_bytes
from rearview.comparison.report import to_html
from rearview.comparison.result import Comparison
from rearview.comparison.settings import ComparisonConfig
from rearview.errors import BadArgument, BadFile
from rearview.files import write_whole
from rearview.training import lock
from rearview.training.sync import make_folder, write_synced

CONFIG, RESULT, REPORT = "compare.json", "comparison.json", "report.html"
FORMAT, VERSION = "rearview-comparison", 1
LARGEST_FILE = 64 * 2**20


def save(comparison: Comparison, out: str | os.PathLike[str]) -> Path:
    """Write the result and the report; returns the path of the report."""
    folder = Path(out)
    make_folder(folder)
    write_whole(folder / RESULT, to_json(comparison).encode())
    write_whole(folder / REPORT, to_html(comparison).encode())
    return folder / REPORT


def load(out: str | os.PathLike[str]) -> Comparison:
    """The result in a folder."""
    path = Path(out, RESULT)
    return from_json(_content(path, f"has no {RESULT}: the comparison is not finished."), path)


def to_json(comparison: Comparison) -> str:
    """The result as one JSON object. A number that is not finite is refused, since the report could not draw it."""
    whole = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(comparison)}
    return json.dumps(whole, allow_nan=False) + "\n"


def from_json(text: str | bytes, source: object = "JSON") -> Comparison:
    """The result that `to_json` wrote; `source` names the text in errors.

    >>> from_json("{}", "comparison.json")
    Traceback (most recent call last):
    rearview.errors.BadFile: comparison.json: format: expected "rearview-comparison", got null
    """
    reader = Reader(source)
    return reader.read(Comparison, reader.header(parse_json(text, source), FORMAT, VERSION))


def write_config(config: ComparisonConfig, out: Path) -> None:
    """Write the settings, to the disk."""
    write_synced(out / CONFIG, (json.dumps(config.to_json(), indent=1) + "\n").encode())


def read_config(out: Path) -> ComparisonConfig:
    """The settings of the comparison in a folder."""
    path = out / CONFIG
    data = _content(path, f"has no {CONFIG}: no comparison was started here.")
    return Reader(path).read(ComparisonConfig, parse_json(data, path))


def check_free(out: Path) -> None:
    """Check that a folder is new or empty: nothing is overwritten."""
    if (out / CONFIG).exists():
        advice = f"Resume it (rearview compare --resume {out}), or choose another folder."
        raise BadArgument("out", expected="a folder without a comparison", got=str(out), advice=advice)
    if out.exists() and (not out.is_dir() or any(path.name != lock.NAME for path in out.iterdir())):
        got = f"{out}, which has other files" if out.is_dir() else f"{out}, which is a file"
        raise BadArgument("out", expected="a new or empty folder", got=got)


def _content(path: Path, missing: str) -> bytes:
    if not path.exists():
        raise BadFile(path.parent, missing if path.parent.is_dir() else "does not exist.")
    return read_bytes(path, most=LARGEST_FILE)
