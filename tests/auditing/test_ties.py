"""A choice among equal scores is no hearing; a choice that the length makes is."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rearview.auditing import Verdict, audit
from rearview.auditing.evidence.equivalence import EarliestOfEqualScores
from rearview.auditing.evidence.rounding import GroupedProductsInDouble


class Sparse(nn.Module):
    """Attends to the three past keys with the highest score, which many keys share."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 6), nn.Linear(6, 20)

    def score(self, x: Tensor) -> Tensor:
        return torch.zeros(x.shape[0], x.shape[1], x.shape[1])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = self.score(x).masked_fill(~past, float("-inf"))
        chosen = torch.zeros_like(scores).scatter(-1, scores.topk(min(3, x.shape[1])).indices, 1.0).bool() & past
        return self.head(x + F.scaled_dot_product_attention(x, x, x, attn_mask=chosen).nan_to_num())


class ByLength(Sparse):
    """The position in the middle gets the highest score: it moves as the sequence grows."""

    def score(self, x: Tensor) -> Tensor:
        near = (torch.arange(x.shape[1]) - x.shape[1] // 2).abs().float()
        return -near.expand(x.shape[0], x.shape[1], -1)


def tokens(time: int = 24) -> Tensor:
    return torch.randint(20, (2, time), generator=torch.Generator().manual_seed(0))


def test_equals_may_be_chosen_from():
    torch.manual_seed(0)
    report = audit(Sparse(), tokens())
    assert report.ok, report


def test_a_choice_by_length_is_a_leak():
    torch.manual_seed(0)
    report = audit(ByLength(), tokens())
    assert report.verdict is Verdict.LEAKS
    assert report.check("truncation").status == "failed"


@pytest.mark.parametrize("largest", [True, False])
def test_the_first_of_equals_is_taken(largest: bool):
    x = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0], [3.0, 3.0, 3.0, 3.0, 3.0]])
    with EarliestOfEqualScores():
        values, indices = x.topk(2, largest=largest)
        order = x.sort().indices
    assert values.tolist() == x.topk(2, largest=largest).values.tolist()
    assert indices.tolist() == ([[1, 2], [0, 1]] if largest else [[0, 3], [0, 1]])
    assert order.tolist() == [[0, 3, 1, 2, 4], [0, 1, 2, 3, 4]]


def test_groups_are_multiplied_in_float64_as_in_float32():
    rows, weights, ends = torch.randn(7, 16), torch.randn(3, 16, 16), torch.tensor([2, 2, 7], dtype=torch.int32)
    wanted = torch.ops.aten._grouped_mm(rows, weights, ends)
    with GroupedProductsInDouble():
        found = torch.ops.aten._grouped_mm(rows.double(), weights.double(), ends)
    torch.testing.assert_close(found.float(), wanted, atol=1e-5, rtol=1e-5)


class Mixture(nn.Module):
    """Tokens sorted by expert, multiplied group by group, and put back."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(20, 16), nn.GRU(16, 16, batch_first=True)
        self.router, self.experts = nn.Linear(16, 4), nn.Parameter(torch.randn(4, 16, 16))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.mix(self.embed(tokens))[0]
        rows = x.flatten(0, 1)
        expert = self.router(rows).argmax(-1)
        order = expert.argsort(stable=True)
        ends = (expert[:, None] == torch.arange(4)).sum(0).cumsum(0).int()
        out = torch.zeros_like(rows)
        out[order] = torch.ops.aten._grouped_mm(rows[order], self.experts, ends)
        return x + out.view_as(x)


def test_rounding_in_a_mixture_of_experts_is_told_from_a_leak():
    torch.manual_seed(0)
    report = audit(Mixture(), tokens(16))
    assert report.ok, report
