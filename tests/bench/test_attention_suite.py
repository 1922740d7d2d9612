"""Masked attention and the CPU kernel: cases, judge, contestants, verdicts. No timing is asserted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from bench import attention_case
from bench.__main__ import main
from bench.attention_case import FORWARD, TRAINING, AttentionCase, Inputs, Judge, Rival, contest
from bench.harness import CPU, Case, Outcome, Row, Settings, Target
from bench.suites import native
from bench.suites.attention import AUTO, BASE_CPU, DENSE, SUITES, Size, cases, table_of, verdict_on_auto
from rearview import attend, causal, window
from tests.native_kernel import needs_native

ALL = cases(Size(batch=1, heads=2, length=24, dim=8), long=True)
RIGHT = Rival(DENSE, lambda case, device: partial(F.scaled_dot_product_attention, attn_mask=case.dense(device)))
TINY = AttentionCase("tiny", causal, batch=1, heads=2, q_len=20, k_len=20, dim=8, plain={"is_causal": True})


def case_named(name: str) -> AttentionCase:
    return next(case for case in ALL if case.name == name)


def run(case: AttentionCase, direction: str, *rivals: Rival) -> Outcome:
    item = contest(case, direction, lambda inputs: rivals, device=CPU, rounds=1)
    return replace(item, sample_ms=0.0).run(Settings())


def outcome(*rows: Row, part: str = TRAINING) -> Outcome:
    return Outcome(Case("window", list, part, facts={"sizes": "B1 H2 L24 D8", "long": False}), rows)


# The cases.


def test_case_names_are_unique():
    assert len({case.name for case in ALL}) == len(ALL)
    titles = [native.title(case) for case, _ in native.cases()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("case", [case for case in ALL if case.k_len <= 256], ids=lambda case: case.name)
def test_the_rule_by_hand_and_the_mask_say_the_same(case: AttentionCase):
    mask = case.make_mask().to_bool(case.q_len, case.k_len)
    dense = case.dense(CPU)
    assert torch.equal(mask.expand(case.batch, 1, case.q_len, case.k_len), dense.expand(case.batch, 1, -1, -1))
    assert (dense.shape[0] > 1) == case.differs_by_item
    assert torch.equal(replace(case, rule=None).dense(CPU), mask)


def test_the_base_case_is_the_one_of_the_targets():
    base = {case.name: case for case in cases(BASE_CPU)}
    assert base["window"].sizes == "B1 H8 L2048 D64"
    assert base["window"].make_mask().equals(base["window"].make_mask(), 64)
    assert base["documents"].make_mask().spans(2048).keys_heard.max() == 256
    assert base["window"].make_mask().spans(2048).keys_heard.max() == 128


@pytest.mark.parametrize(
    ("words", "count"), [([], 3), (["--dtype", "bfloat16"], 0), (["--heads", "4"], 0), (["--quick"], 0)]
)
def test_targets_are_judged_at_their_size_only(words: list[str], count: int):
    from bench.__main__ import parser_for

    items = SUITES[0].items(parser_for([SUITES[0]]).parse_args(["--device", "cpu", *words]))
    asked = [item for item in items if isinstance(item, Case) and item.targets]
    assert len(asked) == count
    assert all(item.part == TRAINING for item in asked)


def test_only_visible_pairs_are_work():
    assert TINY.pairs == 2 * 20 * 21 // 2
    assert TINY.operations(FORWARD) == 4 * 8 * TINY.pairs
    assert TINY.operations(TRAINING) == 14 * 8 * TINY.pairs
    assert replace(TINY, make_mask=lambda: causal() & window(1), batch=3).pairs == 3 * 2 * 20


# The judge.


def test_a_contestant_that_peeks_is_wrong_and_not_timed():
    peeks = Rival("peeks", lambda case, device: F.scaled_dot_product_attention)
    for direction in (FORWARD, TRAINING):
        found = run(case_named("causal"), direction, peeks, RIGHT)
        assert found.rows[0].is_wrong
        assert found.rows[0].note.startswith("WRONG: the output is off by ")
        assert found.row("peeks") is None
        assert found.row(DENSE) is not None


def forgets(case: AttentionCase, device: torch.device):
    """Right forward, and half a gradient for the values."""
    mask = case.dense(device)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, 0.5 * v + 0.5 * v.detach(), attn_mask=mask)


def test_a_wrong_gradient_is_caught_though_the_output_is_right():
    rival = Rival("forgets", forgets)
    assert not run(case_named("window"), FORWARD, rival).rows[0].is_wrong
    (row,) = run(case_named("window"), TRAINING, rival).rows
    assert row.note.startswith("WRONG: the gradient of value is off by ")


def test_of_long_sequences_the_last_rows_are_judged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention_case, "JUDGED_PAIRS", 10)
    monkeypatch.setattr(attention_case, "JUDGED_ROWS", 5)
    monkeypatch.setattr(attention_case, "LONG_PAIRS", 10)
    case = replace(TINY, heads=4, key_heads=2, plain=None)
    judge = Judge.of(case, Inputs.of(case, CPU), backward=True)
    assert judge.right["the output"].shape == (1, 2, 5, 8)
    assert judge.right["the gradient of key"].shape == (1, 1, 20, 8)
    mask = case.dense(CPU)
    right = partial(F.scaled_dot_product_attention, attn_mask=mask, enable_gqa=True)
    assert judge.fault(right) == ""
    assert judge.fault(lambda q, k, v: right(q, k, v + (q - q.detach()).sum())).startswith("the gradient of query")
    assert judge.fault(lambda q, k, v: right(q, 1.01 * k, v)).startswith("the output is off by ")
    judge = Judge.of(case, Inputs.of(case, CPU), backward=False)
    assert judge.fault(lambda q, k, v: right(q, k, v)[:, :2]) == "the output has the shape [1, 2, 20, 8]"


def test_nan_is_wrong_where_it_is_read_and_nowhere_else():
    case = case_named("padding left")
    judge = Judge.of(case, Inputs.of(case, CPU), backward=False)
    right = partial(F.scaled_dot_product_attention, attn_mask=case.dense(CPU))
    assert case.read is not None
    unread = ~case.read[:, None, :, None]
    assert unread.any()
    assert judge.fault(lambda q, k, v: right(q, k, v).masked_fill(unread, torch.nan)) == ""
    fault = judge.fault(lambda q, k, v: right(q, k, v).masked_fill(~unread, torch.nan))
    assert fault == "the output is off by NaN (allowed 1e-04)"


@pytest.mark.parametrize("case", [case for case in ALL if case.k_len <= 24], ids=lambda case: case.name)
def test_every_contestant_is_right_in_every_small_case(case: AttentionCase):
    for direction in case.directions:
        rivals = partial(SUITES[0].rivals, case, flex=False, backward=direction == TRAINING)
        item = contest(case, direction, rivals, device=CPU, rounds=1)
        for row in replace(item, sample_ms=0.0).run(Settings()).rows:
            # The naive softmax makes NaN of a row that hears nothing, and its gradient spreads it.
            expected = row.name == "naive softmax" and case.name == "padding left" and direction == TRAINING
            assert row.is_wrong == expected, (direction, row)
            assert bool(row.samples) != expected


# What is told.


@pytest.mark.parametrize(
    ("sdpa", "flex", "verdict"),
    [
        (1.0, 1.0, "took blocks: best"),
        (0.9, 0.5, "took blocks: best (flex, compiled: 2.0x)"),
        (0.5, 1.0, "took blocks: sdpa is 2.0x as fast"),
        (0.5, 0.4, "took blocks: sdpa is 2.0x as fast (flex, compiled: 2.5x)"),
    ],
)
def test_the_verdict_on_auto(sdpa: float, flex: float, verdict: str):
    times = {"rearview blocks": 0.1, "rearview sdpa": sdpa, "rearview flex": flex}
    found = outcome(Row(AUTO, (1.0,), note="took blocks"), *(Row(name, (ms,)) for name, ms in times.items()))
    assert verdict_on_auto(found, compiles=False) == verdict
    if flex < sdpa:
        assert verdict_on_auto(found, compiles=True) == f"took blocks: flex is {1 / flex:.1f}x as fast"


def test_the_table_says_who_is_wrong_and_how_much_faster_the_others_are():
    auto = Row(AUTO, (2.0, 2.0), first_ms=30.0, note="took blocks")
    rows = (Row(DENSE, (8.0, 8.0)), auto, Row("peeks", note="WRONG: off", is_wrong=True))
    lines = table_of([outcome(*rows, part=FORWARD)], CPU).plain().splitlines()
    assert lines[1] == "window, B1 H2 L24 D8"
    assert " ".join(lines[3].split()) == f"{AUTO} 2.00 2.00 - 2.00 4.00x - 30.0 took blocks: best"
    assert lines[4].split() == ["peeks", "-", "-", "-", "-", "-", "WRONG:", "off"]
    assert all(line.isascii() for line in lines)


# The CPU kernel.


def test_every_target_of_the_kernel_is_a_ratio():
    for case, asked in native.cases():
        assert set(asked) <= set(case.directions)
        assert all(ratio >= 1 for ratio in asked.values())


def test_the_dense_mask_of_the_rival_is_the_same_mask():
    case = replace(TINY, plain=None, make_mask=lambda: causal() & window(5))
    inputs = Inputs.of(case, CPU)
    expected = attend(*inputs.leaves(backward=False), mask=case.make_mask(), engine="reference")
    torch.testing.assert_close(native.RIVALS[0].make(case, CPU)(*inputs.leaves(backward=False)), expected)


@needs_native
def test_the_kernel_is_judged_and_a_wrong_one_is_not_timed():
    for direction in (FORWARD, TRAINING):
        found = run(TINY, direction, *native.RIVALS)
        assert found.times_faster(native.OURS, than=native.SDPA) is not None
    wrong = run(TINY, TRAINING, native.RIVALS[0], Rival(native.OURS, forgets))
    wrong = replace(wrong, case=replace(wrong.case, facts={"operations": 1, "dtype": "fp32"}))
    assert "WRONG: the gradient of value" in native.table_of([wrong], {"fp32": 1.0}).plain()


def test_the_table_of_the_kernel():
    asked = Target(native.OURS, native.SDPA, 2.0)
    case = Case("tiny", list, FORWARD, (asked,), facts={"operations": 4e6, "dtype": "fp32"})
    rows = [Row(native.SDPA, (4.0, 6.0, 9.0)), Row(native.OURS, (2.0, 2.0, 3.0))]
    table = native.table_of([Outcome(case, rows)], {"fp32": 8.0})
    assert table.rows == [("tiny", "6", "2", "3.00x", "2", "25 %", "met, asked 2x")]
    more = replace(case, targets=(replace(asked, at_least=4.0),))
    assert native.table_of([Outcome(more, rows)], {"fp32": 8.0}).rows[0][-1] == "MISSED, asked 4x"
    none = replace(case, targets=())
    assert native.table_of([Outcome(none, rows)], {"fp32": 8.0}).rows[0][-1] == ""


@needs_native
def test_a_run_prints_its_table_and_keeps_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "PEAK_SIZE", 64)
    assert main(["native", "--quick", "--rounds", "1", "--cases", "short fp32 B8 H4 L64"]) == 0
    said = capsys.readouterr().out
    assert "short fp32 B8 H4 L64 D32" in said
    assert "targets met: 0 of 0" in said
    assert "kept in" not in said


def test_without_a_kernel_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native.native.library, "MISSING", "its library is not here")
    assert main(["native"]) == 2
    assert "engine 'native': its library is not here" in capsys.readouterr().err
