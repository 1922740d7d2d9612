"""Decoding with a cache: one by one, in chunks, and after a prefill, against the full pass; and the suffix swap there.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import caching
>>> from rearview.audit.trial import Trial
>>> caching.run(Trial.of(lambda x: x.cumsum(1), torch.randn(2, 8), causal(), full=True)).check.why
'the model has no cache that is known here: past_key_values, or new_cache(batch) and cache='
"""

from __future__ import annotations

from dataclasses import replace

from rearview.audit.checks.swap import outcome, swapped
from rearview.audit.decoding import has_cache, in_steps
from rearview.audit.forms import compare_forms
from rearview.audit.noise import brief
from rearview.audit.report import Check, Number
from rearview.audit.trial import Outcome, Trial

NAME = "cached decoding"


def run(trial: Trial) -> Outcome:
    subject = trial.subject
    if subject.call is not None or not has_cache(subject.model):
        why = "the model has no cache that is known here: past_key_values, or new_cache(batch) and cache="
        return Outcome(Check(NAME, "skipped", why))
    if isinstance(subject.inputs, dict) and set(subject.inputs) - {subject.varied}:
        return Outcome(Check(NAME, "skipped", "the inputs have companions, and how they are cut is not known"))
    numbers: dict[str, Number] = {}
    ways = _ways(subject.time) if trial.full else _few_ways(subject.time)
    for name, steps in ways.items():
        try:
            if len(steps) <= 2:
                # With few steps there is a future within a step, which its mask must hide.
                found = swapped(trial, check=NAME, draws=1, prober=trial.prober_for(in_steps(subject, steps)))
                if found.leak is not None:
                    answer = outcome(NAME, found, name)
                    return Outcome(replace(answer.check, why=f"{name}: {answer.check.why}"), answer.leak)
            same = compare_forms(trial, subject, name, lambda given, steps=steps: in_steps(given, steps).run())
        except Exception as error:
            return Outcome(Check(NAME, "skipped", f"{name}: the model does not decode so: {brief(error)}", numbers))
        numbers[name] = same.amount
        if same.differ:
            check = Check(NAME, "failed", f"{same.why} from the full pass", numbers)
            leak = same.leak(NAME, in_steps(subject, steps), source=max(0, same.query - 1))
            return Outcome(check, replace(leak, usual=subject))
        if not same.same:
            return Outcome(Check(NAME, "inconclusive", same.why, numbers))
    return Outcome(Check(NAME, "passed", f"the same outputs as in the full pass: {', '.join(ways)}", numbers))


def _ways(time: int) -> dict[str, tuple[int, ...]]:
    """The lengths of the steps. Those of two chunks differ, so that an axis tells which one it belongs to."""
    third, half = max(1, time // 3), time // 2
    return {
        "prefill at once": (time,),
        "in two chunks": (third, time - third),
        "prefill, then one by one": (half, *(1,) * (time - half)),
        "one by one": (1,) * time,
    }


def _few_ways(time: int) -> dict[str, tuple[int, ...]]:
    """What a quick audit has time for."""
    third = max(1, time // 3)
    return {"in two chunks": (third, time - third), "one by one at the end": (time - 2, 1, 1) if time > 2 else (1, 1)}
