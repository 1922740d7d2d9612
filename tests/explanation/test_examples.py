"""The built-in examples compared with the three documents that they come from: every number that is printed there.

Seed 000 prints its inputs to 3 digits, and rounds on the way: 0.005 covers both for every figure. Seed 002 prints
scores to 5 significant digits, weights and output to 4 decimals: every printed digit comes back.
"""

import math

import pytest
import torch
from torch import Tensor

from rearview import Trace, causal, window
from rearview.explanation.examples import EXAMPLES, FIVE_TOKENS, FOUR_SPEAKERS, I_LOVE

INF = math.inf
TO = 0.005
PEOPLE = ["Frank", "Emma", "Daniel", "Alex"]
INFO = ["info-sichuan", "info-budget", "info-upscale"]


def matrix(trace: Trace, stage: str, *, masked: bool = True) -> Tensor:
    return trace[stage].of_head(0, masked=masked)


def assert_close(found: float, printed: float, place: str, *, to: float = TO) -> None:
    assert found == printed or abs(found - printed) <= to, f"{place}: {found} where the seed prints {printed}"


# Seed 000, section by section.

QUERY = [[5.319, 1.716], [1.293, 1.210], [0.742, 1.921], [2.589, 1.589]]
KEY = [[5.271, 1.703], [1.260, 1.338], [0.701, 2.796], [2.565, 1.577]]
VALUE = [[3.963, 2.121, 1.743], [2.308, 1.114, 2.427], [1.626, 0.577, 3.115], [2.290, 0.798, 1.635]]
MASK = [[0, -INF, -INF, -INF], [0, 0, -INF, -INF], [0, 0, 0, -INF], [0, 0, 0, 0]]
SCORES = [
    [21.888, 6.362, 6.030, 11.557],
    [6.276, 2.297, 3.032, 3.695],
    [5.079, 2.479, 4.165, 3.489],
    [11.559, 3.810, 4.426, 6.468],
]
MASKED = [
    [21.888, -INF, -INF, -INF],
    [6.276, 2.297, -INF, -INF],
    [5.079, 2.479, 4.165, -INF],
    [11.559, 3.810, 4.426, 6.468],
]
WEIGHTS = [
    [1.000, 0.000, 0.000, 0.000],
    [0.982, 0.018, 0.000, 0.000],
    [0.678, 0.050, 0.271, 0.000],
    [0.993, 0.000, 0.001, 0.006],
]
OUTPUT = [[3.963, 2.121, 1.743], [3.934, 2.103, 1.755], [3.243, 1.650, 2.147], [3.951, 2.112, 1.744]]


@pytest.fixture(scope="module")
def restaurant() -> Trace:
    return FOUR_SPEAKERS.trace()


@pytest.mark.parametrize(
    ("stage", "columns", "printed"),
    [
        ("q", ["street-stall", "upscale"], QUERY),
        ("k", ["knows-street-stall", "knows-upscale"], KEY),
        ("v", INFO, VALUE),
        ("scores", PEOPLE, SCORES),
        ("mask", PEOPLE, MASK),
        ("masked", PEOPLE, MASKED),
        ("weights", PEOPLE, WEIGHTS),
        ("output", INFO, OUTPUT),
    ],
)
def test_each_table_of_the_restaurant(restaurant: Trace, stage: str, columns: list[str], printed: list[list[float]]):
    assert (list(restaurant[stage].rows), list(restaurant[stage].columns)) == (PEOPLE, columns)
    found = matrix(restaurant, stage).tolist()
    for person, row, expected in zip(PEOPLE, found, printed, strict=True):
        for column, number, figure in zip(columns, row, expected, strict=True):
            assert_close(number, figure, f"{stage}[{person}, {column}]")


def test_who_can_consult_whom(restaurant: Trace):
    consults = {"Frank": 1, "Emma": 2, "Daniel": 3, "Alex": 4}
    for row, (person, count) in enumerate(consults.items()):
        assert [PEOPLE[n] for n in restaurant.visible[0, row].nonzero().flatten().tolist()] == PEOPLE[:count], person


@pytest.mark.parametrize(
    ("person", "exponentials", "total"),
    [
        ("Emma", [531.7, 9.94], 541.6),
        ("Daniel", [160.8, 11.93, 64.34], 237.1),
        ("Alex", [104800, 45.15, 83.53, 643.4], 105572),
    ],
)
def test_the_softmax_lines(restaurant: Trace, person: str, exponentials: list[float], total: float):
    # The seed takes e to the power of scores that it rounded: 0.005 in a score is a factor of 1.005 here.
    scores = matrix(restaurant, "masked")[PEOPLE.index(person)]
    for other, score, figure in zip(PEOPLE, scores.tolist(), exponentials, strict=False):
        assert_close(score, math.log(figure), f"ln of {figure}, {person} to {other}")
    assert_close(float(scores.logsumexp(0)), math.log(total), f"ln of {total}, the total of {person}")


