"""The sweep: a small one, its table and its summary."""

from typing import Any

import pytest

from bench.audit_sweep import KNOWN, NOT_CAUSAL, Row, audited, main, names, summary, tiny

pytest.importorskip("transformers")


def test_models_are_tiny_and_cross_their_windows():
    model: Any = tiny("gemma3_text")
    assert sum(p.numel() for p in model.parameters()) < 200_000
    assert model.config.sliding_window == 8


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_decoder_is_not_accused(name: str):
    row = audited(name)
    assert row.verdict in ("PROVEN", "HELD"), row


def test_what_is_not_causal_is_skipped_with_a_reason():
    row = audited("xlnet")
    assert row.verdict == "skipped"
    assert "permutation" in row.why
    assert {*NOT_CAUSAL, *KNOWN} <= set(names())


def test_shares_are_of_those_that_were_audited():
    rows = [Row("a", "PROVEN", seconds=1.0), Row("b", "HELD", seconds=3.0, unknown=["topk at x", "topk at y"])]
    lines = summary([*rows, Row("c", "skipped", "no timm")])
    assert lines[:3] == ["PROVEN: 1 (50 %)", "HELD: 1 (50 %)", "skipped: 1"]
    assert lines[3] == "seconds a model: median 3.00, largest 3.00, over two: 1"
    assert lines[4] == "no rule: topk in 1"


def test_a_wrong_name_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--only", "lama"])
    assert "no model type lama" in capsys.readouterr().err
