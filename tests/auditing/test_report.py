"""A report is a value: it reads back from JSON, draws itself, and its witness shows the leak again."""

import json
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from rearview import RearviewError, causal
from rearview.auditing import Check, ProofSummary, Report, Verdict, Witness, audit, estimate, replay
from rearview.auditing.reporting.verdict import decide
from rearview.errors import BadArgument, BadFile
from tests.auditing.zoo import CLEAN, LEAKING, LM, Causal, NoMask, tokens


@pytest.fixture(scope="module")
def leaking() -> Report:
    torch.manual_seed(0)
    return audit(LM(NoMask()), tokens())


@pytest.fixture(scope="module")
def clean() -> Report:
    torch.manual_seed(0)
    return audit(LM(Causal("finite")), tokens())


def test_a_report_reads_back(leaking: Report, clean: Report):
    for report in (leaking, clean):
        again = Report.from_json(report.to_json())
        assert again.to_json() == report.to_json()
        assert again.verdict is report.verdict
        assert again.checks == report.checks
        assert again.places == report.places
        assert again.proof == report.proof
        assert again.show() == report.show()
    witness = Report.from_json(leaking.to_json()).witness
    assert witness is not None
    assert leaking.witness is not None
    assert torch.equal(witness.other[""], leaking.witness.other[""])
    assert witness.other[""].dtype == torch.int64


def test_json_says_what_it_is(leaking: Report):
    whole = json.loads(leaking.to_json())
    assert (whole["format"], whole["version"], whole["exit_code"]) == ("rearview-audit", 3, 1)
    assert whole["witnesses"][0]["sentence"] == leaking.witnesses[0].sentence
    for text, message in {
        '{"format": "other"}': 'JSON: format: expected "rearview-audit", got "other"',
        "not json": "JSON: line 1, column 1: this is not JSON: Expecting value\n  not json\n  ^",
        '{"format": "rearview-audit", "version": 3}': "JSON: verdict: expected this field, got nothing",
        json.dumps({**whole, "verdict": "FINE"}): (
            'JSON: verdict: expected one of "PROVEN", "HELD", "LEAKS", "INCONCLUSIVE", got "FINE"'
        ),
        json.dumps({**whole, "checks": [{"name": 7}]}): "JSON: checks[0].name: expected a string, got 7",
    }.items():
        with pytest.raises(BadFile) as caught:
            Report.from_json(text)
        assert str(caught.value) == message


def test_saving(tmp_path: Path, leaking: Report):
    leaking.save(tmp_path / "report.json")
    assert Report.from_json((tmp_path / "report.json").read_text()).verdict is Verdict.LEAKS
    leaking.save(tmp_path / "report.txt")
    assert (tmp_path / "report.txt").read_text().startswith("LEAKS  LM  against causal()")
    with pytest.raises(BadArgument, match=r"path: expected a name that ends in \.html, \.json or \.txt, got \'\.pdf\'"):
        leaking.save(tmp_path / "report.pdf")


def test_the_drawing_says_it_all(leaking: Report, clean: Report):
    text = leaking.show()
    for part in ("LEAKS", "Witness", "mixers.0 (NoMask)", "# here", "No mask reaches this softmax", "Confirmed"):
        assert part in text
    assert "! heard, and must not be" in text
    assert all(check.name in text for check in leaking.checks)
    assert "Who heard whom" not in leaking.show(matrix=False)
    good = clean.show()
    assert good.startswith("PROVEN")
    assert "On these conditions" in good
    assert "must not be" not in good
    assert max(map(len, good.splitlines())) <= 100


def test_all_checks_are_drawn_in_the_same_columns():
    checks = tuple(Check(name, "skipped", "not tried") for name in ("padding", "random-token canary"))
    report = Report(Verdict.HELD, "", "causal()", "GPT", {"batch": 2, "time": 8}, "full", (), checks)
    rows = [line for line in report.show().splitlines() if line.startswith("  -  ")]
    assert rows == ["  -       padding              not tried", "  -       random-token canary  not tried"]


def test_a_report_has_no_truth_value(leaking: Report):
    with pytest.raises(TypeError, match=r"^a Report has no truth value; use report\.ok$"):
        bool(leaking)
    with pytest.raises(KeyError, match="no check 'x'; there are batch isolation"):
        leaking.check("x")
    assert repr(leaking).startswith("<Report LEAKS: position")


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
@pytest.mark.parametrize("name", ["no mask", "zero gate", "depends on length", "mask dropped in training"])
def test_a_witness_is_saved_and_replayed(tmp_path: Path, name: str, ending: str):
    case = LEAKING[name]
    model = case.build()
    witness = audit(model, case.inputs(), **case.options).witness
    assert witness is not None
    path = tmp_path / f"witness{ending}"
    witness.save(path)
    again = replay(model, path)
    assert again.leaks
    assert again.amount == pytest.approx(witness.amount, rel=0.5)
    assert "still moves" in str(again)
    fixed = CLEAN["eager attention"].build()
    assert not replay(fixed, path).leaks
    assert model.training


