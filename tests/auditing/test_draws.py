"""Draws that do not shift: the same for every row, whatever was drawn before, with the right distribution."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rearview.auditing.model.draws import SEEDS, FixedDraws

WIDE = 20_000
DRAWN = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout of a half": lambda x: F.dropout(x, 0.5),
    "fused dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.7)) / 0.7,
    "bernoulli in place": lambda x: torch.empty_like(x).bernoulli_(0.7) / 0.7,
    "bernoulli in place, by default": lambda x: 2 * torch.full_like(x, 9.0).bernoulli_(),
    "uniform": lambda x: 2 * torch.rand_like(x),
    "uniform in place": lambda x: torch.empty_like(x).uniform_(0.5, 1.5),
    "normal": lambda x: 1 + torch.randn_like(x),
    "normal in place": lambda x: torch.empty_like(x).normal_(1.0, 2.0),
    "exponential": lambda x: torch.empty_like(x).exponential_(),
    "integers": lambda x: torch.randint(0, 3, x.shape).float(),
    "random slopes": lambda x: F.rrelu(-x, 0.5, 1.5, training=True).neg(),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_rows_are_equal_and_the_mean_is_right(draw):
    with FixedDraws(1):
        few = draw(torch.ones(2, WIDE))
        torch.rand(17)
        many = draw(torch.ones(5, WIDE))
    # The same line draws the same, whatever was drawn before.
    assert torch.equal(few[0], few[1])
    assert torch.equal(few[0], many[4])
    assert float(few[0].std()) > 0.1
    assert float(few[0].double().mean()) == pytest.approx(1.0, abs=0.05)


def test_another_line_and_another_seed_draw_something_else():
    with FixedDraws(1):
        one = torch.rand(100)
        other = torch.rand(100)
    with FixedDraws(2):
        third = torch.rand(100)
    assert not torch.equal(one, other)
    assert not torch.equal(one, third)
    assert len(set(SEEDS)) == len(SEEDS)


def test_modules_at_one_line_draw_differently():
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))

    def masks(x: Tensor) -> list[Tensor]:
        return [layer(x) for layer in model]

    with FixedDraws(1, model):
        first, second = masks(torch.ones(1, 64))
    assert not torch.equal(first, second)


def test_a_choice_is_made_by_the_weights():
    weights = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    with FixedDraws(1):
        assert torch.multinomial(weights, 1).flatten().tolist() == [1, 2]
