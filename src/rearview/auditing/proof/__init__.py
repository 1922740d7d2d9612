"""Proof: run a program on the sets of positions that each value has heard, and read off who can hear whom.

>>> import torch
>>> gru = torch.nn.GRU(4, 4, batch_first=True)
>>> proof = prove(lambda x: gru(x)[0], torch.randn(1, 5, 4))
>>> proof.within(torch.ones(5, 5).tril().bool())
True

`README.md` in this folder describes the domain, why it is sound, and what it assumes.
"""

from rearview.auditing.proof.prover import prove
from rearview.auditing.proof.result import Condition, Escape, OpLocation, OpRelation, Proof, ProofFailed, UnknownOp

__all__ = ["prove", "Proof", "Condition", "UnknownOp", "Escape", "OpLocation", "OpRelation", "ProofFailed"]
