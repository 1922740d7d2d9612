"""The proof in an audit: at which shapes it ran, what contradicts it, what it assumes, in every form of the report."""

import json
import random
from collections.abc import Callable
from dataclasses import replace

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from rearview import causal
from rearview.auditing import Report, Verdict, audit
from rearview.auditing.checks import matrix
from rearview.auditing.context import AuditContext
from rearview.auditing.proof import summary
from rearview.auditing.proof.summary import other_lengths, summarize_proof
from rearview.auditing.reporting.html import page_data
from tests.auditing.proof.search import CAUSAL


def running_sum(x: Tensor) -> Tensor:
    return x.cumsum(1)


def test_a_quick_proof_names_its_shape_and_another_length():
    report = audit(running_sum, torch.randn(2, 12))
    assert report.verdict is Verdict.PROVEN
    assert report.why == (
        "no input of shape [2, 12], or with 5 positions, and no weights can make it hear what the contract forbids"
    )
    assert report.proof is not None
    assert report.proof.why == "proven for every input of shape [2, 12], or with 5 positions, and all weights"


def test_a_full_proof_is_about_every_length():
    report = audit(running_sum, torch.randn(2, 12), mode="full")
    assert report.why == (
        "no input of up to 12 positions in a batch of 2 and no weights can make it hear what the contract forbids"
    )


def test_other_lengths_have_no_common_factor():
    for length in range(2, 200):
        for other in other_lengths(length, full=False):
            assert 1 < other < length
            assert torch.gcd(torch.tensor(other), torch.tensor(length)) == 1
    assert other_lengths(64, full=True) == list(range(1, 64))
    assert len(other_lengths(65, full=True)) == 7


def test_a_length_at_which_it_is_not_proven_is_told():
    def leaks_when_short(x: Tensor) -> Tensor:
        return x.cumsum(1) if x.shape[1] > 7 else x.cumsum(1) + (x.mean(1, keepdim=True) > 1e6)

    report = audit(leaks_when_short, torch.randn(2, 12))
    assert report.verdict is Verdict.PROVEN
    assert report.why.startswith("no input of shape [2, 12] and no weights")
    assert "; with 5 positions it is not proven: its structure allows a leak: position 0 could hear" in report.why


def test_a_length_at_which_the_model_does_not_run_is_told():
    def fixed(x: Tensor) -> Tensor:
        return x.cumsum(1) * torch.ones(12)

    report = audit(fixed, torch.randn(2, 12))
    assert report.verdict is Verdict.PROVEN
    assert "; with 5 positions it does not run: RuntimeError: " in report.why


