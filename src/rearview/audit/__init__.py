"""Does a model only look back? Evidence on the real kernels, a proof, and the place where it peeks.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit import audit
>>> report = audit(torch.nn.GRU(4, 4, batch_first=True), torch.randn(2, 16, 4), contract=causal())
>>> report.ok
True

`auditing.py` is the way through; `checks/` the questions, one a file; `proof/` the proof; `place/` where it leaks.
"""

from rearview.audit.auditing import audit, estimate
from rearview.audit.report import Check, Cost, Hears, Place, ProofSummary, Report, Verdict
from rearview.audit.subject import ModelFailed
from rearview.audit.witness import Replay, Witness, replay

__all__ = [
    "audit",
    "estimate",
    "replay",
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
]
