"""The measurement of the CPU kernel: its counts, its judge, its verdicts. No timing is asserted."""

from dataclasses import replace

import pytest
import torch

from bench import native
from bench.measure import FORWARD, TRAINING, Rounds
from rearview import attend, causal, window
from tests.native_kernel import needs_native

TINY = native.Case("tiny", torch.float32, 2, 20, 20, 8, plain={"is_causal": True}, at_least={FORWARD: 2.0})


def test_titles_are_unique_and_every_target_is_a_ratio():
    found = native.cases()
    assert len({case.title for case in found}) == len(found)
    assert all(ratio >= 1 for case in found for ratio in case.at_least.values())
    assert all(set(case.at_least) <= {FORWARD, TRAINING} for case in found)


def test_only_visible_pairs_are_work():
    assert TINY.pairs == 2 * 20 * 21 // 2
    assert TINY.operations(FORWARD) == 4 * 8 * TINY.pairs
    assert TINY.operations(TRAINING) == 14 * 8 * TINY.pairs
    assert replace(TINY, make_mask=lambda: causal() & window(1), batch=3).pairs == 3 * 2 * 20


def test_the_dense_mask_of_the_rival_is_the_same_mask():
    case = replace(TINY, plain=None, make_mask=lambda: causal() & window(5))
    tensors = case.tensors()[:3]
    expected = attend(*tensors, mask=case.make_mask(), engine="reference")
    torch.testing.assert_close(case.contestants()[native.SDPA](*tensors), expected)


@needs_native
@pytest.mark.parametrize("length", [20, 300])
def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch, length: int):
    case = replace(TINY, q_len=length, k_len=length)
    assert native.fault_of(case, backward=True) == ""

    def wrong(query, key, value, *, mask, engine):
        # Right forward, and half a gradient for the values.
        value = 0.5 * value + 0.5 * value.detach() if engine == "native" else value
        return attend(query, key, value, mask=mask, engine=engine)

    monkeypatch.setattr(native, "attend", wrong)
    assert native.fault_of(case, backward=False) == ""
    assert native.fault_of(case, backward=True).startswith("WRONG: the gradient of value is off by ")
    forward, training = native.measure(case, rounds=1, patience_s=0)
    assert forward.ratio is not None
    assert training.ratio is None
    table = native.table_of([forward, training], TRAINING, {torch.float32: 1.0})
    assert "WRONG" in table.plain()


def test_verdicts():
    samples = {native.SDPA: [4.0, 6.0, 9.0], native.OURS: [2.0, 2.0, 3.0]}
    outcome = native.Outcome(TINY, FORWARD, Rounds(samples, 0))
    assert outcome.ratio == 3.0
    assert outcome.verdict() == "met, asked 2x"
    assert outcome.gigaflops == TINY.operations(FORWARD) / 2.0 / 1e6
    assert replace(outcome, case=replace(TINY, at_least={FORWARD: 4.0})).verdict() == "MISSED, asked 4x"
    assert native.Outcome(TINY, TRAINING, Rounds(samples, 0)).verdict() == ""


@needs_native
def test_a_run_prints_its_table_and_keeps_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "PEAK_SIZE", 64)
    assert native.main(["--quick", "--rounds", "1", "--cases", "short fp32 B8 H4 L64"]) == 0
    said = capsys.readouterr().out
    assert "short fp32 B8 H4 L64 D32" in said
    assert "targets met: 0 of 0" in said
    assert "kept in" not in said
    assert native.main(["--cases", "no such case"]) == 2


def test_without_a_kernel_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native.native.library, "MISSING", "its library is not here")
    assert native.main([]) == 1
    assert "engine 'native': its library is not here" in capsys.readouterr().err