def test_a_contract_of_one_length_is_proven_at_that_length(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(AuditContext, "contract_at", lambda context, time: None)
    report = audit(running_sum, torch.randn(2, 12))
    assert report.verdict is Verdict.PROVEN
    assert "with 5 positions it is not proven: the contract is not defined at this length" in report.why


def test_one_item_is_joined_by_another_at_the_other_length():
    """A batch of one cannot show whether items hear each other."""

    def couples(x: Tensor) -> Tensor:
        return x.cumsum(1) + (x.mean() > 1e6) if len(x) > 1 else x.cumsum(1)

    report = audit(couples, torch.randn(1, 12))
    assert report.proof is not None
    assert report.proof.lengths == ()
    assert "with 5 positions it is not proven" in report.proof.elsewhere


def test_too_many_items_for_a_proof_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(summary, "MOST_BOOLEANS", {False: 4 * 12 * 12 * 16, True: 0})
    report = audit(running_sum, torch.randn(16, 12))
    assert report.verdict is Verdict.PROVEN
    assert "no input of shape [4, 12]" in report.why
    report = audit(running_sum, torch.randn(2, 48))
    assert report.verdict is Verdict.HELD
    assert "proven for the first 15 positions only: 48 are too many for a proof" in report.why


def test_an_experiment_that_contradicts_the_proof_is_believed():
    context = AuditContext.of(running_sum, torch.randn(2, 6), causal())
    matrix.run(context)
    assert summarize_proof(context).status == "proven"
    assert context.hears is not None
    amounts = context.hears.amounts.clone()
    amounts[1, 4] = amounts[0, 3] = 1.0
    context.hears = replace(context.hears, amounts=amounts)
    found = summarize_proof(context)
    assert found.status == "not proven"
    assert found.contradictions == (
        "position 0 moved when position 3 changed, which the proof rules out",
        "position 1 moved when position 4 changed, which the proof rules out",
    )
    assert found.why == f"an experiment contradicts the proof: {found.contradictions[0]}"


def test_a_proof_that_knows_too_little_is_contradicted(monkeypatch: pytest.MonkeyPatch):
    """Also of pairs that the contract allows: they show that the proof has missed a path."""
    from rearview.auditing.proof.rules import RULES

    monkeypatch.setitem(RULES, "cumsum", lambda call: call.args[0].sets)
    report = audit(running_sum, torch.randn(2, 6))
    assert report.verdict is Verdict.HELD
    assert "an experiment contradicts the proof: position 1 moved when position 0 changed" in report.why
    assert "which the proof rules out" in str(report)


WATCHED = "the program does the same whether or not a torch dispatch mode watches it"


def test_assumptions_are_in_every_form_of_the_report():
    report = audit(running_sum, torch.randn(2, 12))
    text = " ".join(str(report).split())
    assert report.proof is not None
    for assumption in report.proof.assumptions:
        assert " ".join(assumption.split()) in text
    assert WATCHED in report.proof.assumptions
    assert WATCHED in page_data(report)["proof"]["assumptions"]
    assert WATCHED in json.loads(report.to_json())["proof"]["assumptions"]
    again = Report.from_json(report.to_json())
    assert again.proof == report.proof


class KeepsAtFirst(nn.Module):
    """It computes something at its first call, and keeps it."""

    def __init__(self, first: Callable[[Tensor], Tensor]):
        super().__init__()
        self.first, self.kept = first, None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None or len(self.kept) < x.shape[1]:
            self.kept = self.first(x)
        return self.kept[: x.shape[1], : x.shape[1]] @ x


def test_what_a_model_keeps_from_its_first_call_is_part_of_the_proof():
    mask = KeepsAtFirst(lambda x: torch.ones(x.shape[1], x.shape[1]).tril())
    report = audit(mask, torch.randn(2, 12, 4))
    assert report.verdict is Verdict.PROVEN
    assert not report.conditions
    scores = KeepsAtFirst(lambda x: torch.ones(x.shape[1], x.shape[1]).tril() * x.mean())
    assert audit(scores, torch.randn(2, 12, 4)).verdict is not Verdict.PROVEN
    assert mask.kept is None
    assert scores.kept is None


@pytest.mark.parametrize("draw", [random.random, lambda: numpy.random.rand()])
def test_draws_outside_of_torch_are_said(draw):
    report = audit(lambda x: x.flip(1) if draw() < 0 else x.cumsum(1), torch.randn(2, 6))
    assert report.verdict is Verdict.PROVEN
    assert "draws from the generators of Python and numpy are those of this run" in str(report)


class Decays(nn.Module):
    """Linear attention whose decays are a buffer, as in MiniMax."""

    decay: Tensor

    def __init__(self, size: int):
        super().__init__()
        distance = torch.arange(size)[:, None] - torch.arange(size)
        self.register_buffer("decay", torch.exp(-0.1 * distance).tril())

    def forward(self, x: Tensor) -> Tensor:
        time = x.shape[1]
        return (x @ x.transpose(1, 2) * self.decay[:time, :time]) @ x


def test_a_triangular_buffer_is_a_mask_and_is_named():
    model = Decays(16)
    report = audit(model, torch.randn(2, 12, 4))
    assert report.verdict is Verdict.PROVEN
    assert report.proof is not None
    assert "buffers read as constants: decay" in report.proof.assumptions
    model.decay += 1e-6
    assert audit(model, torch.randn(2, 12, 4)).verdict is not Verdict.PROVEN


@pytest.mark.filterwarnings("ignore")
def test_flex_attention_works_after_an_audit_of_a_leak():
    def leaking(x: Tensor) -> Tensor:
        mask = create_block_mask(lambda b, h, q, k: q + 1 >= k, None, None, x.shape[1], x.shape[1], device="cpu")
        return flex_attention(x[:, None], x[:, None], x[:, None], block_mask=mask)[:, 0]

    assert audit(leaking, torch.randn(2, 12, 4)).verdict is Verdict.LEAKS
    x = torch.randn(1, 1, 7, 4)
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 7, 7, device="cpu")
    expected = (x @ x.mT / 2).masked_fill(~CAUSAL[7], float("-inf")).softmax(-1) @ x
    assert torch.allclose(flex_attention(x, x, x, block_mask=mask), expected, atol=1e-5)