def test_forbidden_weights_are_exactly_zero(restaurant: Trace):
    weights = matrix(restaurant, "weights")
    assert bool((weights[~causal().to_bool(4)] == 0).all())
    # A 0.000 in the seed is either blocked or too small to print.
    assert 0 < float(weights[3, 1]) < 0.0005
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("person", "feature", "terms", "total"),
    [
        ("Frank", "info-sichuan", [3.963], 3.963),
        ("Frank", "info-budget", [2.121], 2.121),
        ("Frank", "info-upscale", [1.743], 1.743),
        ("Emma", "info-sichuan", [3.892, 0.042], 3.934),
        ("Emma", "info-budget", [2.083, 0.020], 2.103),
        ("Emma", "info-upscale", [1.711, 0.044], 1.755),
        ("Daniel", "info-sichuan", [2.687, 0.115, 0.441], 3.243),
        ("Daniel", "info-budget", [1.438, 0.056, 0.156], 1.650),
        ("Daniel", "info-upscale", [1.182, 0.121, 0.844], 2.147),
        ("Alex", "info-sichuan", [3.935, 0, 0.002, 0.014], 3.951),
        ("Alex", "info-budget", [2.106, 0, 0.001, 0.005], 2.112),
        ("Alex", "info-upscale", [1.731, 0, 0.003, 0.010], 1.744),
    ],
)
def test_each_line_of_products(restaurant: Trace, person: str, feature: str, terms: list[float], total: float):
    row, column = PEOPLE.index(person), INFO.index(feature)
    products = matrix(restaurant, "weights")[row] * matrix(restaurant, "v")[:, column]
    assert products.count_nonzero() == len(terms)
    for other, product, figure in zip(PEOPLE, products.tolist(), terms, strict=False):
        assert_close(product, figure, f"{person}, {feature}, from {other}")
    assert_close(float(matrix(restaurant, "output")[row, column]), total, f"{person}, {feature}")


@pytest.mark.parametrize(
    ("person", "shares"),
    [
        ("Frank", {"himself": 100.0}),
        ("Emma", {"Frank": 98.2, "herself": 1.8}),
        ("Daniel", {"Frank": 67.8, "himself": 27.1, "Emma": 5.0}),
        ("Alex", {"Frank": 99.3, "himself": 0.6, "Daniel": 0.1}),
    ],
)
def test_the_percentages_of_the_prose(restaurant: Trace, person: str, shares: dict[str, float]):
    reading = restaurant.readings()[PEOPLE.index(person)]
    # In the same order, to a tenth of a point: Daniel hears 27.196 % of himself, which the seed cuts to 27.1.
    assert [name for name, _ in reading.heard][: len(shares)] == list(shares)
    for name, percent in shares.items():
        assert_close(100 * dict(reading.heard)[name], percent, f"{person} hears {name}", to=0.1)


def test_what_the_prose_says(restaurant: Trace):
    output, value = matrix(restaurant, "output"), matrix(restaurant, "v")
    assert torch.equal(output[0], value[0])
    assert [reading.only_itself for reading in restaurant.readings()] == [True, False, False, False]
    # "Ended up drawing heavily from Frank", and "the first genuine blend".
    assert [reading.dominated_by for reading in restaurant.readings()] == ["himself", "Frank", "Frank", "Frank"]
    assert float(output[2, 2]) > float(value[0, 2])
    assert [reading.sentence for reading in restaurant.readings()] == [
        "Frank — 100.0 % himself",
        "Emma — 98.2 % Frank, 1.8 % herself",
        "Daniel — 67.8 % Frank, 27.2 % himself, 5.0 % Emma",
        "Alex — 99.3 % Frank, 0.6 % himself, 0.1 % Daniel, a trace of Emma",
    ]


# Seed 001: formulas, the mask of four tokens, and "I love ___".


def test_the_formulas_of_masked_self_attention():
    trace = I_LOVE.trace()
    assert {stage.key: stage.formula for stage in trace.stages} == {
        "x": "X",
        "p": "P",
        "x_positioned": "X' = X + P",
        "q": "Q = X' W_Q",
        "k": "K = X' W_K",
        "v": "V = X' W_V",
        "scores": "S = Q Kᵀ / √d",
        "mask": "M = causal()",
        "masked": "S + M",
        "weights": "A = softmax(S + M)",
        "output": "O = A V",
    }


def test_the_mask_matrix_of_four_tokens(restaurant: Trace):
    assert matrix(restaurant, "mask").tolist() == [
        [0, -INF, -INF, -INF],
        [0, 0, -INF, -INF],
        [0, 0, 0, -INF],
        [0, 0, 0, 0],
    ]


