"""The model to audit, for the command line: built by a function, or loaded from a folder with a checkpoint.

>>> loaded = load("rearview.auditing.loading.example:build")
>>> type(loaded.model).__name__, list(loaded.inputs.shape)
('PastOnly', [2, 16, 4])
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rearview.errors import BadArgument
from rearview.masks import Mask

LENGTH, BATCH = 32, 2


@dataclass(frozen=True)
class Loaded:
    """A model with its inputs, and what the reader of a report should know about them."""

    model: Any
    inputs: Any
    contract: Mask | None = None
    call: Callable[[Any, Any], Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `audit`."""
    notes: tuple[str, ...] = ()
    """What the reader of a report should know: that weights are random, what was shrunk."""


def load(
    target: str, *, length: int | None = None, batch: int | None = None, config_only: bool = False, seed: int = 0
) -> Loaded:
    """Load the model that a function `package.module:name` builds, or the model in a folder."""
    from rearview.auditing.loading import folder, function

    if os.path.isdir(target):
        return folder.load(target, length=length, batch=batch, config_only=config_only, seed=seed)
    file, _, name = target.partition(":")
    if file.endswith(".py") and name and os.path.isfile(file):
        module = os.path.splitext(os.path.normpath(file))[0].replace(os.sep, ".")
        advice = f"Did you mean {module}:{name}?" if not os.path.isabs(file) and ".." not in file else ""
        raise BadArgument(
            "MODULE:FUNCTION|DIR", expected="package.module:function", got=f"the file {target}", advice=advice
        )
    if ":" in target and not os.path.exists(target):
        if config_only:
            raise BadArgument("--config-only", expected="a folder with config.json", got=f"the function {target}")
        return function.load(target, length=length, batch=batch, seed=seed)
    if os.path.isfile(target):
        got = f"the file {target}"
    elif os.sep in target:
        got = f"{target}, which does not exist"
    else:
        got = repr(target)
    advice = "For example mypackage.models:build, or ./checkpoint."
    raise BadArgument("MODULE:FUNCTION|DIR", expected="package.module:function, or a folder", got=got, advice=advice)


__all__ = ["Loaded", "load"]
