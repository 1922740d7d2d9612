"""Where the model to audit comes from: a function of yours, or a folder with a checkpoint.

>>> loaded = load("rearview.audit.loading.example:build")
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
    """What is to be audited, and what was done to get it."""

    model: Any
    inputs: Any
    contract: Mask | None = None
    call: Callable[[Any, Any], Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `audit`."""
    notes: tuple[str, ...] = ()
    """What a reader of the verdict has to know: that weights are random, what was shrunk."""


def load(
    target: str, *, length: int | None = None, batch: int | None = None, config_only: bool = False, seed: int = 0
) -> Loaded:
    """A function `package.module:name`, or a folder."""
    from rearview.audit.loading import folder, function

    if os.path.isdir(target):
        return folder.load(target, length=length, batch=batch, config_only=config_only, seed=seed)
    if ":" in target and not os.path.exists(target):
        if config_only:
            raise BadArgument("--config-only", expected="a folder with config.json", came=f"the function {target}")
        return function.load(target, length=length, batch=batch, seed=seed)
    if os.path.isfile(target):
        came = f"the file {target}"
    elif os.sep in target:
        came = f"{target}, which is not there"
    else:
        came = repr(target)
    advice = "For example mypackage.models:build, or ./checkpoint."
    raise BadArgument("TARGET", expected="package.module:function, or a folder", came=came, advice=advice)


__all__ = ["Loaded", "load"]
