"""What the command answers even without its extra `terminal`: which version this is, and what is missing.

>>> answer(["--version"])    # doctest: +ELLIPSIS
rearview ...
CPU kernel: ...
engines: ...
True
>>> answer(["mask", "causal()"])
False
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rearview import __version__


def answer(arguments: Sequence[str]) -> bool:
    """Whether the command line was one of these, which is then carried out."""
    known = list(arguments)
    if known == ["--version"]:
        print_version()
    elif known in (["doctor"], ["doctor", "--json"]):
        print_findings(as_json="--json" in known)
    else:
        return False
    return True


def print_version() -> None:
    from rearview.cli.doctor_run import examine, version_lines

    _print([f"rearview {__version__}", *version_lines(examine())])


def print_findings(*, as_json: bool) -> None:
    from rearview.cli.doctor_run import examine, lines

    found = examine()
    _print([json.dumps(asdict(found) | {"advice": found.advice}, indent=2)] if as_json else lines(found))


def _print(lines: Iterable[str]) -> None:
    # In one piece: a reader that wants the first line only (| head -1) leaves after it.
    sys.stdout.write("".join(f"{line}\n" for line in lines))
