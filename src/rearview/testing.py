"""For tests: `assert_only_looks_back` audits a model in one line.

>>> import torch
>>> assert_only_looks_back(lambda x: x.cumsum(1), torch.randn(2, 8))
<Report PROVEN: ...>

A model that does not pass raises an AssertionError whose message is the report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

from rearview.auditing import Report, Verdict, audit
from rearview.auditing.procedure import AuditOptions, InputsT, ModelT
from rearview.masks import Mask, causal


class LooksAhead(AssertionError):
    """A model hears what its contract forbids, or that could not be ruled out. `report` holds the audit."""

    def __init__(self, report: Report):
        self.report = report
        super().__init__(str(report.show()))


def assert_only_looks_back(
    model: ModelT,
    inputs: InputsT,
    contract: Mask = causal(),
    call: Callable[[ModelT, InputsT], object] | None = None,
    *,
    allow_inconclusive: bool = False,
    must_prove: bool = False,
    **options: Unpack[AuditOptions[ModelT]],
) -> Report:
    """Audit a model, and raise LooksAhead unless the verdict is PROVEN or HELD.

    Args:
        model: The model, as for `audit`.
        inputs: The inputs of one call, as for `audit`.
        contract: The mask that says which positions each output may hear.
        call: How to call the model, as for `audit`.
        allow_inconclusive: Whether INCONCLUSIVE passes too. By default it fails, since a check that could not have
            failed is not a pass.
        must_prove: Whether only PROVEN passes.
        options: Further arguments of `audit`.

    Returns:
        The report.

    >>> import torch
    >>> try:
    ...     assert_only_looks_back(lambda x: x + x.roll(-1, 1), torch.randn(2, 8))
    ... except AssertionError as failure:
    ...     print(str(failure).strip().splitlines()[0])
    LEAKS  <lambda>  against causal()
    """
    report = replace(audit(model, inputs, contract, call, **options), must_prove=must_prove)
    wanted = {Verdict.PROVEN} if must_prove else {Verdict.PROVEN, Verdict.HELD}
    if allow_inconclusive:
        wanted.add(Verdict.INCONCLUSIVE)
    if report.verdict not in wanted:
        # The frame of this function adds nothing to the report.
        __tracebackhide__ = True
        raise LooksAhead(report)
    return report


__all__ = ["LooksAhead", "assert_only_looks_back"]
