"""The model that a function builds: `package.module:build`, with the current folder importable.

>>> from rearview.audit.loading.function import load
>>> loaded = load("rearview.audit.loading.example:build")
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

from rearview.audit.loading import BATCH, LENGTH, Loaded
from rearview.audit.loading.inputs import guess
from rearview.errors import BadArgument, RearviewError

RETURNS = "a model, (model, inputs), or a dict with model, and if you like inputs, contract, call"
OPTIONS = ("vary", "vocab", "time_axis", "batch_axis", "out_time_axis", "step", "loss", "prove")
KEYS = ("model", "inputs", "contract", "call", *OPTIONS)


class BuildFailed(RearviewError):
    """A function that was to build the model raised."""


def load(target: str, *, length: int | None = None, batch: int | None = None, seed: int = 0) -> Loaded:
    """Import the module, call the function with no arguments, and read what it returns."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise BadArgument("TARGET", expected="package.module:function", came=repr(target))
    build = _found(_imported(module_name), name, target)
    torch.manual_seed(seed)
    return _read(_called(build, target), target, length=length, batch=batch, seed=seed)


def _imported(name: str) -> ModuleType:
    # As `python -m` does it: what lies in the current folder can be imported.
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
            raise BadArgument("TARGET", expected="a module that can be imported", came=name, advice=advice) from None
        raise BuildFailed(f"{name} cannot be imported: it needs {missing!r}, which is not installed.") from error
    except Exception as error:
        raise BuildFailed(f"{name} cannot be imported: {_where(error)}") from error


def _found(module: ModuleType, name: str, target: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [each for each in dir(found) if not each.startswith("_") and callable(getattr(found, each, None))]
            close = difflib.get_close_matches(part, known, n=1)
            advice = f"Did you mean {close[0]}?" if close else ""
            raise BadArgument("TARGET", expected=f"a function of {module.__name__}", came=repr(part), advice=advice)
        found = getattr(found, part)
    if not callable(found):
        raise BadArgument("TARGET", expected="a function that builds the model", came=f"{target}, {_kind(found)}")
    return found


def _called(build: Any, target: str) -> Any:
    # A model by itself is callable as well, and so is a class.
    if isinstance(build, torch.nn.Module):
        return build
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        advice = "Write a function without arguments that returns the model."
        raise BadArgument(
            "TARGET", expected="a function without arguments", came=f"{target}: {error}", advice=advice
        ) from None
    except ValueError:
        pass  # A function of C has no signature to ask.
    try:
        return build()
    except Exception as error:
        raise BuildFailed(f"{target} raised {_where(error)}") from error


def _read(found: Any, target: str, *, length: int | None, batch: int | None, seed: int) -> Loaded:
    parts: dict[str, Any]
    if isinstance(found, dict):
        unknown = sorted(set(found) - set(KEYS))
        if "model" not in found or unknown:
            came = (
                f"the keys {', '.join(map(str, unknown))}"
                if unknown
                else f"a dict with {', '.join(map(str, found)) or 'nothing'}"
            )
            raise BadArgument(target, expected=f"{RETURNS}; of {', '.join(KEYS)}", came=came)
        parts = found
    elif isinstance(found, tuple):
        if len(found) != 2:
            raise BadArgument(target, expected=RETURNS, came=f"a tuple of {len(found)}")
        parts = {"model": found[0], "inputs": found[1]}
    elif callable(found):
        parts = {"model": found}
    else:
        raise BadArgument(target, expected=RETURNS, came=_kind(found))
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
                    name, expected="a model without inputs of its own", came=f"{target}, which returns them"
                )
    options = {name: parts[name] for name in OPTIONS if name in parts}
    return Loaded(parts["model"], inputs, parts.get("contract"), parts.get("call"), options, notes)


def _kind(value: Any) -> str:
    return "None" if value is None else f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"


def _where(error: BaseException) -> str:
    """The error and the user's own line, without the frames of this library."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if __file__ not in frame.filename]
    frames = [frame for frame in frames if "importlib" not in frame.filename]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' + text if text else ''}{place}"