def test_a_witness_with_named_inputs(tmp_path: Path):
    model = LM(NoMask())
    inputs = {"input_ids": tokens(), "attention_mask": torch.ones(2, 16, dtype=torch.long)}

    def run(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return model(input_ids)

    model.eval()
    witness = audit(run, inputs).witness
    assert witness is not None
    assert set(witness.clean) == {"input_ids", "attention_mask"}
    witness.save(tmp_path / "w.npz")
    assert replay(run, tmp_path / "w.npz").leaks


def test_files_that_are_no_witness(tmp_path: Path, leaking: Report):
    assert leaking.witness is not None
    with pytest.raises(BadArgument, match=r"ends in .npz or .safetensors, got .pt"):
        leaking.witness.save(tmp_path / "w.pt")

    def refused(name: str) -> str:
        with pytest.raises(BadFile) as caught:
            Witness.load(tmp_path / name)
        return str(caught.value).removeprefix(f"{tmp_path / name}: ")

    (tmp_path / "w.npz").write_bytes(b"no")
    assert refused("w.npz") == "this is not a .npz file; numpy.savez(path, name=array, ...) writes one"
    assert refused("none.npz") == "there is no such file"
    (tmp_path / "w.safetensors").write_bytes(b"no")
    assert refused("w.safetensors").startswith("this .safetensors file cannot be read: ")
    assert refused("none.safetensors").startswith("this .safetensors file cannot be read: ")
    numpy.savez(tmp_path / "w.npz", x=numpy.zeros(3))
    assert refused("w.npz").startswith("line 1, column 1: this is not JSON: ")
    about = {"format": "rearview-witness", "version": 2, "check": 7}
    numpy.savez(tmp_path / "w.npz", witness=numpy.array(json.dumps(about)))
    assert refused("w.npz") == "check: expected a string, got 7"


# The rule of the verdict.

PASSED = [
    Check("suffix swap", "passed", "nothing moved"),
    Check("who heard whom", "passed", "nothing moved"),
    Check("liveness", "passed", "the past matters", {"near": True}),
    Check("injected leak", "passed", "found"),
]


def with_(name: str, status: str, **numbers: bool) -> list[Check]:
    others = [check for check in PASSED if check.name != name]
    return [*others, Check(name, status, f"{name} {status}", numbers)]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("checks", "proof", "verdict"),
    [
        (PASSED, None, "HELD"),
        (PASSED, "proven", "PROVEN"),
        (PASSED, "conditional", "PROVEN"),
        (PASSED, "not proven", "HELD"),
        (PASSED, "failed", "HELD"),
        (with_("suffix swap", "failed"), "proven", "LEAKS"),
        (with_("suffix swap", "inconclusive"), "proven", "INCONCLUSIVE"),
        (with_("suffix swap", "skipped"), "proven", "INCONCLUSIVE"),
        (with_("injected leak", "inconclusive"), "proven", "INCONCLUSIVE"),
        (with_("liveness", "inconclusive", near=False), "proven", "INCONCLUSIVE"),
        (with_("liveness", "inconclusive", near=True), "proven", "PROVEN"),
        (with_("padding", "inconclusive"), "proven", "INCONCLUSIVE"),
        (with_("padding", "skipped"), "proven", "PROVEN"),
        (
            [*with_("liveness", "inconclusive", near=False), Check("redrawn zeros", "passed", "", {"near": True})],
            None,
            "HELD",
        ),
        (PASSED[1:], None, "INCONCLUSIVE"),
    ],
)
def test_the_rule(checks: list[Check], proof: str | None, verdict: str):
    summary = None if proof is None else ProofSummary(proof, "why", conditions=("scores stay small",), shape=(2, 8))  # pyright: ignore
    assert decide(checks, summary).verdict.value == verdict


def test_exit_codes():
    assert [verdict.exit_code for verdict in Verdict] == [0, 0, 1, 3]


def test_progress_and_cost():
    told: list[tuple[str, int, int]] = []
    report = audit(LM(Causal()), tokens(), progress=lambda *step: told.append(step))
    assert told[0] == ("batch isolation", 0, told[0][2])
    assert "proof" in [name for name, _, _ in told]
    assert all(number < total for _, number, total in told)
    assert report.cost.forwards > 10
    assert report.cost.parameters == sum(p.numel() for p in LM(Causal()).parameters())
    assert "parameters" in estimate(LM(Causal()), tokens())


def test_who_heard_whom_is_exact():
    """A shift by three hears exactly three back."""
    hears = audit(lambda x: x + x.roll(3, 1) * (torch.arange(12) >= 3), torch.randn(1, 12)).hears
    assert hears is not None
    expected = torch.eye(12).bool() | torch.eye(12).roll(3, 0).bool() & (torch.arange(12) >= 3).unsqueeze(-1)
    assert torch.equal(hears.heard, expected)
    assert not bool(hears.leaks.any())
    assert hears.sources == tuple(range(12))


def test_long_inputs_are_sampled():
    report = audit(lambda x: x.cumsum(1), torch.randn(1, 300), prove=False)
    assert report.ok
    assert report.hears is not None
    assert len(report.hears.sources) <= 50
    leaking = audit(lambda x: x + x.flip(1), torch.randn(1, 300), prove=False)
    assert leaking.verdict is Verdict.LEAKS


def test_errors_are_one_family():
    with pytest.raises(RearviewError):
        audit(nn.Linear(3, 3), torch.randn(2, 8, 4), causal())
