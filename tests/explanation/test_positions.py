"""Positions: the original paper's sines, a table, rotary; each against its formula, written out here."""

import math

import pytest
import torch
from torch.testing import assert_close

from rearview import explain
from rearview.explanation import Rotary, sinusoidal
from tests.explanation.traces import numbers


@pytest.mark.parametrize("dim", [1, 2, 5, 8])
@pytest.mark.parametrize("first", [0, 1, 7])
def test_the_papers_formula(dim: int, first: int):
    # PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d))
    table = sinusoidal(6, dim, first=first)
    assert table.shape == (6, dim)
    for row in range(6):
        for column in range(dim):
            angle = (row + first) / math.pow(10000.0, 2 * (column // 2) / dim)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[row, column].item() == pytest.approx(expected, abs=1e-14)


def test_sinusoidal_positions_are_added_before_the_projections():
    x, w_q, w_k, w_v = numbers(3, 4), numbers(4, 2, seed=1), numbers(4, 2, seed=2), numbers(4, 2, seed=3)
    trace = explain(x, w_q, w_k, w_v, positions="sinusoidal", features=["a", "b", "c", "d"])
    assert [stage.symbol for stage in trace.stages[:3]] == ["X", "P", "X'"]
    assert_close(trace["p"].matrix[0], sinusoidal(3, 4))
    assert_close(trace["x_positioned"].matrix[0], x + sinusoidal(3, 4))
    assert_close(trace["q"].matrix[0], (x + sinusoidal(3, 4)) @ w_q)
    assert_close(trace["v"].matrix[0], (x + sinusoidal(3, 4)) @ w_v)
    assert trace["q"].formula == "Q = X' W_Q"
    assert trace["p"].columns == trace["x_positioned"].columns == ("a", "b", "c", "d")


def test_a_learned_table_may_be_longer_than_the_input():
    x, w, table = numbers(3, 4), numbers(4, 4, seed=1), torch.nn.Embedding(10, 4, dtype=torch.float64)
    trace = explain(x, w, w, w, positions=table.weight)
    assert torch.equal(trace["p"].matrix[0], table.weight[:3].detach())
    given = explain(x, w, w, w, positions=table.weight[:3].tolist())
    assert torch.equal(given["weights"].matrix, trace["weights"].matrix)


def turned(vector: list[float], position: int, base: float = 10000.0) -> list[float]:
    """Eq. 34 of the paper: pair i is rotated by position x base^(-2i/d)."""
    out = []
    for i in range(0, len(vector), 2):
        angle = position * base ** (-i / len(vector))
        a, b = vector[i], vector[i + 1]
        out += [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
    return out


def test_rotary_rotates_queries_and_keys_but_not_values():
    x, w_q, w_k, w_v = numbers(3, 4), numbers(4, 8, seed=1), numbers(4, 8, seed=2), numbers(4, 8, seed=3)
    trace = explain(x, w_q, w_k, w_v, positions="rotary", num_heads=2)
    for key in "qk":
        for head in range(2):
            plain, spun = trace[key].of_head(head), trace[f"{key}_turned"].of_head(head)
            expected = [turned(plain[t].tolist(), t) for t in range(3)]
            assert_close(spun, torch.tensor(expected, dtype=torch.float64))
    assert_close(trace["v"].of_head(0), (x @ w_v)[:, :4])
    q, k = trace["q_turned"].of_head(1), trace["k_turned"].of_head(1)
    assert_close(trace["scores"].of_head(1), q @ k.T / 2)
    assert trace["scores"].formula == "S = Q' K'ᵀ / √d"
    assert "p" not in trace


def test_queries_over_a_cache_are_rotated_at_their_positions():
    q, k, v = numbers(4, 2), numbers(4, 2, seed=1), numbers(4, 2, seed=2)
    whole = explain(query=q, key=k, value=v, positions="rotary")
    last = explain(query=q[2:], key=k, value=v, positions="rotary")
    assert_close(last["weights"].matrix, whole["weights"].matrix[:, 2:])
    assert_close(last["output"].matrix, whole["output"].matrix[:, 2:])


def test_with_rotary_scores_depend_on_the_distance():
    q, k, v = numbers(4, 2), numbers(4, 2, seed=1), numbers(4, 2, seed=2)
    here, there = (explain(query=q, key=k, value=v, positions=Rotary(first=first)) for first in (0, 100))
    assert_close(here["scores"].matrix, there["scores"].matrix)
    assert not torch.allclose(here["q_turned"].matrix, there["q_turned"].matrix)
    other = explain(query=q, key=k, value=v, positions=Rotary(base=2.0))
    assert_close(other["q_turned"].matrix[0, 3].tolist(), turned(q[3].tolist(), 3, base=2.0))
