"""A comparison in a folder: two ordinary training runs, what was asked, what was found, and the report.

OUT/
  with-mask/, without-mask/   runs, as `rearview train` writes them
  compare.json                what was asked, for going on
  comparison.json             what was found
  report.html                 the same, to be read

>>> load("nowhere")
Traceback (most recent call last):
rearview.errors.BadFile: nowhere: is not there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rearview.errors import BadArgument, BadFile
from rearview.masks.write import write_whole
from rearview.training.comparison.report import to_html
from rearview.training.comparison.result import Comparison
from rearview.training.comparison.serial import from_json, to_json

ASKED, FOUND, REPORT = "compare.json", "comparison.json", "report.html"
WITH, WITHOUT = "with-mask", "without-mask"


def save(comparison: Comparison, out: str | os.PathLike[str]) -> Path:
    """Write what was found and the report; the report's path."""
    folder = made(out)
    write_whole(folder / FOUND, to_json(comparison).encode())
    return write_report(comparison, folder)


def write_report(comparison: Comparison, folder: Path) -> Path:
    write_whole(folder / REPORT, to_html(comparison).encode())
    return folder / REPORT


def load(out: str | os.PathLike[str]) -> Comparison:
    """What was found before."""
    path = Path(out, FOUND)
    return from_json(_text(path, f"has no {FOUND}: the comparison is not finished."), path)


def keep_asked(out: str | os.PathLike[str], asked: dict[str, Any]) -> None:
    """Write down what was asked, for going on."""
    write_whole(made(out) / ASKED, (json.dumps(asked, indent=1) + "\n").encode())


def read_asked(out: str | os.PathLike[str]) -> dict[str, Any]:
    path = Path(out, ASKED)
    text = _text(path, f"has no {ASKED}: no comparison was begun here.")
    try:
        asked = json.loads(text)
        if not isinstance(asked, dict):
            raise TypeError("it should be an object")
    except (ValueError, TypeError) as error:
        raise BadFile(path, f"cannot be used: {error}.") from error
    return asked


def check_free(out: Path) -> None:
    """A folder that holds anything is not written into."""
    if (out / ASKED).exists():
        go_on = f"Go on with it (rearview compare --resume {out}), or choose another folder."
        raise BadArgument("--out", expected="a folder without a comparison", came=str(out), advice=go_on)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        came = f"{out}, which has other files" if out.is_dir() else f"{out}, which is a file"
        raise BadArgument("--out", expected="a new or an empty folder", came=came)


def made(out: str | os.PathLike[str]) -> Path:
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadArgument("--out", expected="a folder that can be made", came=f"{error.strerror} ({out})") from error
    return folder


def _text(path: Path, missing: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadFile(path.parent, missing if path.parent.is_dir() else "is not there.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(path, f"cannot be read: {error}.") from error
