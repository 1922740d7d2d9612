"""The rule that turns the results of the checks and of the proof into a verdict. All of it is here.

>>> from rearview.auditing.reporting.report import Check
>>> from rearview.auditing.reporting.verdict import decide
>>> checks = [Check("suffix swap", "passed", "", {"trials": 3}), Check("who heard whom", "passed", "")]
>>> checks += [Check("liveness", "passed", "", {"near": True}), Check("injected leak", "passed", "")]
>>> decide(checks, None).verdict.value
'HELD'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rearview.auditing.reporting.report import Check, ProofSummary, Verdict

# These checks must have run and given an answer. The others run where they apply.
NEEDED = ("suffix swap", "who heard whom")
# Where a self-test fails, the other checks could not have failed.
SELF_TESTS = ("liveness", "injected leak")


class Decision(NamedTuple):
    """A verdict, and the reason in one sentence."""

    verdict: Verdict
    why: str


def decide(checks: Sequence[Check], proof: ProofSummary | None) -> Decision:
    """LEAKS where a check failed; INCONCLUSIVE where a check could not have failed; else PROVEN or HELD."""
    failed = [check for check in checks if check.status == "failed"]
    if failed:
        # The check with a single source says most.
        failed.sort(key=lambda check: check.name != "who heard whom")
        return Decision(Verdict.LEAKS, failed[0].why)
    unsure = _unsure(checks)
    if unsure:
        return Decision(Verdict.INCONCLUSIVE, unsure)
    tried = [check.name for check in checks if check.status == "passed" and check.name not in SELF_TESTS]
    if proof is not None and proof.is_proven:
        claim = f"no input {proof.scope} and no weights can make it hear what the contract forbids"
        if proof.conditions:
            count = len(proof.conditions)
            claim += (
                f", on {'one condition' if count == 1 else f'{count} conditions, the first'}: {proof.conditions[0]}"
            )
        return Decision(Verdict.PROVEN, f"{claim}; {proof.elsewhere}" if proof.elsewhere else claim)
    besides = f"; not proven: {proof.obstacle}" if proof is not None and proof.obstacle else ""
    return Decision(Verdict.HELD, f"nothing forbidden was heard in {len(tried)} checks{besides}")


def _unsure(checks: Sequence[Check]) -> str:
    """Why the checks cannot be relied on; empty where they can."""
    by_name = {check.name: check for check in checks}
    for name in NEEDED:
        check = by_name.get(name)
        if check is None or check.status == "inconclusive":
            return f"{name}: {check.why if check else 'the check was not run'}"
        if check.status == "skipped":
            return check.why
    liveness = by_name.get("liveness")
    if liveness is not None and not liveness.numbers.get("near", False):
        # Where zeros close every path, the copies in which they are redrawn decide.
        copies = [by_name[name] for name in ("redrawn zeros", "redrawn weights") if name in by_name]
        if not any(copy.status == "passed" and copy.numbers.get("near") for copy in copies):
            return liveness.why
    injected = by_name.get("injected leak")
    if injected is not None and injected.status == "inconclusive":
        return injected.why
    others = [check for check in checks if check.status == "inconclusive" and check.name not in SELF_TESTS]
    return f"{others[0].name}: {others[0].why}" if others else ""
