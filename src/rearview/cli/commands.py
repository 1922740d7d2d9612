"""Commands of typer whose help shows `--quick` and not `--quick <bool>`; and options by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

# A mixin: for a type checker it is the command that it is mixed into.
Base = TyperCommand if TYPE_CHECKING else object


class _PlainFlags(Base):
    def get_params(self, ctx: Any) -> list[Any]:
        params = list(super().get_params(ctx))
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif getattr(param, "multiple", False):
                # Typer shows the type of the list.
                param.metavar = "<str>"
        return params


class Command(_PlainFlags, TyperCommand):
    """One command."""


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
