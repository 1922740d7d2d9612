"""Proof: run a program on who-heard-whom sets instead of numbers, and read off who can hear whom.

>>> import torch
>>> gru = torch.nn.GRU(4, 4, batch_first=True)
>>> proof = prove(lambda x: gru(x)[0], torch.randn(1, 5, 4))
>>> proof.within(torch.ones(5, 5).tril().bool())
True

`README.md` in this folder has the domain, the argument for its soundness and what it assumes.
"""

from rearview.audit.proof.prove import prove
from rearview.audit.proof.result import Condition, Escape, Place, Proof, ProofFailed, Step, UnknownOp

__all__ = ["prove", "Proof", "Condition", "UnknownOp", "Escape", "Place", "Step", "ProofFailed"]
