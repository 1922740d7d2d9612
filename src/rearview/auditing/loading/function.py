"""The model that a function builds, given as `package.module:build`; modules in the current folder can be imported.

>>> from rearview.auditing.loading.function import load
>>> loaded = load("rearview.auditing.loading.example:build")
>>> list(loaded.inputs.shape)
[2, 16, 4]
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import traceback
from types import ModuleType
from typing import Any

import torch

from rearview.auditing.loading import BATCH, LENGTH, Loaded
from rearview.auditing.loading.inputs import guess
from rearview.auditing.user_code import user_line
from rearview.errors import BadArgument, RearviewError

RETURNS = "a model, (model, inputs), or a dict with model and optionally inputs, contract, call"
OPTIONS = ("vary", "vocab", "time_axis", "batch_axis", "out_time_axis", "cache", "step", "loss", "prove")
KEYS = ("model", "inputs", "contract", "call", *OPTIONS)


class BuildFailed(RearviewError):
    """The function that builds the model raised."""


def load(target: str, *, length: int | None = None, batch: int | None = None, seed: int = 0) -> Loaded:
    """Import the module, call the function without arguments, and read what it returns."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise BadArgument("MODULE:FUNCTION|DIR", expected="package.module:function", got=repr(target))
    build = _found(_imported(module_name), name, target)
    torch.manual_seed(seed)
    return _read(_called(build, target), target, length=length, batch=batch, seed=seed)


def _imported(name: str) -> ModuleType:
    # As `python -m` does: modules in the current folder can be imported.
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            advice = f"Looked in {here} and among the installed packages."
            raise BadArgument(
                "MODULE:FUNCTION|DIR", expected="a module that can be imported", got=name, advice=advice
            ) from None
        raise BuildFailed(f"{name} cannot be imported: it needs {missing!r}, which is not installed.") from error
    except Exception as error:
        # The user's module may raise anything.
        raise BuildFailed(f"{name} cannot be imported: {_where(error)}") from error


def _found(module: ModuleType, name: str, target: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [each for each in dir(found) if not each.startswith("_") and callable(getattr(found, each, None))]
            close = difflib.get_close_matches(part, known, n=1)
            advice = f"Did you mean {close[0]}?" if close else ""
            raise BadArgument(
                "MODULE:FUNCTION|DIR", expected=f"a function of {module.__name__}", got=repr(part), advice=advice
            )
        found = getattr(found, part)
    if not callable(found):
        raise BadArgument(
            "MODULE:FUNCTION|DIR", expected="a function that builds the model", got=f"{target}, {_kind(found)}"
        )
    return found


def _called(build: Any, target: str) -> Any:
    # A model, which is callable as well, is not called.
    if isinstance(build, torch.nn.Module):
        return build
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        advice = "Write a function without arguments that returns the model."
        raise BadArgument(
            "MODULE:FUNCTION|DIR", expected="a function without arguments", got=f"{target}: {error}", advice=advice
        ) from None
    except ValueError:
        pass  # A function implemented in C has no signature.
    try:
        return build()
    except Exception as error:
        # The user's function may raise anything.
        raise BuildFailed(f"{target} raised {_where(error)}") from error


def _read(found: Any, target: str, *, length: int | None, batch: int | None, seed: int) -> Loaded:
    parts: dict[str, Any]
    if isinstance(found, dict):
        unknown = sorted(set(found) - set(KEYS))
        if "model" not in found or unknown:
            expected = f"a dict with model and any of {', '.join(key for key in KEYS if key != 'model')}"
            got = f"a dict with {', '.join(map(str, found)) or 'nothing'}"
            advice = f"{', '.join(map(str, unknown))}: no such key." if unknown else ""
            raise BadArgument(target, expected=expected, got=got, advice=advice)
        parts = found
    elif isinstance(found, tuple):
        if len(found) != 2:
            raise BadArgument(target, expected=RETURNS, got=f"a tuple of {len(found)}")
        parts = {"model": found[0], "inputs": found[1]}
    elif callable(found):
        parts = {"model": found}
    else:
        raise BadArgument(target, expected=RETURNS, got=_kind(found))
    inputs = parts.get("inputs")
    if inputs is None:
        inputs = guess(parts["model"], length=length or LENGTH, batch=batch or BATCH, seed=seed)
        notes: tuple[str, ...] = (
            f"inputs are random: {'tokens' if inputs.ndim == 2 else 'frames'} {list(inputs.shape)}",
        )
    else:
        notes = ()
        for name, value in (("--length", length), ("--batch", batch)):
            if value is not None:
                raise BadArgument(
                    name, expected="a function that returns no inputs", got=f"{target}, which returns them"
                )
    options = {name: parts[name] for name in OPTIONS if name in parts}
    return Loaded(parts["model"], inputs, parts.get("contract"), parts.get("call"), options, notes)


def _kind(value: Any) -> str:
    return "None" if value is None else f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"


def _where(error: BaseException) -> str:
    """The error with the user's line."""
    line = user_line(traceback.extract_tb(error.__traceback__))
    place = f" ({line.file}:{line.line})" if line is not None else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' + text if text else ''}{place}"
