"""Decoding with a cache, token by token and in chunks: compared with the full pass, and held to the contract.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import cached_decoding
>>> from rearview.auditing.context import AuditContext
>>> cached_decoding.run(AuditContext.of(lambda x: x.cumsum(1), torch.randn(2, 8), causal(), full=True)).check.why
'the model has no cache of a known form (past_key_values, or new_cache(batch) with cache=)'
"""

from __future__ import annotations

from dataclasses import replace

from rearview.auditing.checks.suffix_swap import outcome, swapped
from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.equivalence import compare_forms
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.model.decoding import decode_in_steps, has_cache, seems_cached
from rearview.auditing.reporting.report import Check, Number

NAME = "cached decoding"


def run(context: AuditContext) -> Outcome:
    subject = context.subject
    if context.cache is None and (subject.call is not None or not has_cache(subject.model)):
        why = "the model has no cache of a known form (past_key_values, or new_cache(batch) with cache=)"
        if seems_cached(subject.model):
            why += "; for another give cache=(start, step), a pair of functions"
        return Outcome(Check(NAME, "skipped", why))
    if (subject.batch_axis, subject.time_axis) != (0, 1):
        return Outcome(Check(NAME, "skipped", "decoding in steps needs inputs [batch, time, ...]"))
    if isinstance(subject.inputs, dict) and set(subject.inputs) - {subject.varied}:
        return Outcome(
            Check(
                NAME,
                "skipped",
                "the inputs hold more than the tokens, and how to split the rest into steps is not known",
            )
        )
    numbers: dict[str, Number] = {}
    refused: list[str] = []
    ways = _ways(subject.time) if context.full else _few_ways(subject.time)
    for name, steps in ways.items():
        try:
            if len(steps) <= 2:
                # A step of several positions has a future within it, which the mask must hide.
                found = swapped(
                    context,
                    check=NAME,
                    draws=1,
                    prober=context.prober_for(decode_in_steps(subject, steps, context.cache)),
                )
                if found.leak is not None:
                    answer = outcome(NAME, found, name)
                    return Outcome(replace(answer.check, why=f"{name}: {answer.check.why}"), answer.leak)
            same = compare_forms(
                context, subject, name, lambda given, steps=steps: decode_in_steps(given, steps, context.cache).run()
            )
        except Exception as error:
            # The model may raise anything in a form of decoding that it was not written for. Others may still differ.
            refused.append(f"{name}: the model does not decode in this way: {brief(error)}")
            continue
        numbers[name] = same.amount
        if same.differ:
            check = Check(NAME, "failed", f"{same.why} from the full pass", numbers)
            leak = same.leak(NAME, decode_in_steps(subject, steps, context.cache), source=max(0, same.query - 1))
            return Outcome(check, replace(leak, usual=subject))
        if not same.same:
            return Outcome(Check(NAME, "inconclusive", same.why, numbers))
    if not numbers:
        return Outcome(Check(NAME, "skipped", "; ".join(refused), numbers))
    why = "; ".join([f"the outputs agree with the full pass: {', '.join(numbers)}", *refused])
    return Outcome(Check(NAME, "passed", why, numbers))


def _ways(time: int) -> dict[str, tuple[int, ...]]:
    """The lengths of the steps. The two chunks differ in length, so that the length of an axis identifies the chunk."""
    third, half = max(1, time // 3), time // 2
    return {
        "in one step": (time,),
        "in two chunks": (third, time - third),
        "prefill, then token by token": (half, *(1,) * (time - half)),
        "token by token": (1,) * time,
    }


def _few_ways(time: int) -> dict[str, tuple[int, ...]]:
    """The steps of a quick audit."""
    third = max(1, time // 3)
    return {
        "in two chunks": (third, time - third),
        "token by token at the end": (time - 2, 1, 1) if time > 2 else (1, 1),
    }
