"""The rule that makes a verdict of what was seen. All of it is here.

>>> from rearview.audit.report import Check
>>> from rearview.audit.verdict import decide
>>> checks = [Check("suffix swap", "passed", "", {"trials": 3}), Check("who heard whom", "passed", "")]
>>> checks += [Check("liveness", "passed", "", {"near": True}), Check("injected leak", "passed", "")]
>>> decide(checks, None).verdict.value
'HELD'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rearview.audit.report import Check, ProofSummary, Verdict

# What must have been asked and answered. The others are asked where they apply.
NEEDED = ("suffix swap", "who heard whom")
# A self-test that fails says that the checks could not have.
SELF_TESTS = ("liveness", "injected leak")


class Decision(NamedTuple):
    verdict: Verdict
    why: str


def decide(checks: Sequence[Check], proof: ProofSummary | None) -> Decision:
    """LEAKS with a witness; INCONCLUSIVE when a check could not have failed; else PROVEN, or HELD."""
    failed = [check for check in checks if check.status == "failed"]
    if failed:
        # One source and one position say most.
        failed.sort(key=lambda check: check.name != "who heard whom")
        return Decision(Verdict.LEAKS, failed[0].why)
    unsure = _unsure(checks)
    if unsure:
        return Decision(Verdict.INCONCLUSIVE, unsure)
    tried = [check.name for check in checks if check.status == "passed" and check.name not in SELF_TESTS]
    if proof is not None and proof.status == "proven":
        return Decision(Verdict.PROVEN, "no input and no weights can make it hear what the contract forbids")
    if proof is not None and proof.status == "conditional":
        return Decision(Verdict.PROVEN, f"proven on condition: {proof.conditions[0]}")
    besides = f"; not proven: {proof.why}" if proof is not None and proof.why else ""
    return Decision(Verdict.HELD, f"nothing forbidden was heard in {len(tried)} checks{besides}")


def _unsure(checks: Sequence[Check]) -> str:
    """Why the checks cannot be relied on; empty when they can."""
    by_name = {check.name: check for check in checks}
    for name in NEEDED:
        check = by_name.get(name)
        if check is None or check.status == "inconclusive":
            return f"{name}: {check.why if check else 'was not asked'}"
        if check.status == "skipped":
            return check.why
    liveness = by_name.get("liveness")
    if liveness is not None and not liveness.numbers.get("near", False):
        # A path that is closed by zeros is judged by the copy in which they are redrawn.
        twins = [by_name[name] for name in ("redrawn zeros", "redrawn weights") if name in by_name]
        if not any(twin.status == "passed" and twin.numbers.get("near") for twin in twins):
            return liveness.why
    injected = by_name.get("injected leak")
    if injected is not None and injected.status == "inconclusive":
        return injected.why
    others = [check for check in checks if check.status == "inconclusive" and check.name not in SELF_TESTS]
    return f"{others[0].name}: {others[0].why}" if others else ""
