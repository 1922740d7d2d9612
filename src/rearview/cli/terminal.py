"""The output of the commands: colour on a terminal, plain text in a pipe, ASCII where nothing else can be encoded.

>>> from rearview import causal
>>> from rearview.cli.terminal import show
>>> show(causal().show(1))    # doctest: +ELLIPSIS
causal()  ·  1 query x 1 key  ·  100.0 % visible
...
"""

import codecs
import io
import os
import sys

from rich.console import Console
from rich.text import Text

from rearview.drawing.cells import harmless, width
from rearview.drawing.text import Drawing, Role

STYLES: dict[Role, str] = {
    "title": "bold",
    "label": "default",
    "heard": "bold cyan",
    "blocked": "dim",
    "full": "bold cyan",
    "partial": "cyan",
    "skipped": "dim",
    "only first": "bold red",
    "forbidden": "yellow",
    "only second": "bold green",
    "only one each": "bold yellow",
    "range": "dim",
    "remark": "dim",
    "warning": "yellow",
    "number": "default",
    # White is readable on each of them.
    "weight 1": "bright_white on rgb(54,77,91)",
    "weight 2": "bright_white on rgb(46,91,108)",
    "weight 3": "bright_white on rgb(38,105,126)",
    "weight 4": "bright_white on rgb(30,119,144)",
    "weight 5": "bold bright_white on rgb(18,140,170)",
    "gained": "green",
    "lost": "red",
}

IN_ASCII = {
    "■": "#", "█": "#", "▒": "+", "·": ".", "…": "~", "±": "*", "␣": "_", "—": "-", "×": "x", "∞": "inf", "√": "sqrt",
    "ᵀ": "^T", "′": "'", "₁": "1", "ₕ": "h", "│": "|", "▁": "_", "▂": "_", "▃": "-", "▄": "-", "▅": "=", "▆": "=",
    "▇": "#", "▀": "#", "“": '"', "”": '"', "–": "-", "−": "-",
}  # fmt: skip


def console(*, stderr: bool = False) -> Console:
    """A console that does not wrap: a pipe is not 80 columns wide, and a drawing must stay as it is."""
    return Console(highlight=False, soft_wrap=True, stderr=stderr)


def columns() -> int:
    """The width of a line: that of the terminal, at least 60 and at most 100; 100 in a pipe.

    >>> columns()
    100
    """
    terminal = console()
    return max(60, min(100, terminal.width)) if terminal.is_terminal else 100


def note(text: str) -> None:
    """Print a remark to stderr, so that stdout has only what was asked for."""
    print(f"rearview: {harmless(text, keep=chr(10))}", file=sys.stderr, flush=True)


def show(drawing: Drawing) -> None:
    """Print a drawing, coloured by the roles of its pieces."""
    console().print(Text.assemble(*((harmless(piece.text, keep="\n"), STYLES[piece.role]) for piece in drawing.pieces)))


def prepare_output() -> None:
    """Replace characters that the output cannot encode, and discard output where it is closed, instead of failing."""
    codecs.register_error("stand-in", _stand_in)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # "surrogateescape" is the rule of the C locale for stdout.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="stand-in")


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    # As wide as the original, so that columns stay aligned.
    return "".join(IN_ASCII.get(c, "?" * width(c)) for c in error.object[error.start : error.end]), error.end
