"""What the commands print on: colour on a terminal, plain text in a pipe, ASCII where nothing else can be written.

>>> from rearview import causal
>>> from rearview.cli.terminal import show
>>> show(causal().show(1))    # doctest: +ELLIPSIS
causal()  ·  1 query x 1 key  ·  100.0 % visible
...
"""

import codecs
import io
import sys

from rich.console import Console
from rich.text import Text

from rearview.masks.drawing import Drawing, Role
from rearview.masks.labels import width

STYLES: dict[Role, str] = {
    "title": "bold",
    "label": "default",
    "heard": "bold cyan",
    "blocked": "dim",
    "full": "bold cyan",
    "partial": "cyan",
    "skipped": "dim",
    "only first": "bold red",
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


def console() -> Console:
    # Soft wrap: a pipe is not 80 columns wide, and a drawing must not be folded.
    return Console(highlight=False, soft_wrap=True)


def show(drawing: Drawing) -> None:
    """Print a drawing, coloured by the roles of its pieces."""
    console().print(Text.assemble(*((piece.text, STYLES[piece.role]) for piece in drawing.pieces)))


def prepare_output() -> None:
    """Let an output that cannot encode a glyph show a stand-in instead of failing."""
    codecs.register_error("stand-in", _stand_in)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="stand-in")


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    # As wide as what it stands for, so that columns stay columns.
    return "".join(IN_ASCII.get(c, "?" * width(c)) for c in error.object[error.start : error.end]), error.end
