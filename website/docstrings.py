"""Docstrings as this project writes them, for mkdocstrings: examples stand in the text, without a heading.

>>> fenced("Half of it.\\n\\n>>> half(4)\\n2\\n\\nOr less.").splitlines()
['Half of it.', '', '```pycon', '>>> half(4)', '2', '```', '', 'Or less.']
"""

from __future__ import annotations

import importlib
import inspect
import re
from textwrap import dedent
from typing import Any

import griffe

DIRECTIVE = re.compile(r"[ \t]*# doctest: .*$", re.MULTILINE)
EXAMPLE = re.compile(r"^[ \t]*>>>.*?(?=\n[ \t]*\n(?![ \t]*>>>)|\Z)", re.MULTILINE | re.DOTALL)
OPTIONS_SHOWN = "shows_options"


def fenced(docstring: str) -> str:
    """The docstring with its sessions in fenced blocks, without what they say to doctest."""
    return EXAMPLE.sub(lambda match: f"```pycon\n{dedent(DIRECTIVE.sub('', match[0]))}\n```", docstring)


class Docstrings(griffe.Extension):
    """Fences examples, and gives functions with `**options` the signature that `help` shows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if any(decorator.callable_path.endswith(OPTIONS_SHOWN) for decorator in func.decorators):
            # Its parameters are put together when the module is imported.
            shown = getattr(importlib.import_module(func.module.path), func.name)
            func.parameters = griffe.Parameters(*map(_parameter, inspect.signature(shown).parameters.values()))
            func.overloads = None


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    empty = inspect.Parameter.empty
    kinds = {
        inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
        inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
        inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
        inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
        inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
    }
    return griffe.Parameter(
        parameter.name,
        annotation=None if parameter.annotation is empty else str(parameter.annotation),
        kind=kinds[parameter.kind],
        default=None if parameter.default is empty else repr(parameter.default),
    )
