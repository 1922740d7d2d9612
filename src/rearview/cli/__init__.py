"""The command line: `rearview <verb>`, one module per verb.

A verb's module is imported when the verb is used: `rearview --help` needs neither torch nor any of them.

>>> from rearview.cli import run
>>> run(["mask", "causal()", "--length", "2"])
causal()  ·  2 queries x 2 keys  ·  75.0 % visible
<BLANKLINE>
 query \\ key   0  1
 0             ■  ·   [0, 1)
 1             ■  ■   [0, 2)
<BLANKLINE>
 ■ heard   · blocked   [a, b) hears the keys from a up to, not including, b
0
"""

import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from rearview.cli.output import OutputRefused, ReaderGone, name_refusals, refused
from rearview.errors import MissingExtra, RearviewError

# What a shell reports for a command that was interrupted, or whose reader went away.
INTERRUPTED, READER_GONE = 130, 141


def main() -> NoReturn:
    """The `rearview` command."""
    # torch says so when it is imported; what needs numpy names it in an error.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    name_refusals()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. A `RearviewError` becomes a message, never a traceback."""
    try:
        if missing := _missing_extra():
            from rearview.cli.bare import answer

            if not answer(arguments):
                raise missing
        else:
            from rearview.cli.terminal import prepare_output
            from rearview.cli.verbs import command

            prepare_output()
            command().main(args=list(arguments), prog_name="rearview")
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else 0 if done.code is None else 2
    except RearviewError as error:
        code = refused(error)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except ReaderGone:
        code = READER_GONE
    else:
        code = 0
    return _flushed(code)


def _missing_extra() -> MissingExtra | None:
    try:
        # typer first: whoever installs it gets rich with it.
        import typer  # noqa: F401, I001
        import rich  # noqa: F401
    except ImportError as error:
        missing = (error.name or "typer").partition(".")[0]
        return MissingExtra(missing, extra="terminal", needed_for="The rearview command")
    return None


def _flushed(code: int) -> int:
    # Here, because what is still buffered can no longer be reported when the interpreter ends.
    try:
        sys.stdout.flush()
    except ReaderGone:
        return READER_GONE
    except OutputRefused as error:
        return refused(error)
    return code
