"""The index of the measurements in bench/results, newest first.

>>> [row.date for row in rows()] == sorted((row.date for row in rows()), reverse=True)
True
"""

from __future__ import annotations

import re
from typing import NamedTuple

from website.sources import RESULTS, dated


class Row(NamedTuple):
    """One file of results."""

    date: str
    title: str
    machine: str
    file: str


def rows() -> list[Row]:
    """The files, newest first, those of one day by their titles."""
    found = [_row(path.name, path.read_text(encoding="utf-8")) for path in dated()]
    return sorted(sorted(found, key=lambda row: (row.title, row.file)), key=lambda row: row.date, reverse=True)


def index() -> str:
    """The page that lists them."""
    table = "\n".join(f"| {row.date} | [{row.title}]({row.file}) | {row.machine} |" for row in rows())
    return (
        "# Benchmarks\n\n"
        "A speed is a ratio, measured side by side in one run, with the machine, the versions and the sizes. No "
        "contestant with a wrong output or a wrong gradient is timed, and cases where Rearview is slower are listed "
        "too. [The harness](harness.md) says how a measurement is made; `make bench` measures your own machine.\n\n"
        f"| date | what | machine |\n|:--|:--|:--|\n{table}\n"
    )


def _row(file: str, text: str) -> Row:
    heading = re.match(r"# (.+), (\d{4}-\d\d-\d\d)\n", text)
    if heading is None:
        raise ValueError(f"{RESULTS}{file}: expected a first line such as: # Training steps, 2026-11-16")
    machine = re.search(r"^- (?:processor|GPU): ([^;,\n]*(?:, \d+ cores)?)", text, re.MULTILINE)
    if machine is None:
        raise ValueError(f"{RESULTS}{file}: expected a line such as: - processor: AMD EPYC, 2 cores")
    return Row(heading[2], heading[1], machine[1], file)
