"""For tests: `assert_only_looks_back`, the audit as one line.

>>> import torch
>>> assert_only_looks_back(lambda x: x.cumsum(1), torch.randn(2, 8))
<Report PROVEN: ...>

What fails is an AssertionError whose message is the report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rearview.audit import Report, Verdict, audit
from rearview.masks import Mask, causal


class LooksAhead(AssertionError):
    """A model that hears what its contract forbids, or of which that could not be ruled out; `report` has the rest."""

    def __init__(self, report: Report):
        self.report = report
        super().__init__(f"\n{report.show()}")


def assert_only_looks_back(
    model: Any,
    inputs: Any,
    contract: Mask = causal(),
    call: Callable[[Any, Any], Any] | None = None,
    *,
    allow_inconclusive: bool = False,
    must_prove: bool = False,
    **options: Any,
) -> Report:
    """Audit a model, and fail unless it is PROVEN or HELD. Returns the report. `options` are those of `audit`.

    A check that could not have failed is no pass: INCONCLUSIVE fails too, unless `allow_inconclusive`. With
    `must_prove` evidence is not enough: HELD fails.

    >>> import torch
    >>> try:
    ...     assert_only_looks_back(lambda x: x + x.roll(-1, 1), torch.randn(2, 8))
    ... except AssertionError as failure:
    ...     print(str(failure).strip().splitlines()[0])
    LEAKS  <lambda>  against causal()
    """
    report = audit(model, inputs, contract, call, **options)
    wanted = {Verdict.PROVEN} if must_prove else {Verdict.PROVEN, Verdict.HELD}
    if allow_inconclusive:
        wanted.add(Verdict.INCONCLUSIVE)
    if report.verdict not in wanted:
        # The frame of this function says nothing that the report does not.
        __tracebackhide__ = True
        raise LooksAhead(report)
    return report


__all__ = ["LooksAhead", "assert_only_looks_back"]
