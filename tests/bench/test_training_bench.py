"""The training benchmark: both contestants are the same model, and what is printed is what was measured."""

import pytest
import torch

from bench import training
from bench.plain import PlainGPT
from rearview.models import GPT, GPTConfig

SHAPE = {"context": 16, "layers": 2, "heads": 2, "width": 16}
NAMES = {
    "norm_1": "attention_norm",
    "qkv": "attention.qkv",
    "proj": "attention.out",
    "norm_2": "forward_norm",
    "wide": "forward_part.wide",
    "out": "forward_part.out",
}


def test_the_plain_model_is_the_same_model():
    torch.manual_seed(0)
    plain = PlainGPT(vocab_size=31, **SHAPE)
    ours = GPT(GPTConfig(vocab_size=31, activation="gelu", **SHAPE))  # type: ignore[arg-type]
    state = {}
    for name, value in plain.state_dict().items():
        parts = name.split(".")
        if parts[0] == "blocks":
            name = f"blocks.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"
        state[name] = value
    ours.load_state_dict(state)
    tokens = torch.randint(31, (2, 16))
    torch.testing.assert_close(plain(tokens), ours(tokens))


def test_a_short_race(capsys: pytest.CaptureFixture[str]):
    assert training.main(["--steps", "6", "--no-save"]) == 0
    out = capsys.readouterr().out
    assert "6 of 6 steps" in out
    rows = [line for line in out.splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].split(",")[0].strip() for row in rows[1:]] == [
        "plain PyTorch",
        "rearview",
        "rearview",
        "plain PyTorch",
    ]
    assert rows[1].split("|")[3].strip() == "1.00"
    assert "not judged" in out


def test_verdicts_follow_the_numbers():
    def contestant(name: str, seconds: list[float], loss: float) -> training.Contestant:
        return training.Contestant(name, lambda step: torch.zeros(()), lambda: loss, 2, seconds)

    base = contestant("plain", [1.0, 2.0], 2.0)
    for seconds, loss, words in [([0.7, 1.4], 1.8, ["met", "met"]), ([0.9, 1.8], 1.9, ["MISSED", "MISSED"])]:
        verdicts = training._verdicts([base, contestant("ours", seconds, loss)], judged=True)
        assert [verdict.split(":")[0] for verdict in verdicts] == words
