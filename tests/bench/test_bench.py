"""The bench itself: wrong contestants are caught, ratios and targets are what they say. No timing is asserted."""

from dataclasses import replace
from datetime import date
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from bench import results, targets
from bench.__main__ import main
from bench.cases import BASE_CPU, Case, Size, cases
from bench.judge import Inputs, Judge
from bench.measure import FORWARD, TRAINING, Bench, Outcome, Row, interleaved
from bench.noise import Neighbours
from bench.rivals import AUTO, DENSE, PLAIN, Contestant, contestants
from bench.table import Table, table_of

CPU = torch.device("cpu")
TINY = Size(batch=1, heads=2, length=24, dim=8)
ALL = cases(TINY, long=True)


@pytest.fixture
def bench() -> Bench:
    return Bench(CPU, torch.float32, rounds=1, sample_ms=0.0)


def case_named(name: str) -> Case:
    return next(case for case in ALL if case.name == name)


def outcome(case: str, *rows: Row, auto: str = "blocks", of: list[Case] = ALL) -> Outcome:
    return Outcome(next(each for each in of if each.name == case), TRAINING, list(rows), auto)


# The cases.


def test_case_names_are_unique():
    assert len({case.name for case in ALL}) == len(ALL)


@pytest.mark.parametrize("case", [case for case in ALL if case.k_len <= 256], ids=lambda case: case.name)
def test_the_rule_by_hand_and_the_mask_say_the_same(case: Case):
    mask = case.make_mask().to_bool(case.q_len, case.k_len)
    dense = case.dense(CPU)
    assert torch.equal(mask.expand(case.batch, 1, case.q_len, case.k_len), dense.expand(case.batch, 1, -1, -1))
    assert (dense.shape[0] > 1) == case.differs_by_item


def test_the_base_case_is_the_one_of_the_targets():
    base = {case.name: case for case in cases(BASE_CPU)}
    assert base["window"].sizes == "B1 H8 L2048 D64"
    assert base["window"].make_mask().equals(base["window"].make_mask(), 64)
    assert base["documents"].make_mask().spans(2048).keys_heard.max() == 256
    assert base["window"].make_mask().spans(2048).keys_heard.max() == 128


# The judge.


def test_a_contestant_that_peeks_is_wrong_and_not_timed(bench: Bench):
    peeks = Contestant("peeks", lambda case, device: F.scaled_dot_product_attention)
    honest = Contestant(
        DENSE, lambda case, device: partial(F.scaled_dot_product_attention, attn_mask=case.dense(device))
    )
    for found in bench.run(case_named("causal"), [peeks, honest]):
        wrong = next(row for row in found.rows if row.name == "peeks")
        assert wrong.is_wrong
        assert wrong.note.startswith("WRONG: the output is off by ")
        assert found.row("peeks") is None
        assert found.row(DENSE) is not None


def test_a_wrong_gradient_is_caught_though_the_output_is_right(bench: Bench):
    def forgets_a_gradient(case: Case, device: torch.device):
        mask = case.dense(device)
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, 0.5 * v + 0.5 * v.detach(), attn_mask=mask)

    forward, training = bench.run(case_named("window"), [Contestant("forgets", forgets_a_gradient)])
    assert (forward.direction, training.direction) == (FORWARD, TRAINING)
    assert not forward.rows[0].is_wrong
    assert training.rows[0].note.startswith("WRONG: the gradient of value is off by ")


def test_nan_is_wrong_where_it_is_read_and_nobodys_business_elsewhere():
    case = case_named("padding left")
    judge = Judge.of(case, Inputs.of(case, CPU, torch.float32))
    right = partial(F.scaled_dot_product_attention, attn_mask=case.dense(CPU))
    assert case.read is not None
    unread = ~case.read[:, None, :, None]
    assert unread.any()
    assert judge.fault(lambda q, k, v: right(q, k, v).masked_fill(unread, torch.nan), backward=False) is None
    fault = judge.fault(lambda q, k, v: right(q, k, v).masked_fill(~unread, torch.nan), backward=False)
    assert fault == "the output is off by NaN (allowed 1e-04)"


def test_what_a_contestant_raises_becomes_a_note(bench: Bench):
    def refuses(case: Case, device: torch.device):
        raise RuntimeError("\nneeds a compiler\nand more lines")

    found = next(bench.run(case_named("decode"), [Contestant("refuses", refuses)]))
    assert found.rows == [Row("refuses", note="skipped: needs a compiler")]


def test_every_contestant_is_right_in_every_case_that_is_small(bench: Bench):
    for case in (each for each in ALL if each.k_len <= 24):
        for found in bench.run(case, contestants(case, CPU, flex=False)):
            for row in found.rows:
                # The naive softmax makes NaN of a row that hears nothing, and its gradient spreads it.
                expected = row.name == "naive softmax" and case.name == "padding left" and found.direction == TRAINING
                assert row.is_wrong == expected, (case.name, found.direction, row)
                assert bool(row.samples) != expected


# The numbers.


def test_each_contestant_has_one_sample_a_round():
    counts = {"a": 0, "b": 0}

    def count(name: str):
        counts[name] += 1

    taken = interleaved({name: partial(count, name) for name in counts}, rounds=4, device=CPU)
    assert {name: len(samples) for name, samples in taken.samples.items()} == {"a": 4, "b": 4}
    assert min(counts.values()) >= 4


