"""The sweeps over the models of transformers: a small one each, the verdicts, and that wrong models are seen."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from bench.__main__ import main
from bench.harness import Settings
from bench.suites import audit_sweep
from bench.suites import transformers_sweep as sweep
from rearview import causal
from rearview.integrations.transformers import registered_functions

# The auditor.


def test_models_are_tiny_and_cross_their_windows():
    model: Any = audit_sweep.tiny("gemma3_text")
    assert sum(p.numel() for p in model.parameters()) < 200_000
    assert model.config.sliding_window == 8


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_decoder_is_not_accused(name: str):
    row = audit_sweep.audited(name)
    assert row.verdict in ("PROVEN", "HELD"), row


def test_what_is_not_causal_is_skipped_with_a_reason():
    row = audit_sweep.audited("xlnet")
    assert row.verdict == "skipped"
    assert "permutation" in row.why
    assert {*audit_sweep.NOT_CAUSAL, *audit_sweep.KNOWN, *audit_sweep.OPEN} <= set(audit_sweep.names())


def test_shares_are_of_those_that_were_audited():
    row = audit_sweep.Row
    rows = [row("a", "PROVEN", seconds=1.0), row("b", "HELD", seconds=3.0, unknown=["topk at x", "topk at y"])]
    lines = audit_sweep.summary([*rows, row("c", "skipped", "no timm")])
    assert lines[:3] == ["PROVEN: 1 (50 %)", "HELD: 1 (50 %)", "skipped: 1"]
    assert lines[3] == "seconds per model: median 3.00, largest 3.00, over two: 1"
    assert lines[4:] == ["not proven: b: not examined yet", "no rule: topk in 1"]


def test_a_model_that_takes_too_long_costs_its_worker():
    worker = audit_sweep.Worker(patience=-120.0)
    row = worker.audited("llama", Settings())
    assert (row.verdict, row.why) == ("failed", "took longer than -120 s")
    assert worker.process is None


# Rearview's attention.


def test_a_decoder_is_equal_in_every_case():
    row = sweep.compared("mistral")
    assert row.verdict == "equal"
    assert list(row.cases) == ["plain", "right", "left", "packed", "generation"]
    # Not the same kernel throughout, so rounding shows.
    assert all(isinstance(found, float) and 0 < found < 1e-5 for found in row.cases.values())


@pytest.mark.parametrize(("name", "kind"), [("bert", "encoder"), ("t5", "encoder-decoder")])
def test_other_kinds(name: str, kind: str):
    row = sweep.compared(name, kind)
    assert row.verdict == "equal", row


def test_a_mask_that_is_not_applied_is_seen(monkeypatch: pytest.MonkeyPatch):
    # As if neither the window nor the padding had been read.
    monkeypatch.setattr(registered_functions, "as_mask", lambda function, place: causal())
    monkeypatch.setattr(registered_functions, "joined", lambda mask, padding: mask)
    row = sweep.compared("mistral")
    assert row.verdict == "differs"


def test_a_model_whose_own_implementations_differ():
    """PaliGemma without padding: SDPA gets no mask and is_causal=False, so it looks ahead; eager does not."""
    row = sweep.compared("paligemma", "image and text")
    assert row.verdict == "equal to eager"
    assert isinstance(row.cases["plain"], float)
    assert row.cases["plain"] > 1e-2
    assert row.why == "its own eager attention differs from its sdpa, and is equal"


@pytest.mark.parametrize(("name", "verdict"), [("bloom", "refused by transformers"), ("mamba", "not called")])
def test_who_does_not_come_to_it(name: str, verdict: str):
    assert sweep.compared(name).verdict == verdict


def test_the_commands(capsys: pytest.CaptureFixture[str]):
    assert main(["transformers_sweep", "--only", "gpt2,bloom", "--no-save"]) == 0
    printed = capsys.readouterr().out
    assert "\ndecoder: 1 equal, 1 refused by transformers\n" in printed
    for name in ("transformers_sweep", "audit_sweep"):
        with pytest.raises(SystemExit):
            main([name, "--only", "gpt2,no_such_model"])
        assert "--cases: no case 'no such model'" in capsys.readouterr().err
