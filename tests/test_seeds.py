"""The three documents that the project started from: every number in them, from their own inputs.

Seed 000 prints its inputs to 3 digits and rounds on the way; 0.005 covers both everywhere. Seed 002 prints
weights and output of an input that it does not print: the input follows from them.
"""

import math

import pytest
import torch
from torch import Tensor

from rearview import MaskedSelfAttention, attend, causal, full, weights
from rearview.attention.engines import ENGINES, flex
from rearview.masks.exchange import from_bool

INF = math.inf
# FlexAttention has no float64 kernel, and the engines for GPUs are tested there.
ON_GPUS = ("hopper", "decode")
engines = pytest.mark.parametrize(
    ("engine", "dtype"),
    [(name, dtype) for name in ["auto", *ENGINES] if name not in ON_GPUS for dtype in (torch.float64, torch.float32)
     if (name, dtype) != ("flex", torch.float64)],
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flex, "_compiled", lambda function, device: function)


def table(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def assert_within(got: Tensor, printed: Tensor, limit: float) -> None:
    torch.testing.assert_close(got.double(), printed, rtol=0, atol=limit)


# Seed 000: four people recommend a restaurant.

PEOPLE = ("Frank", "Emma", "Daniel", "Alex")
QUERY = table((5.319, 1.716), (1.293, 1.210), (0.742, 1.921), (2.589, 1.589))
KEY = table((5.271, 1.703), (1.260, 1.338), (0.701, 2.796), (2.565, 1.577))
VALUE = table((3.963, 2.121, 1.743), (2.308, 1.114, 2.427), (1.626, 0.577, 3.115), (2.290, 0.798, 1.635))
MASK = table((0, -INF, -INF, -INF), (0, 0, -INF, -INF), (0, 0, 0, -INF), (0, 0, 0, 0))
SCORES = table(
    (21.888, 6.362, 6.030, 11.557),
    (6.276, 2.297, 3.032, 3.695),
    (5.079, 2.479, 4.165, 3.489),
    (11.559, 3.810, 4.426, 6.468),
)
MASKED_SCORES = table(
    (21.888, -INF, -INF, -INF),
    (6.276, 2.297, -INF, -INF),
    (5.079, 2.479, 4.165, -INF),
    (11.559, 3.810, 4.426, 6.468),
)
WEIGHTS = table((1, 0, 0, 0), (0.982, 0.018, 0, 0), (0.678, 0.050, 0.271, 0), (0.993, 0.000, 0.001, 0.006))
OUTPUT = table((3.963, 2.121, 1.743), (3.934, 2.103, 1.755), (3.243, 1.650, 2.147), (3.951, 2.112, 1.744))


@pytest.mark.parametrize(
    ("person", "consults"),
    [("Frank", "Frank"), ("Emma", "Frank Emma"), ("Daniel", "Frank Emma Daniel"), ("Alex", "Frank Emma Daniel Alex")],
)
def test_who_can_consult_whom(person: str, consults: str):
    row = causal().to_bool(4)[PEOPLE.index(person)].tolist()
    assert [other for other, heard in zip(PEOPLE, row, strict=True) if heard] == consults.split()


def test_the_mask_and_the_scores():
    assert torch.equal(causal().to_additive(4, dtype=torch.float64), MASK)
    scores = QUERY @ KEY.T / math.sqrt(2)
    assert_within(scores, SCORES, 0.005)
    assert_within(scores + MASK, MASKED_SCORES, 0.005)
    assert torch.equal(SCORES + MASK, MASKED_SCORES)


@pytest.mark.parametrize(
    ("row", "exponentials", "total"),
    [
        (1, (531.7, 9.94), 541.6),
        (2, (160.8, 11.93, 64.34), 237.1),
        (3, (104800, 45.15, 83.53, 643.4), 105572),
    ],
)
def test_the_softmax_by_hand(row: int, exponentials: tuple[float, ...], total: float):
    # Four digits at most, of scores that were rounded before: a thousandth.
    got = SCORES[row, : row + 1].exp()
    torch.testing.assert_close(got, torch.tensor(exponentials, dtype=torch.float64), rtol=2e-3, atol=0)
    assert float(got.sum()) == pytest.approx(total, rel=2e-3)
    assert_within(got / total, WEIGHTS[row, : row + 1], 0.005)


def test_the_weights():
    found = weights(QUERY, KEY)
    assert_within(found, WEIGHTS, 0.005)
    assert bool((found[MASK == -INF] == 0).all())
    # What stands in for -inf in practice makes no difference here.
    assert_within((SCORES + causal().to_additive(4, blocked=-1e9)).softmax(-1), WEIGHTS, 0.005)


@pytest.mark.parametrize(
    ("person", "shares"),
    [
        ("Frank", {"Frank": 100.0}),
        ("Emma", {"Frank": 98.2, "Emma": 1.8}),
        ("Daniel", {"Frank": 67.8, "Daniel": 27.1, "Emma": 5.0}),
        ("Alex", {"Frank": 99.3}),
    ],
)
def test_the_percentages_in_the_prose(person: str, shares: dict[str, float]):
    row = weights(QUERY, KEY, rows=PEOPLE.index(person))[0]
    for other, percent in shares.items():
        assert float(row[PEOPLE.index(other)]) == pytest.approx(percent / 100, abs=0.005)


@engines
def test_the_output(engine: str, dtype: torch.dtype):
    tensors = (tensor.to(dtype) for tensor in (QUERY, KEY, VALUE))
    assert_within(attend(*tensors, engine=engine), OUTPUT, 0.005)


@pytest.mark.parametrize(
    ("row", "feature", "terms", "total"),
    [
        (1, 0, (3.892, 0.042), 3.934),
        (1, 1, (2.083, 0.020), 2.103),
        (1, 2, (1.711, 0.044), 1.755),
        (2, 0, (2.687, 0.115, 0.441), 3.243),
        (2, 1, (1.438, 0.056, 0.156), 1.650),
        (2, 2, (1.182, 0.121, 0.844), 2.147),
        (3, 0, (3.935, 0, 0.002, 0.014), 3.951),
        (3, 1, (2.106, 0, 0.001, 0.005), 2.112),
        (3, 2, (1.731, 0, 0.003, 0.010), 1.744),
    ],
)
def test_the_sums_of_the_output(row: int, feature: int, terms: tuple[float, ...], total: float):
    parts = weights(QUERY, KEY, rows=row)[0] * VALUE[:, feature]
    assert_within(parts[: row + 1], torch.tensor(terms, dtype=torch.float64), 0.005)
    assert float(parts.sum()) == pytest.approx(total, abs=0.005)
    assert float(OUTPUT[row, feature]) == total


def test_frank_hears_himself_alone():
    assert torch.allclose(attend(QUERY, KEY, VALUE)[0], VALUE[0])
    # Without the mask he would hear the others too, and so would everyone.
    assert bool((weights(QUERY, KEY, mask=full()) > 0).all())


@engines
def test_the_layer_of_the_seeds(engine: str, dtype: torch.dtype):
    # X' and the weights are in other parts of the series: here X' is Q', K' and V' side by side, and W picks.
    x, unit = torch.cat([QUERY, KEY, VALUE], dim=-1).to(dtype), torch.eye(7, dtype=dtype)
    w_q, w_k, w_v = unit[:, :2], unit[:, 2:4], unit[:, 4:]
    layer = MaskedSelfAttention(
        7, 1, w_q=w_q, w_k=w_k, w_v=w_v, bias=False, output=False, engine=engine, dtype=dtype
    ).requires_grad_(False)
    assert_within(layer(x), OUTPUT, 0.005)


# Seed 001: masked self-attention in a few tables.


def test_the_mask_matrix_of_four_tokens():
    assert causal().to_additive(4).tolist() == [
        [0, -INF, -INF, -INF],
        [0, 0, -INF, -INF],
        [0, 0, 0, -INF],
        [0, 0, 0, 0],
    ]


def test_i_love_blank():
    def attended(mask) -> list[set[int]]:
        return [{token for token, heard in enumerate(row, 1) if heard} for row in mask.to_bool(3).tolist()]

    assert attended(causal()) == [{1}, {1, 2}, {1, 2, 3}]
    assert attended(full()) == [{1, 2, 3}] * 3
    words = [line.split()[1] for line in str(causal().show("I love ___")).splitlines()[4:7]]
    assert words == ["I", "love", "___"]


# Seed 002: five tokens of four features, q = k = v = x.

BLOCKED = torch.ones(5, 5).triu(diagonal=1).bool()
SCORES_002 = table(
    (1.1037e00, 1.3700e00, 3.4402e-03, -7.2684e-02, 1.3372e-01),
    (1.3700e00, 3.8073e00, 9.3326e-01, -6.9241e-01, -1.9216e-01),
    (3.4402e-03, 9.3326e-01, 2.7168e00, -1.8498e00, -7.4956e-01),
    (-7.2684e-02, -6.9241e-01, -1.8498e00, 1.2658e00, 4.8337e-01),
    (1.3372e-01, -1.9216e-01, -7.4956e-01, 4.8337e-01, 4.3930e-01),
)
WEIGHTS_002 = table(
    (1.0000, 0, 0, 0, 0),
    (0.0804, 0.9196, 0, 0, 0),
    (0.0537, 0.1361, 0.8101, 0, 0),
    (0.1811, 0.0975, 0.0306, 0.6907, 0),
    (0.2036, 0.1470, 0.0842, 0.2888, 0.2764),
)
OUTPUT_002 = table(
    (0.4920, 0.2533, -1.3494, 0.2833),
    (-0.6409, -0.7308, -2.4200, -0.2402),
    (0.6196, -1.5246, -0.6432, -1.0218),
    (-0.4017, 0.7434, -0.3175, 0.5210),
    (-0.1386, 0.1804, -0.5905, 0.3895),
)
# weights x input = output, and a lower triangle with no zero on its diagonal can be solved. What was rounded at
# the fourth decimal grows by the inverse of that triangle, to half a thousandth.
X = torch.linalg.solve(WEIGHTS_002, OUTPUT_002)
ROUNDED = 1e-3


def test_the_printed_mask_says_blocked():
    assert from_bool(BLOCKED, true_means="blocked").equals(causal(), 5)


def test_the_scores_of_five_tokens():
    assert_within(X @ X.T / math.sqrt(4), SCORES_002, ROUNDED)


def test_the_weights_of_five_tokens():
    printed = SCORES_002.masked_fill(BLOCKED, -1e9).softmax(-1)
    assert_within(printed, WEIGHTS_002, 1e-4)
    found = weights(X, X)
    assert_within(found, WEIGHTS_002, ROUNDED)
    assert bool((found[BLOCKED] == 0).all())


@engines
def test_the_output_of_five_tokens(engine: str, dtype: torch.dtype):
    x = X.to(dtype)
    assert_within(attend(x, x, x, engine=engine), OUTPUT_002, ROUNDED)


def test_the_formula_of_the_seeds():
    additive = causal().to_additive(5, dtype=torch.float64)
    assert_within(torch.softmax(X @ X.T / math.sqrt(4) + additive, dim=-1) @ X, attend(X, X, X), 1e-12)
