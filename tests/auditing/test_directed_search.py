"""Where the proof says that a leak is possible, the auditor searches for an input that shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rearview.auditing import Report, Verdict, audit, replay
from rearview.auditing.evidence.decisions import Decisions
from tests.auditing.zoo import DIM, VOCAB, signal, tokens

LARGE_VOCAB = 5_000


class Embedded(nn.Module):
    """A running sum of embeddings, scaled by what `gate(embeddings, tokens)` says of the whole sequence."""

    def __init__(self, gate: Callable[[Tensor, Tensor], Tensor | float], vocab: int = VOCAB):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.gate = nn.Embedding(vocab, DIM), gate

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return h.cumsum(1) * self.gate(h, x)


def half_unless(condition: Tensor) -> Tensor:
    return torch.where(condition, 1.0, 0.5).view(-1, 1, 1)


def ordinary() -> Tensor:
    return torch.randint(0, 700, (2, 16), generator=torch.Generator().manual_seed(0))


GATES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], Tensor]]] = {
    "a mean near its threshold": (lambda x: x.cumsum(1) * half_unless(x.mean((1, 2)) > 0), signal),
    "a mean far from its threshold": (lambda x: x.cumsum(1) * half_unless(x.mean((1, 2)) > 1000), signal),
    "a mean in a narrow interval": (
        lambda x: x.cumsum(1) * half_unless((x.mean((1, 2)) > 3) & (x.mean((1, 2)) < 3.01)),
        signal,
    ),
    "a branch on a mean": (lambda x: x.cumsum(1) * (2 if x.mean() > 50 else 1), signal),
    "a number that Python reads": (lambda x: x.cumsum(1) * (2 if x.mean().item() > 50 else 1), signal),
    "a rounding": (lambda x: x.cumsum(1) + (x.mean((1, 2), keepdim=True) * 1e-3).round(), signal),
    "a floor": (lambda x: x.cumsum(1) + (x.mean((1, 2), keepdim=True) * 1e-4 + 0.5).floor(), signal),
    "a dead unit": (lambda x: x.cumsum(1) + (x.mean((1, 2), keepdim=True) - 500).relu(), signal),
    "a branch on tokens": (Embedded(lambda h, x: 1.0 if bool((x > VOCAB - 2).any()) else 0.5), tokens),
    "a rare token": (Embedded(lambda h, x: half_unless((x == 777).any(1)), LARGE_VOCAB), ordinary),
    "a rare token, computed": (Embedded(lambda h, x: half_unless((3 * x + 1 == 2332).any(1)), LARGE_VOCAB), ordinary),
    "a mean of embeddings": (Embedded(lambda h, x: half_unless(h.mean((1, 2)) > 0.35)), tokens),
    "a sum of tokens": (Embedded(lambda h, x: half_unless(x.sum(1) > 14 * (VOCAB - 2))), tokens),
}


@pytest.mark.parametrize("name", GATES)
def test_a_gate_is_opened_and_the_witness_replays(name: str):
    model, inputs = GATES[name]
    report = audit(model, inputs())
    assert report.verdict is Verdict.LEAKS, report
    assert report.witness is not None
    assert replay(model, report.witness).leaks


def unreachable() -> Report:
    """No token has an embedding as large as this, so the gate stays closed with these weights."""
    return audit(Embedded(lambda h, x: half_unless(h.mean((1, 2)) > 40)), tokens())


def test_what_stays_held_names_the_op_and_what_would_settle_it():
    report = unreachable()
    assert report.verdict is Verdict.HELD
    assert report.check("directed search").status == "passed"
    assert "inputs made to turn a decision" in report.check("directed search").why
    assert "its structure allows a leak: position 0 could hear position 1, through mul" in report.why
    settled = (
        "To settle it: mask this path with -inf, or remove it; no input was found that uses it with these weights."
    )
    assert settled in " ".join(str(report).split())


def test_a_branch_on_what_must_not_be_heard_is_said():
    """It takes two tokens at once, which the search does not find; that the branch has heard them all is known."""

    def gate(h: Tensor, x: Tensor) -> float:
        return 1.0 if bool(((x[:, :-1] == 3) & (x[:, 1:] == 11)).any()) else 0.5

    report = audit(Embedded(gate, LARGE_VOCAB), ordinary())
    assert report.verdict is Verdict.HELD
    assert report.proof is not None
    (said,) = report.proof.decided_ahead
    assert said.endswith(
        "the value that is read here has heard positions 0 to 15 and decides what runs, although the outputs at "
        "positions 0 to 14 must not hear all of them"
    )
    assert "test_directed_search.py" in said
    assert said in report.why
    assert said in " ".join(str(report).split())
    assert "keep the value in a tensor" in report.proof.remedy
    assert report.from_json(report.to_json()).proof == report.proof


def test_decisions_are_kept_with_their_margins():
    x = torch.tensor([[0.5, 1.5, 4.0]], requires_grad=True)
    with Decisions(x.detach()) as seen:
        _ = (x.sum() > 5, x.mean().round(), x.argmax(-1), x.sum().item(), (x.detach() > 1).sum())
    assert [(one.name, one.reads) for one in seen.found] == [
        ("gt", False),
        ("round", False),
        ("argmax", False),
        ("item", True),
    ]
    margins = [float(one.margin.detach()) for one in seen.found]
    assert margins == pytest.approx([1.0, -0.5, 2.5, 6.0])
    table = torch.randn(9, 2)
    ids = torch.tensor([[3, 4]])
    with Decisions(ids) as seen:
        looked = nn.functional.embedding(ids, table)
        _ = ((ids == 7).any(), looked.sum() > 0)
    assert seen.numbers == {7}
    assert torch.equal(seen.looked_up[0][0], table[ids])
    assert seen.found[0].margin.requires_grad