def test_a_patient_bench_takes_disturbed_rounds_again(monkeypatch):
    loud, rounds = iter([True, False, True, False, False]), []
    monkeypatch.setattr(Neighbours, "await_quiet", lambda self, deadline: rounds.append(1))
    monkeypatch.setattr(Neighbours, "are_loud", lambda self: next(loud))
    taken = interleaved({"a": lambda: None}, rounds=3, device=CPU, patience_s=600.0)
    assert (len(rounds), len(taken.samples["a"]), taken.loud) == (5, 3, 0)


def test_without_patience_disturbed_rounds_are_kept_and_counted(monkeypatch):
    monkeypatch.setattr(Neighbours, "are_loud", lambda self: True)
    taken = interleaved({"a": lambda: None}, rounds=3, device=CPU)
    assert (len(taken.samples["a"]), taken.loud) == (3, 3)


def test_what_other_programs_used_is_a_share_or_not_known():
    share = Neighbours().share()
    assert share is None or share >= 0


def test_a_ratio_is_the_median_of_the_ratios_round_by_round():
    # The second round was ten times slower for both: the ratio does not notice.
    found = outcome("window", Row(AUTO, (1.0, 10.0, 2.0)), Row(DENSE, (3.0, 40.0, 10.0)))
    assert found.times_faster(AUTO, than=DENSE) == 4.0
    assert found.times_faster(AUTO, than=PLAIN) is None


@pytest.mark.parametrize(
    ("sdpa", "flex", "verdict"),
    [
        (1.0, 1.0, "took blocks: best"),
        (0.9, 0.5, "took blocks: best (flex, compiled: 2.0x)"),
        (0.5, 1.0, "took blocks: 2.0x behind sdpa"),
        (0.5, 0.4, "took blocks: 2.0x behind sdpa (flex, compiled: 2.5x)"),
    ],
)
def test_the_verdict_on_auto(sdpa: float, flex: float, verdict: str):
    times = {AUTO: 1.0, "rearview blocks": 0.1, "rearview sdpa": sdpa, "rearview flex": flex}
    found = outcome("window", *(Row(name, (ms,)) for name, ms in times.items()))
    assert replace(found, auto_compiles=False).verdict_on_auto() == verdict
    if flex < sdpa:
        assert found.verdict_on_auto() == f"took blocks: {1 / flex:.1f}x behind flex"


def test_targets_are_met_or_not_by_their_number():
    of = cases(BASE_CPU)
    outcomes = [
        outcome("documents", Row(AUTO, (1.0,)), Row(DENSE, (4.0,)), of=of),
        outcome("window", Row(AUTO, (1.0,)), Row(DENSE, (2.9,)), of=of),
        outcome("causal", Row(AUTO, (1.0,)), Row(PLAIN, (0.96,)), of=of),
    ]
    checked = targets.check(outcomes, device=CPU, dtype=torch.float32)
    assert [each.verdict for each in checked] == ["met", "NOT MET", "met"]
    assert str(checked[1]) == (
        "NOT MET: window, forward+backward, rearview auto against SDPA dense mask: 2.90x, asked 3x"
    )


def test_targets_are_judged_at_their_size_only():
    rows = (Row(AUTO, (1.0,)), Row(DENSE, (9.0,)))
    at_another = targets.check([outcome("documents", *rows)], device=CPU, dtype=torch.float32)
    in_another = targets.check([outcome("documents", *rows, of=cases(BASE_CPU))], device=CPU, dtype=torch.bfloat16)
    assert {each.verdict for each in at_another + in_another} == {"not judged"}


# What is printed and kept.


def test_the_table_says_who_is_wrong_and_how_much_faster_the_others_are():
    rows = (
        Row(DENSE, (8.0, 8.0)),
        Row(AUTO, (2.0, 2.0), first_ms=30.0),
        Row("peeks", note="WRONG: off", is_wrong=True),
    )
    lines = table_of([outcome("window", *rows)]).plain().splitlines()
    assert lines[1] == "window, B1 H2 L24 D8"
    assert lines[3].split() == [
        *AUTO.split(),
        "2.00",
        "2.00",
        "-",
        "2.00",
        "4.00x",
        "-",
        "30.0",
        "took",
        "blocks:",
        "best",
    ]
    assert lines[4].split() == ["peeks", "-", "-", "-", "-", "-", "WRONG:", "off"]
    assert all(line.isascii() for line in lines)


def test_markdown_escapes_its_bars():
    assert Table(("a | b",), [("c",)]).markdown() == "| a \\| b |\n| :-- |\n| c |"


def test_the_file_has_a_date_a_machine_and_a_version(tmp_path):
    machine = replace(results.Machine.here(CPU), processor="Some CPU @ 3.0GHz")
    name = results.file_name(machine, today=date(2030, 1, 2), suffix="-bfloat16")
    version = torch.__version__.split("+")[0]
    assert name == f"2030-01-02-some-cpu-3-0ghz-torch{version}-bfloat16.md"
    results.write(tmp_path / "results" / name, "first")
    results.write(tmp_path / "results" / name, "second")
    assert [(file.name, file.read_text()) for file in (tmp_path / "results").iterdir()] == [(name, "second")]


def test_the_command(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    sizes = ["--length", "16", "--heads", "2", "--dim", "8", "--rounds", "1", "--device", "cpu"]
    assert main(["--quick", "--cases", "causal,prefix_lm,decode", "--no-save", *sizes]) == 0
    printed, progress = capsys.readouterr()
    assert "rearview blocks" in printed
    assert "prefix-LM" in printed
    assert "not judged: window" in printed
    assert "WRONG:" not in printed
    assert "[3/3] decode" in progress
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_case_lists_the_known(capsys):
    with pytest.raises(SystemExit):
        main(["--cases", "causality", "--device", "cpu"])
    assert "There are: causal, window, documents" in capsys.readouterr().err
