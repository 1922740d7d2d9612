"""Whole models: training, generation, observe. What is compared is the same, and what is told is what was measured."""

from __future__ import annotations

import pytest
import torch

from bench.__main__ import main
from bench.harness import Case, Outcome, Row, Settings
from bench.suites import generation, observe, speculation, training
from bench.suites.plain_gpt import PlainGPT
from rearview import tree
from rearview.models import GPT, GPTConfig
from tests.native_kernel import needs_native

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


def test_a_short_race(capsys: pytest.CaptureFixture[str], tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a small text of a few words, said again and again.\n" * 40)
    assert main(["training", "--steps", "3", "--text", str(text)]) == 0
    printed = capsys.readouterr().out
    assert "text.txt: 2040 characters, 20 kinds; 3 of 3 steps" in printed
    rows = [line for line in printed.splitlines() if line.startswith(("plain PyTorch", "rearview"))]
    assert [row.split(",")[0] for row in rows] == ["plain PyTorch", "rearview", "rearview", "plain PyTorch"]
    assert rows[0].split()[4] == "1.00"
    assert "not judged: targets are for tiny Shakespeare and 2000 steps" in printed
    assert "not kept" in printed


def test_what_training_tells():
    rows = [Row(training.PLAIN, (10.0, 20.0)), Row(training.AUTO, (7.0, 14.0)), Row(training.OURS, (9.0,))]
    table = training.table_of(Outcome(Case("a step", list), rows), {training.PLAIN: 2.0, training.AUTO: 1.8})
    assert table.rows == [
        (training.PLAIN, "15.0", "1.00", "2.0000"),
        (training.AUTO, "10.5", "0.70", "1.8000"),
        (training.OURS, "9.0", "0.90", "timed only"),
    ]
    assert training.verdict_on(1.89) == "met: validation loss 1.8900, asked at most 1.89"


@needs_native
def test_every_contestant_generates_the_same_tokens(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(generation, "CONFIG", GPTConfig(vocab_size=31, context=32, layers=1, heads=2, width=16))
    entries = lambda: generation.contestants(6)  # noqa: E731
    outcome = Case("generation", entries, targets=generation.TARGETS, rounds=1, sample_ms=0.0).run(Settings())
    assert [row.note for row in outcome.rows] == [""] * 6
    assert all("asked" in text for text in outcome.verdicts())
    table = generation.table_of(outcome, 6)
    ours = [generation.CACHED, generation.UNCACHED, generation.INVARIANT]
    assert [row[0] for row in table.rows] == [*ours, *generation.THEIRS]
    assert table.rows[0][3] == "1.00x"


# Observe.


def passed(*, peak: float = 1.0, output: str = "a", received=(1.0, 2.0)) -> observe.Pass:
    return observe.Pass(1.0, peak, output, list(received))


def compared(length: int = 32768, **passes: observe.Pass) -> observe.Compared:
    return observe.Compared(observe.Size(length, 4, 8), passes, {})


def test_what_weights_would_need():
    # 32,768 x 32,768 x 4 bytes are 4 GiB: 32 heads returned, scores of 8, the mask.
    assert observe.Size(32768, 4, 8).eager_gib == 4 * (32 + 8 + 1)


def test_a_wrong_run_is_told():
    assert compared(plain=passed(), watched=passed(), eager=passed()).wrong() == []
    changed = compared(plain=passed(), watched=passed(output="b")).wrong()
    assert changed == ["WRONG: 32,768 tokens: watching changed what the model computed"]
    other = compared(watched=passed(), eager=passed(received=(1.0, 2.1))).wrong()
    assert other == ["WRONG: 32,768 tokens: what keys received is not what eager's weights say"]


def test_the_verdict_on_memory():
    for peak, word in ((2.0, "met: watching 32,768 tokens adds 1.00 GiB"), (2.6, "NOT MET")):
        assert observe.verdict([compared(plain=passed(), watched=passed(peak=peak))]).startswith(word)
    assert observe.verdict([compared(1024, plain=passed())]) == "not judged: 32,768 tokens were not run"


def test_eager_is_predicted_and_not_tried(monkeypatch: pytest.MonkeyPatch):
    tried = []

    def pretend(function: str, progress: object, mode: str, **size: int) -> dict:
        tried.append(mode)
        return {"seconds": 1.0, "peak": 1.0, "output": "a", "received": []}

    monkeypatch.setattr(observe, "in_own_process", pretend)
    monkeypatch.setattr(observe, "free_bytes", lambda: 160.0 * observe.GIB)
    found = observe.compared(observe.Size(32768, 4, 8), Settings())
    assert (tried, found.wrong()) == ([observe.PLAIN, observe.WATCHED], [])
    assert found.row() == ["32,768", "4 x 8", "1.0", "1.00", "1.0", "1.00", "+0.00", "1.0x", "would need 164 GiB", ""]


def test_a_small_run_of_each_agrees():
    pytest.importorskip("transformers")
    found = {mode: observe.Pass(**observe.run(mode, 96, 1, 2)) for mode in (observe.PLAIN, "watched", "eager")}
    assert observe.Compared(observe.Size(96, 1, 2), found, {}).wrong() == []
    assert len(found["watched"].received) == 64


def test_a_speculative_step_is_judged():
    ours, dense = (each.prepare() for each in speculation.step_contestants())
    assert (ours.fault(), dense.fault()) == ("", "")
    parents = [-1, 0, 0, 2, 1, 4]
    assert torch.equal(speculation.ancestors(parents), tree(parents).to_bool(6))


def test_what_speculation_tells(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(speculation, "CONFIG", GPTConfig(vocab_size=31, **SHAPE))  # type: ignore[arg-type]
    model, draft = speculation.new_models()
    whole = model.state_dict()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in draft.state_dict().items())
    ready = {each.name: each.prepare() for each in speculation.text_contestants(12)}
    assert [each.fault() for each in ready.values()] == [""] * 4
    assert ready[speculation.PLAIN].note == "1.00 tokens per pass"
    assert "% of drafted tokens accepted" in ready[speculation.TREE].note
    rows = [Row(speculation.PLAIN, (24.0,), note="1.00 tokens per pass"), Row(speculation.CHAIN, (12.0,), note="n")]
    assert speculation.text_table(Outcome(Case("a text", list), rows), 12).rows == [
        (speculation.PLAIN, "500", "1.00x", "1.00 tokens per pass"),
        (speculation.CHAIN, "1000", "2.00x", "n"),
    ]
