"""The sweep of models on Rearview's attention: a small one, its verdicts, and that it would see a wrong mask."""

import pytest

pytest.importorskip("transformers")

from bench import transformers_sweep as sweep
from rearview import causal
from rearview.integrations.transformers import masks


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
    monkeypatch.setattr(masks, "as_mask", lambda function, place: causal())
    monkeypatch.setattr(masks, "joined", lambda mask, padding: mask)
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


def test_the_command(capsys: pytest.CaptureFixture[str]):
    assert sweep.main(["--only", "gpt2,bloom", "--no-save"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("\ndecoder: 1 equal, 1 refused by transformers\n")
    with pytest.raises(SystemExit):
        sweep.main(["--only", "gpt2,no_such_model"])
    assert "no model type no_such_model" in capsys.readouterr().err
