"""The command line: `rearview <verb>`. Thin; one file a verb.

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

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from rearview.errors import MissingExtra, RearviewError

if TYPE_CHECKING:
    import typer

# What a shell reports for a command that was interrupted, or whose reader went away.
INTERRUPTED, READER_GONE = 130, 141


def main() -> NoReturn:
    """The `rearview` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code. Errors of the house become a message, never a traceback."""
    try:
        app = build()
        from typer.main import get_command

        from rearview.cli.terminal import prepare_output

        prepare_output()
        get_command(app).main(args=list(arguments), prog_name="rearview")
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else 0 if done.code is None else 2
    except RearviewError as error:
        print(f"rearview: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = READER_GONE
    else:
        code = 0
    return _flushed(code)


def build() -> "typer.Typer":
    """The application with its verbs."""
    try:
        import rich  # noqa: F401
        import typer
    except ImportError as error:
        missing = (error.name or "typer").partition(".")[0]
        raise MissingExtra(missing, extra="terminal", needed_for="The rearview command") from error
    from rearview import __version__
    from rearview.cli import audit, compare, demo, explain, generate, mask, observe, train

    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Masked attention you can run, see and prove.",
    )
    app.add_typer(mask.app, name="mask")
    app.command("explain")(explain.explain)
    app.command("observe")(observe.observe)
    app.command("audit")(audit.audit)
    app.command("demo")(demo.demo)
    app.command("train")(train.train)
    app.command("generate")(generate.generate)
    app.command("compare")(compare.compare)

    @app.callback(invoke_without_command=True)
    def rearview(
        context: typer.Context,
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        if version:
            print(f"rearview {__version__}")
            raise typer.Exit()
        if context.invoked_subcommand is None:
            print(context.get_help())

    return app


def _flushed(code: int) -> int:
    # What is still buffered must go out here: a reader that left (| head) is no reason for a traceback at exit.
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    return code
