"""The bench of statistics on a GPU: without one it says so; what is wrong is caught. No timing is asserted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench import statistics_gpu as bench
from bench.__main__ import main
from rearview import causal
from rearview.attention.request import Request
from rearview.attention.statistics.strip_sums import sums_by_strips
from rearview.attention.statistics.sums import Sums

CASE = bench.Case("small", 70, 16, causal())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]):
    assert main(["statistics_gpu"]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_what_is_wrong_is_caught(monkeypatch: pytest.MonkeyPatch):
    query, key = CASE.inputs(torch.device("cpu"))
    monkeypatch.setattr(bench.gpu, "sums_on_gpu", sums_by_strips)
    assert bench.disagreement(CASE, query, key) == ""

    def wrong(request: Request, sinks: Tensor | None, bin_width: int) -> Sums:
        sums = sums_by_strips(request, sinks, bin_width)
        sums.received.mul_(0.5)
        return sums

    monkeypatch.setattr(bench.gpu, "sums_on_gpu", wrong)
    assert bench.disagreement(CASE, query, key) == "small: received differs"


def test_all_contestants_run():
    query, key = CASE.inputs(torch.device("cpu"))
    for call in bench.contestants(CASE, query, key).values():
        call()
