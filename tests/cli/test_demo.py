"""rearview demo: computed, not recited; the numbers of the worked example."""

import dataclasses
import math

import pytest
import torch

from rearview import attend, weights
from rearview.cli import demo
from rearview.examples import FOUR_SPEAKERS, Example

# As printed, to three digits, in the worked example that the inputs come from.
SCORES = [
    [21.888, 6.362, 6.030, 11.557],
    [6.276, 2.297, 3.032, 3.695],
    [5.079, 2.479, 4.165, 3.489],
    [11.559, 3.810, 4.426, 6.468],
]
WEIGHTS = [[1.0, 0, 0, 0], [0.982, 0.018, 0, 0], [0.678, 0.050, 0.271, 0], [0.993, 0.000, 0.001, 0.006]]
OUTPUT = [[3.963, 2.121, 1.743], [3.934, 2.103, 1.755], [3.243, 1.650, 2.147], [3.951, 2.112, 1.744]]


def table(out: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading, its labels left out."""
    lines = out[out.index(heading) :].splitlines()[3:7]
    return [line.split("│")[1:] for line in lines]


def numbers(out: str, heading: str) -> torch.Tensor:
    rows = [[float(cell.replace("∞", "inf")) for cell in row] for row in table(out, heading)]
    return torch.tensor(rows, dtype=torch.float64)


def close(found: torch.Tensor, expected: list[list[float]]) -> bool:
    return torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=0.005, rtol=0)


def test_the_printed_numbers_are_those_of_the_example(rearview):
    done = rearview("demo")
    assert (done.code, done.err) == (0, "")
    assert close(numbers(done.out, "S = Q'K'ᵀ"), SCORES)
    blocked = numbers(done.out, "S + M ")
    assert torch.equal(blocked == -math.inf, torch.ones(4, 4).triu(1).bool())
    assert close(blocked.tril(), torch.tensor(SCORES).tril().tolist())
    assert close(numbers(done.out, "A = softmax"), WEIGHTS)
    assert close(numbers(done.out, "A × V'"), OUTPUT)


def test_the_library_gives_the_numbers_of_the_example():
    query, key, value = FOUR_SPEAKERS.tensors()
    assert close(weights(query, key), WEIGHTS)
    assert close(attend(query, key, value), OUTPUT)


def test_a_weight_that_is_zero_looks_different_from_one_that_rounds_to_it(rearview):
    cells = [[cell.strip() for cell in row] for row in table(rearview("demo").out, "A = softmax")]
    assert cells[0][1:] == ["0", "0", "0"]
    assert cells[3][1] == "0.000"


def test_it_reads_the_weights_aloud(rearview):
    out = rearview("demo").out
    for sentence in (
        "Frank — 100.0 % himself\n",
        "Emma — 98.2 % Frank, 1.8 % herself\n",
        "Daniel — 67.8 % Frank, 27.2 % himself, 5.0 % Emma\n",
        "Alex — 99.3 % Frank, 0.6 % himself, 0.1 % Daniel, a trace of Emma\n",
    ):
        assert sentence in out


def test_without_the_mask_some_of_it_would_come_from_the_future(rearview):
    query, key, _ = FOUR_SPEAKERS.tensors()
    future = (query @ key.T / math.sqrt(2)).softmax(-1).triu(1).sum(-1)
    who, share = FOUR_SPEAKERS.labels[int(future.argmax())], 100 * float(future.max())
    assert (
        f"Without the mask {who} would take {share:.1f} % from people who have not spoken yet." in rearview("demo").out
    )


def test_it_computes_what_it_prints(rearview, monkeypatch: pytest.MonkeyPatch):
    other = dataclasses.replace(FOUR_SPEAKERS, query=((0.0, 0.0),) * 4)
    monkeypatch.setattr(demo, "FOUR_SPEAKERS", other)
    out = rearview("demo").out
    assert torch.equal(numbers(out, "S = Q'K'ᵀ"), torch.zeros(4, 4, dtype=torch.float64))
    assert "Emma — 50.0 % Frank, 50.0 % herself\n" in out


def test_the_next_word(rearview):
    out = rearview("demo").out
    assert " 0  I            ■      ·      ·     [0, 1)" in out
    assert " 2  ___          ■      ■      ■     [0, 3)" in out


def test_strong_weights_are_coloured_on_a_terminal_only(rearview, monkeypatch: pytest.MonkeyPatch):
    assert "\x1b" not in rearview("demo").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "48;2;18;140;170m1.000" in rearview("demo").out


def test_an_example_must_fit_together():
    with pytest.raises(AssertionError, match="value: one column a feature"):
        dataclasses.replace(FOUR_SPEAKERS, value_features=("only", "two"))
    assert [field.name for field in dataclasses.fields(Example)][:3] == ["name", "title", "labels"]


def test_the_demo_runs_as_a_process_and_in_ascii(process):
    done = process("demo", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "Emma - 98.2 % Frank, 1.8 % herself" in done.stdout.decode("ascii")
    assert "-inf" in done.stdout.decode("ascii")
