"""The checks. Each has a `NAME` and a function that runs it, which skips where the check does not apply.

>>> from rearview.auditing.checks import QUICK_CHECKS
>>> [check.NAME for check in QUICK_CHECKS][:3]
['batch isolation', 'suffix swap', 'who heard whom']
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rearview.auditing.checks import (
    backends,
    batch_isolation,
    cached_decoding,
    canary,
    labels,
    layer_windows,
    length,
    matrix,
    packing,
    padding,
    reinitialization,
    self_tests,
    suffix_swap,
    train_mode,
)
from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.model.decoding import has_cache, seems_cached


class Entry(NamedTuple):
    """A check: its name and the function that runs it."""

    NAME: str
    run: Callable[[AuditContext], Outcome]


# The order matters: whether batch items hear each other decides how the others run; liveness uses who heard whom.
QUICK_CHECKS = (
    Entry(batch_isolation.NAME, batch_isolation.run),
    Entry(suffix_swap.NAME, suffix_swap.run),
    Entry(matrix.NAME, matrix.run),
    Entry(length.NAME, length.run),
    Entry(train_mode.NAME, train_mode.run),
    Entry(self_tests.LIVENESS, self_tests.run_liveness),
    Entry(self_tests.INJECTION, self_tests.run_injection),
    Entry(reinitialization.NAME, reinitialization.run),
)
FURTHER_CHECKS = (
    Entry(reinitialization.NAME_ALL, reinitialization.run_all),
    Entry(length.NAME_LONGER, length.run_longer),
    Entry(padding.NAME, padding.run),
    Entry(packing.NAME, packing.run),
    Entry(cached_decoding.NAME, cached_decoding.run),
    Entry(backends.NAME, backends.run),
    Entry(backends.NAME_PRECISION, backends.run_precision),
    Entry(layer_windows.NAME, layer_windows.run),
    Entry(labels.NAME, labels.run),
    Entry(canary.NAME, canary.run),
)


def checks_for(context: AuditContext) -> list[Entry]:
    """All checks for a full audit; for a quick one also those that the arguments ask for, and the cache."""
    if context.full:
        return [*QUICK_CHECKS, *FURTHER_CHECKS]
    asked = {
        padding.NAME: not bool(context.subject.real.all()),
        cached_decoding.NAME: context.cache is not None
        or (context.subject.call is None and (has_cache(context.subject.model) or seems_cached(context.subject.model))),
        labels.NAME: context.loss is not None,
        canary.NAME: context.step is not None,
    }
    return [*QUICK_CHECKS, *(entry for entry in FURTHER_CHECKS if asked.get(entry.NAME))]


__all__ = ["Entry", "FURTHER_CHECKS", "QUICK_CHECKS", "checks_for"]