def test_i_love_blank():
    trace = I_LOVE.trace()
    assert trace.labels == ("I", "love", "___")
    assert trace.visible[0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert [{name for name, _ in reading.heard} for reading in trace.readings()] == [
        {"itself"},
        {"I", "itself"},
        {"I", "love", "itself"},
    ]
    # "Without masking: Token 1 could attend to Token 2 and 3 — cheating!"
    assert [name for name, _ in trace.readings(masked=False)[0].heard] == ["love", "___", "itself"]
    # Nothing of the blank gets into the words before it; without the mask it would.
    assert trace["output"].columns[2] == "blank"
    assert matrix(trace, "output")[:2, 2].tolist() == [0, 0]
    assert bool((matrix(trace, "output", masked=False)[:2, 2] > 0.3).all())
    assert "the numbers are chosen" in trace.title


def test_the_numbers_of_love_are_easy_to_follow():
    trace = I_LOVE.trace()
    assert matrix(trace, "x_positioned").tolist() == [[1, 0, 0, 0], [0, 1, 0, 0.5], [0, 0, 1, 1]]
    assert matrix(trace, "q").tolist() == [[0, 1], [1, 1], [1, 2]]
    assert matrix(trace, "k").tolist() == [[2, 0], [0, 2.25], [1, 1.5]]
    assert matrix(trace, "v").tolist() == [[1, 0, 0], [0.5, 2, 0], [0, 0, 1]]


# Seed 002: the session with five tokens. Each number as it is printed there.

SCORES_002 = [
    ["1.1037e+00", "1.3700e+00", "3.4402e-03", "-7.2684e-02", "1.3372e-01"],
    ["1.3700e+00", "3.8073e+00", "9.3326e-01", "-6.9241e-01", "-1.9216e-01"],
    ["3.4402e-03", "9.3326e-01", "2.7168e+00", "-1.8498e+00", "-7.4956e-01"],
    ["-7.2684e-02", "-6.9241e-01", "-1.8498e+00", "1.2658e+00", "4.8337e-01"],
    ["1.3372e-01", "-1.9216e-01", "-7.4956e-01", "4.8337e-01", "4.3930e-01"],
]
WEIGHTS_002 = [
    ["1.0000", "0.0000", "0.0000", "0.0000", "0.0000"],
    ["0.0804", "0.9196", "0.0000", "0.0000", "0.0000"],
    ["0.0537", "0.1361", "0.8101", "0.0000", "0.0000"],
    ["0.1811", "0.0975", "0.0306", "0.6907", "0.0000"],
    ["0.2036", "0.1470", "0.0842", "0.2888", "0.2764"],
]
OUTPUT_002 = [
    ["0.4920", "0.2533", "-1.3494", "0.2833"],
    ["-0.6409", "-0.7308", "-2.4200", "-0.2402"],
    ["0.6196", "-1.5246", "-0.6432", "-1.0218"],
    ["-0.4017", "0.7434", "-0.3175", "0.5210"],
    ["-0.1386", "0.1804", "-0.5905", "0.3895"],
]


@pytest.mark.parametrize(
    ("stage", "form", "printed"),
    [("scores", ".4e", SCORES_002), ("weights", ".4f", WEIGHTS_002), ("output", ".4f", OUTPUT_002)],
)
def test_each_printed_digit_of_five_tokens(stage: str, form: str, printed: list[list[str]]):
    found = matrix(FIVE_TOKENS.trace(), stage).tolist()
    assert [[format(number, form) for number in row] for row in found] == printed


def test_the_mask_of_five_tokens():
    trace = FIVE_TOKENS.trace()
    blocked = torch.triu(torch.ones((5, 5)), diagonal=1).bool()
    assert torch.equal(matrix(trace, "mask") == -INF, blocked)
    # -1e9 where the session fills it in; here it is -inf, and the printed scores elsewhere.
    assert torch.equal(matrix(trace, "masked") == -INF, blocked)
    assert torch.equal(matrix(trace, "masked")[~blocked], matrix(trace, "scores")[~blocked])
    assert bool((matrix(trace, "weights")[blocked] == 0).all())


def test_query_key_and_value_are_one():
    query, key, value = FIVE_TOKENS.tensors()
    assert torch.equal(query, key)
    assert torch.equal(query, value)
    # x follows from what is printed: weights x input = output. Rounding grows to half a thousandth on the way.
    weights, output = (
        torch.tensor([[float(number) for number in row] for row in table], dtype=torch.float64)
        for table in (WEIGHTS_002, OUTPUT_002)
    )
    torch.testing.assert_close(query, torch.linalg.solve(weights, output), rtol=0, atol=5e-4)


# Properties of all examples.


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_has_all_parts(name: str):
    example = EXAMPLES[name]
    trace = example.trace()
    assert (example.name, example.labels, example.title) == (name, trace.labels, trace.title)
    assert "\n" not in example.title
    torch.testing.assert_close(matrix(trace, "weights") @ matrix(trace, "v"), matrix(trace, "output"))
    alone = example.trace(mask=window(1))
    assert torch.equal(matrix(alone, "output"), matrix(trace, "v"))
    assert all(reading.only_itself for reading in alone.readings())
