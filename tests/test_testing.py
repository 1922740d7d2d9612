"""assert_only_looks_back: it passes on PROVEN and HELD, and otherwise fails with the report."""

import pytest
import torch
from torch import nn

from rearview import causal, window
from rearview.testing import LooksAhead, assert_only_looks_back


def test_a_clean_model_passes_and_returns_its_report():
    report = assert_only_looks_back(nn.GRU(4, 4, batch_first=True), torch.randn(2, 8, 4))
    assert report.verdict.value == "PROVEN"


def test_the_message_is_the_report():
    with pytest.raises(AssertionError) as caught:
        assert_only_looks_back(lambda x: x + x.mean(1, keepdim=True), torch.randn(2, 8))
    assert isinstance(caught.value, LooksAhead)
    assert str(caught.value) == str(caught.value.report)
    assert "A mean over the time axis hears every position" in str(caught.value)


def test_arguments_are_those_of_audit():
    gru = nn.GRU(4, 4)
    swapped = torch.randn(2, 8, 4)
    call = lambda model, x: model(x.transpose(0, 1))[0].transpose(0, 1)  # noqa: E731
    assert_only_looks_back(gru, swapped, causal(), call, seed=3, mode="quick")
    with pytest.raises(LooksAhead, match=r"against causal\(\) & window\(3\)"):
        assert_only_looks_back(gru, swapped, causal() & window(3), call=call)


def test_inconclusive_fails_unless_allowed():
    still = nn.Linear(4, 4), torch.randn(2, 8, 4)
    with pytest.raises(LooksAhead, match="INCONCLUSIVE"):
        assert_only_looks_back(*still)
    assert assert_only_looks_back(*still, allow_inconclusive=True).verdict.value == "INCONCLUSIVE"
    with pytest.raises(LooksAhead, match="LEAKS"):
        assert_only_looks_back(lambda x: x.flip(1), torch.randn(2, 8), allow_inconclusive=True)


def test_a_proof_can_be_required():
    gru = nn.GRU(4, 4, batch_first=True), torch.randn(2, 8, 4)
    assert_only_looks_back(*gru, must_prove=True)
    with pytest.raises(LooksAhead, match="HELD"):
        assert_only_looks_back(*gru, must_prove=True, prove=False)
