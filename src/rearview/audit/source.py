"""The user's line: the innermost frame of a stack that is neither torch nor the auditor.

>>> import traceback
>>> from rearview.audit.source import user_line
>>> def forward():
...     return traceback.extract_stack()
>>> user_line(forward()) is not None
True
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from collections.abc import Iterable
from types import FrameType
from typing import NamedTuple, Protocol

import torch

INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


class Line(NamedTuple):
    file: str
    line: int
    source: str


class _Frame(Protocol):
    @property
    def filename(self) -> str: ...

    @property
    def lineno(self) -> int | None: ...


# A line of the user's that calls `attend` says more than the line in an engine.
HOUSE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS = tuple(
    os.path.join(folder, "")
    for folder in (
        os.path.dirname(torch.__file__),
        *(os.path.join(HOUSE, part) for part in ("audit", "attention", "masks")),
    )
)


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Is a file neither torch's, nor the auditor's, nor the interpreter's own?

    >>> is_users(torch.__file__), is_users("train.py")
    (False, True)
    """
    return not file.startswith(OURS) and not (file.startswith("<") and "frozen" in file) and "contextlib" not in file


def user_line(stack: Iterable[_Frame]) -> Line | None:
    """The last of the frames, outermost first, that is the user's."""
    for frame in reversed(list(stack)):
        if is_users(frame.filename):
            return Line(frame.filename, frame.lineno or 0, text_of(frame.filename, frame.lineno or 0))
    return None


def current_line() -> tuple[str, int]:
    """File and line of the user's code that is running; quick enough to ask at every op."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


def shown(file: str) -> str:
    """A path as one would write it: from the current folder if it is below, from the package if it is installed.

    >>> shown("/usr/lib/python3/site-packages/transformers/models/gpt2/modeling_gpt2.py")
    'transformers/models/gpt2/modeling_gpt2.py'
    """
    if not os.path.isabs(file):
        return file
    for installed in INSTALLED:
        if installed in file:
            return file.rpartition(installed)[2]
    below = os.path.relpath(file)
    return file if below.startswith(os.pardir) else below


def text_of(file: str, line: int) -> str:
    """The text of a line, empty where there is no such file."""
    return linecache.getline(file, line).strip()
