"""What counts as evidence: bit for bit, told from rounding, by trials that could have failed."""

import pytest
import torch
from torch import Tensor, nn

from rearview import causal, chunks, documents, prefix, window
from rearview.auditing import Verdict, audit
from rearview.auditing.contract import Contract, sizes_of
from tests.auditing.zoo import LEAKING, LM, Causal, tokens

X = torch.randn(2, 12, generator=torch.Generator().manual_seed(0))


def test_rounding_is_no_leak():
    """The order of a sum may depend on later values; in float64 what that does all but vanishes."""

    def model(x: Tensor) -> Tensor:
        order = torch.finfo(x.dtype).eps * x.mean(1, keepdim=True).sign()
        return x.cumsum(1) * (1 + order)

    report = audit(model, X, prove=False)
    assert report.verdict is Verdict.HELD
    assert 0 < float(report.check("suffix swap").numbers["noise floor"]) < 1e-6
    assert any("taken for rounding" in condition for condition in report.conditions)


def test_a_leak_as_small_as_rounding_is_one():
    report = audit(lambda x: x.cumsum(1) * (1 + 1e-7 * x.mean(1, keepdim=True).sign()), X)
    assert report.verdict is Verdict.LEAKS


def test_what_float64_cannot_tell_is_inconclusive():
    def model(x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise TypeError("no float64 here")
        return x.cumsum(1) * (1 + 1e-7 * x.mean(1, keepdim=True).sign())

    report = audit(model, X, prove=False)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "no float64 here" in report.why


def test_infinities_do_not_accuse():
    """0 x inf is NaN: a loud draw that overflows says nothing about who hears it."""

    def model(x: Tensor) -> Tensor:
        weights = torch.ones(12, 12).tril()
        return weights @ x.clamp(-50, 50).unsqueeze(-1).mul(2).exp().pow(3).flatten(1).unsqueeze(-1)

    report = audit(lambda x: model(x).squeeze(-1), X, prove=False)
    assert report.verdict is not Verdict.LEAKS


def test_dead_paths_are_opened():
    report = audit(LEAKING["zero gate"].build(), tokens())
    assert report.witness is not None
    assert report.witness.weights == "zeros redrawn, seed 0"
    # The structure allows it, so quick tries other weights too.
    assert audit(LEAKING["dead unit"].build(), tokens()).check("redrawn weights").status == "failed"


def test_zero_projections_are_judged_by_their_copy():
    model = LM(Causal())
    nn.init.zeros_(model.mixers[0].out.weight)  # pyright: ignore
    report = audit(model, tokens(), prove=False)
    assert report.verdict is Verdict.HELD
    assert not report.check("liveness").numbers["near"]
    condition = "1 parameter is all zero, mixers.0.out.weight; a copy with zeros redrawn was audited too"
    assert condition in report.conditions


def test_a_short_reach_is_said():
    report = audit(lambda x: x + x.roll(1, 1) * (torch.arange(12) > 0), X)
    assert report.ok
    assert report.check("liveness").status == "inconclusive"
    assert "positions hear others at most 1 away, although the contract allows 11" in report.conditions


def test_items_that_hear_each_other_rarely():
    """A maximum over the batch moves only sometimes; the experiments notice that they were not alone."""
    report = audit(LEAKING["reads a scalar"].build(), tokens())
    assert report.verdict is Verdict.LEAKS


def test_the_leak_of_a_late_item():
    """Only item 1 peeks, and only its contract differs."""
    ids = torch.zeros(2, 12, dtype=torch.long)
    ids[1, 6:] = 1

    def model(x: Tensor) -> Tensor:
        return x.cumsum(1)

    report = audit(model, X, causal() & documents(ids))
    assert report.verdict is Verdict.LEAKS
    assert report.witness is not None
    assert report.witness.item == 1


def test_contracts_at_a_size():
    contract = Contract.of((causal() & window(3)) | prefix(1), batch=2, time=6)
    assert contract.forbidden[1, 5].int().tolist() == [0, 1, 1, 0, 0, 0]
    assert contract.watched(0, (torch.arange(6) == 2)[None])[0].nonzero().flatten().tolist() == [0, 1, 5]
    assert sizes_of(causal() & (chunks(16) | window(4, ahead=2))) == {2, 4, 16}
    assert {15, 16, 17, 31, 32, 33} <= set(Contract.of(chunks(16) & causal(), batch=1, time=64).cuts())
    assert {4, 5, 6, 7} <= set(Contract.of(documents([0] * 5 + [1] * 9), batch=1, time=14).cuts())


def test_what_was_asked_decides_what_runs():
    quick = {check.name for check in audit(LM(Causal()), tokens()).checks}
    assert "label alignment" not in quick
    asked = audit(LM(Causal()), tokens(), step=lambda model, x: model(x).logsumexp(-1).mean(), prove=False)
    assert "random-token canary" in {check.name for check in asked.checks}


def test_a_trial_that_cannot_be_copied():
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def __deepcopy__(self, memo: object) -> "Stubborn":
            raise TypeError("there is only one")

        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(1) + self.weight

    report = audit(Stubborn(), X, mode="full", prove=False)
    assert report.ok
    assert "there is only one" in report.check("redrawn zeros").why


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["no mask", "instance norm", "top-k gate", "depends on length", "mean over the batch"])
def test_on_a_gpu(name: str):
    case, x = LEAKING[name], tokens().cuda()
    with torch.device("cuda"):
        report = audit(case.build().cuda(), x, **case.options)
        assert report.verdict is Verdict.LEAKS
        assert report.place is not None
        assert audit(LM(Causal("flags")).cuda(), x).ok


def test_another_default_device():
    """The model makes its tensors where it always does, and the auditor does not mind."""

    def model(x: Tensor) -> Tensor:
        assert torch.zeros(1).device.type == "meta"
        return x.cumsum(1)

    with torch.device("meta"):
        assert audit(model, X, prove=False).ok
