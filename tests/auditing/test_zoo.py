"""Every leak in the zoo is found and its line named; no clean model is accused."""

import pytest
import torch

from rearview.auditing import Verdict, audit, replay
from tests.auditing.zoo import CLEAN, LEAKING, Case


@pytest.mark.parametrize("case", LEAKING.values(), ids=LEAKING)
def test_leaks_are_found(case: Case):
    model = case.build()
    report = audit(model, case.inputs(), case.contract, **case.options)
    assert report.verdict is Verdict.LEAKS
    assert report.exit_code == 1
    assert report.check(case.check).status == "failed"
    assert report.witness is not None
    if report.witness.kind != "form":
        assert replay(model, report.witness).leaks
        assert report.places, "no place"
        assert all(place.confirmed for place in report.places)
    if case.module:
        assert report.places[0].module == case.module
    if case.marked:
        for place in report.places:
            assert place.source.endswith("# here"), f"{place}: {place.source}"
    assert not case.hint or any(case.hint in place.hint for place in report.places), [p.hint for p in report.places]


@pytest.mark.parametrize("case", CLEAN.values(), ids=CLEAN)
def test_clean_models_are_not_accused(case: Case):
    report = audit(case.build(), case.inputs(), case.contract, **case.options)
    assert report.ok, str(report)
    assert not report.witnesses
    assert not report.places


@pytest.mark.parametrize(
    "name", ["eager attention", "GRU", "token-choice experts", "causal convolution", "float input"]
)
def test_clean_models_are_not_accused_in_full(name: str):
    case = CLEAN[name]
    report = audit(case.build(), case.inputs(), case.contract, mode="full")
    assert report.ok, str(report)


def test_the_zoo_is_wide():
    assert len(LEAKING) >= 30
    assert len(CLEAN) >= 25


def test_every_layer_that_leaks_is_named():
    case = LEAKING["every layer"]
    (place,) = audit(case.build(), case.inputs()).places
    assert (place.module, *place.also) == ("mixers.0", "mixers.1", "mixers.2")


def test_two_faults_are_two_places():
    case = LEAKING["two faults"]
    places = audit(case.build(), case.inputs()).places
    assert [place.module_class for place in places] == ["NoMask", "InstanceNorm1d"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_draws_say_the_same(seed: int):
    torch.manual_seed(seed)
    for cases, ok in ((LEAKING, False), (CLEAN, True)):
        for name in list(cases)[seed::6]:
            case = cases[name]
            report = audit(case.build(), case.inputs(), case.contract, **{**case.options, "seed": seed})
            assert report.ok == ok, f"{name}: {report.why}"
