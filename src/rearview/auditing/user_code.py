"""Which line is the user's: the frame of a running program that a report should name.

>>> import traceback
>>> from rearview.auditing.user_code import user_line
>>> def forward():
...     return traceback.extract_stack()
>>> user_line(forward()) is not None
True

A report names the innermost line of the audited program that belongs neither to torch nor to this package: a line of
the user's that calls `attend` says more than a line in an engine. Where the audited program consists of layers of this
package only, their outermost line is named.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import NamedTuple, Protocol, TypeVar

import torch

from rearview.attention.engines import sdpa

INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def _folder(file: str, *parts: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(file)), *parts, "")


PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STANDARD_LIBRARY = _folder(os.__file__)
# Never a line of the audited program.
MACHINERY = (_folder(torch.__file__), os.path.join(PACKAGE, "auditing", ""))
# Part of the audited program, but called from a line that says more.
LIBRARY = tuple(os.path.join(PACKAGE, part, "") for part in ("attention", "masks"))

# Installed packages that only rearrange tensors for others: the line that calls them says more.
HELPERS = tuple(
    f"{os.sep}{name}"
    for name in (
        *(f"{package}{os.sep}" for package in ("einops", "einx", "opt_einsum", "jaxtyping", "beartype", "wrapt")),
        *("typing_extensions.py", "decorator.py", "deprecation.py"),
    )
)

Function = TypeVar("Function", bound=Callable[..., object])
ENTRIES: set[CodeType] = set()


def enters_program(function: Function) -> Function:
    """Decorate a function of the auditor that calls the audited program: frames outside of it are not the program's."""
    ENTRIES.add(function.__code__)
    return function


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the generators and lambdas in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


# Functions that read values and change nothing: they warn, or look whether numbers are finite, as a proof assumes.
# Ours are taken as function objects, so that renaming one fails at import.
HARMLESS = {code for function in (sdpa._stays_in_range, sdpa._all_finite) for code in _codes(function.__code__)}
HARMLESS_ELSEWHERE = {("transformers/modeling_utils.py", "warn_if_padding_and_no_attention_mask")}


class Line(NamedTuple):
    file: str
    line: int
    source: str


class _Frame(Protocol):
    @property
    def filename(self) -> str: ...

    @property
    def lineno(self) -> int | None: ...


@functools.lru_cache(maxsize=4096)
def is_program(file: str) -> bool:
    """Can a file hold code of the audited program? Not one of torch, of the auditor or of the interpreter.

    >>> is_program(torch.__file__), is_program("train.py")
    (False, True)
    """
    if file.startswith(STANDARD_LIBRARY) and not any(folder in file for folder in INSTALLED):
        return False
    return not file.startswith(MACHINERY) and not file.startswith("<frozen")


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Is a file the user's, and neither the attention or the masks of this package nor a helper library?

    >>> is_users("/lib/site-packages/einops/_backends.py"), is_users("/home/me/einops/model.py")
    (False, True)
    """
    is_helper = any(folder in file for folder in INSTALLED) and any(name in file for name in HELPERS)
    return is_program(file) and not file.startswith(LIBRARY) and not is_helper


def user_line(stack: Iterable[_Frame]) -> Line | None:
    """The innermost of the frames, given outermost first, that is the user's."""
    for frame in reversed(list(stack)):
        if is_users(frame.filename):
            return Line(frame.filename, frame.lineno or 0, text_of(frame.filename, frame.lineno or 0))
    return None


def current_line() -> tuple[str, int]:
    """File and line of the user's code that is running; quick enough to ask at every op.

    Empty where the audited program has no line of Python but those of torch, as a TorchScript module.
    """
    library: tuple[str, int] | None = None
    for frame in _frames():
        if frame.f_code in ENTRIES:
            break
        file = frame.f_code.co_filename
        if is_users(file):
            return file, frame.f_lineno
        if is_program(file):
            library = file, frame.f_lineno
    return library or ("", 0)


def is_harmless() -> bool:
    """Is the innermost function of the audited program known to read values without acting on them?"""
    for frame in _frames():
        code = frame.f_code
        if is_program(code.co_filename) and not code.co_filename.startswith("<"):
            elsewhere = ((file, name) for file, name in HARMLESS_ELSEWHERE if code.co_filename.endswith(file))
            return code in HARMLESS or any(code.co_name == name for _, name in elsewhere)
    return False


def frames_of_program() -> Iterator[FrameType]:
    """The frames of the audited program that are running, innermost first, without those of torch."""
    for frame in _frames():
        if frame.f_code in ENTRIES:
            return
        if not frame.f_code.co_filename.startswith(MACHINERY):
            yield frame


def is_inside_program(innermost: FrameType | None) -> bool:
    """Is a line of the audited program running, and neither one of torch nor one of the auditor?"""
    if innermost is None or innermost.f_code.co_filename.startswith(MACHINERY):
        return False
    return any(frame.f_code in ENTRIES for frame in _outward(innermost))


def _frames() -> Iterator[FrameType]:
    """The frames that are running, innermost first."""
    return _outward(sys._getframe(1))


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def shown(file: str) -> str:
    """A path as one would write it: relative to the current folder, or to the package where it is installed.

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
    """The text of a line; empty where there is no such file."""
    return linecache.getline(file, line).strip()
