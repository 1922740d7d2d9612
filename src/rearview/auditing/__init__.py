"""Audit a model: does it only look back? Experiments on the real kernels, a proof, and the place of a leak.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing import audit
>>> report = audit(torch.nn.GRU(4, 4, batch_first=True), torch.randn(2, 16, 4), contract=causal())
>>> report.ok
True

`README.md` in this folder describes how an audit works; `procedure.py` runs it.
"""

from rearview.auditing.model.decoding import CacheAdapter
from rearview.auditing.model.subject import ModelFailed
from rearview.auditing.procedure import audit, estimate
from rearview.auditing.reporting.difference import ReportDifference, compare_reports
from rearview.auditing.reporting.report import Check, Cost, Hears, Place, ProofSummary, Report, Verdict
from rearview.auditing.reporting.witness import Replay, Witness, replay

__all__ = [
    "audit",
    "estimate",
    "replay",
    "compare_reports",
    "Report",
    "Verdict",
    "Check",
    "Witness",
    "Place",
    "Hears",
    "ProofSummary",
    "Cost",
    "Replay",
    "ModelFailed",
    "CacheAdapter",
    "ReportDifference",
]
