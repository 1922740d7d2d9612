"""The checks, one file each: `NAME` and `run(trial)`. Each finds out whether it applies, and says why not.

>>> from rearview.audit.checks import QUICK_CHECKS
>>> [check.NAME for check in QUICK_CHECKS][:3]
['batch isolation', 'suffix swap', 'who heard whom']
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rearview.audit.checks import (
    backends,
    batch,
    caching,
    canary,
    injection,
    labels,
    layers,
    length,
    liveness,
    longer,
    matrix,
    packing,
    padding,
    redrawn,
    swap,
    training,
)
from rearview.audit.decoding import has_cache
from rearview.audit.trial import Outcome, Trial


class Entry(NamedTuple):
    NAME: str
    run: Callable[[Trial], Outcome]


# In this order: whether batch items hear each other decides how the others run; liveness reads who heard whom.
QUICK_CHECKS = (
    Entry(batch.NAME, batch.run),
    Entry(swap.NAME, swap.run),
    Entry(matrix.NAME, matrix.run),
    Entry(length.NAME, length.run),
    Entry(training.NAME, training.run),
    Entry(liveness.NAME, liveness.run),
    Entry(injection.NAME, injection.run),
    Entry(redrawn.NAME, redrawn.run),
)
ALSO = (
    Entry(redrawn.NAME_ALL, redrawn.run_all),
    Entry(longer.NAME, longer.run),
    Entry(padding.NAME, padding.run),
    Entry(packing.NAME, packing.run),
    Entry(caching.NAME, caching.run),
    Entry(backends.NAME, backends.run),
    Entry(backends.NAME_PRECISION, backends.run_precision),
    Entry(layers.NAME, layers.run),
    Entry(labels.NAME, labels.run),
    Entry(canary.NAME, canary.run),
)


def checks_for(trial: Trial) -> list[Entry]:
    """All of them in full; in quick also what the arguments ask for, and a cache, which is soon tried."""
    if trial.full:
        return [*QUICK_CHECKS, *ALSO]
    asked = {
        padding.NAME: not bool(trial.subject.real.all()),
        caching.NAME: trial.subject.call is None and has_cache(trial.subject.model),
        labels.NAME: trial.loss is not None,
        canary.NAME: trial.step is not None,
    }
    return [*QUICK_CHECKS, *(entry for entry in ALSO if asked.get(entry.NAME))]


__all__ = ["ALSO", "Entry", "QUICK_CHECKS", "checks_for"]
