"""The verbs of `rearview`: their names, a line of help for each, and the command that imports a verb when it is used.

A module `rearview.cli.<verb>` has a `typer.Typer` called `app`. The first line of a verb's own help is its line here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.main import get_command

from rearview.cli.bare import print_version
from rearview.cli.commands import Command, CommandGroup

# In the order in which the help lists them.
VERBS = {
    "mask": "Draw a mask, or compare two masks.",
    "shard": "Show how a sequence is spread over ranks: work, keys that travel, bytes.",
    "explain": "Explain one attention step by step: scores, mask, weights and output.",
    "observe": "Show the attention of a model, for every layer and head, at any length.",
    "audit": "Check that a model only looks back: evidence, a proof, and the line that leaks.",
    "studio": "Open a local page to see a model attend, ask why, change its mask, and watch it write.",
    "demo": "Show masked attention step by step, then train a model with and without the mask.",
    "train": "Train a small GPT, BERT or T5 on a text.",
    "generate": "Generate text with a trained model, or fill in its masked tokens.",
    "compare": "Train the same GPT with the mask and without it, and examine both.",
    "doctor": "Show what works on this machine, what is missing, and how to get it.",
}


class Verb(Command):
    """A verb that is imported when it is called; until then it knows only its name and its line of help."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        app: typer.Typer = import_module(f"rearview.cli.{self.name}").app
        return get_command(app).make_context(info_name, args, parent=parent, **extra)


class Verbs(CommandGroup):
    """The group of all verbs."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.commands.update({name: Verb(name, help=text) for name, text in VERBS.items()})

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)


def command() -> Verbs:
    """The `rearview` command; none of its verbs is imported yet."""
    app = typer.Typer(
        cls=Verbs,
        add_completion=False,
        invoke_without_command=True,
        help="Masked attention you can run, see and prove.",
    )
    app.callback()(_rearview)
    found = get_command(app)
    assert isinstance(found, Verbs)
    return found


def _rearview(
    context: typer.Context,
    show_version: bool = typer.Option(
        False, "--version", help="Print the version, the CPU kernel and the engines found here, and exit."
    ),
) -> None:
    if show_version:
        print_version()
        raise typer.Exit()
    if context.invoked_subcommand is None:
        print(context.get_help())
