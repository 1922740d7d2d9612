"""Dispatch modes of the auditor: without torch's compiler where the program does not use it, and beside it."""

import subprocess
import sys

import pytest
import torch

from rearview.auditing import Verdict, audit

PLAIN = """
import sys, torch
from rearview.auditing import audit
audit(torch.nn.GRU(4, 4, batch_first=True), torch.randn(2, 8, 4))
audit(lambda x: x.flip(1), torch.randn(2, 8))
sys.exit("torch._dynamo" in sys.modules)
"""


def test_an_audit_does_not_import_the_compiler():
    assert subprocess.run([sys.executable, "-c", PLAIN], timeout=120).returncode == 0


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_audited():
    clean = torch.compile(lambda x: x.cumsum(1) * 2, backend="eager")
    assert audit(lambda x: clean(x), torch.randn(2, 8)).verdict is Verdict.PROVEN
    leaking = torch.compile(lambda x: x.cumsum(1) + x.mean(1, keepdim=True), backend="eager")
    assert audit(lambda x: leaking(x), torch.randn(2, 8)).verdict is Verdict.LEAKS
