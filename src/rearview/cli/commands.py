"""Commands of typer whose help shows `--quick` and not `--quick <bool>`; and options by name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rearview.cli.interrupt import ended_at_once

# A mixin: for a type checker it is the command that it is mixed into.
Base = TyperCommand if TYPE_CHECKING else object


class _PlainFlags(Base):
    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = list(super().get_params(ctx))
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif getattr(param, "multiple", False) and param.metavar is None:
                # Typer shows the type of the list.
                param.metavar = "<str>"
            elif getattr(param, "nargs", 1) == -1:
                param.display_type_rich = lambda ctx: "<str>"
        return params


class Command(_PlainFlags, TyperCommand):
    """One command."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; not for its help, which does not wait for torch."""
        # While torch is imported it imports numpy, and takes a Ctrl-C there for a numpy that does not work: the signal
        # would be lost, or numpy would be half of itself. Where torch is missing, what needs it says so.
        with ended_at_once(), suppress(ImportError):
            import torch  # noqa: F401
        return super().invoke(ctx)


class CommandGroup(_PlainFlags, TyperGroup):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Several commands under one name."""


def given_options(context: typer.Context) -> set[str]:
    """The names of the options that are on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def option_name(name: str) -> str:
    """The spelling of an option.

    >>> option_name("kv_heads")
    '--kv-heads'
    """
    return "--" + name.replace("_", "-")


def words_of(values: Mapping[str, object]) -> list[str]:
    """The words of a command line with these options.

    >>> words_of({"text": ("a.txt", "b.txt"), "steps": 9, "shard": True})
    ['--text', 'a.txt', '--text', 'b.txt', '--steps', '9', '--shard']
    """
    words: list[str] = []
    for name, value in values.items():
        for each in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(each, bool):
                words.append(option_name(name) if each else option_name(f"no_{name}"))
            else:
                words += [option_name(name), str(each)]
    return words
