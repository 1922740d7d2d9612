"""What only a thorough audit asks: caches, padding, backends, precisions, lengths, windows, labels, training."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rearview import causal, documents
from rearview.auditing import Verdict, audit, replay
from tests.auditing.forms import (
    Cached,
    LongOnly,
    OneBackend,
    OnePrecision,
    Padded,
    RepeatedMask,
    SlidingAttention,
    shifted_loss,
)
from tests.auditing.zoo import DOCUMENTS, LM, VOCAB, Causal, Packed, Roll, tokens

full = partial(audit, mode="full", prove=False)


@pytest.mark.parametrize(
    ("check", "leaking", "clean", "options"),
    [
        ("cached decoding", lambda: Cached("skips the mask"), lambda: Cached("right"), {}),
        ("cached decoding", lambda: Cached("off by one"), lambda: Cached("right"), {}),
        ("cached decoding", lambda: Cached("aligned top left"), lambda: Cached("right"), {}),
        ("padding", lambda: Padded("ignores the mask"), lambda: Padded("right"), {}),
        ("padding", lambda: Padded("counts the padding"), lambda: Padded("right"), {}),
        ("backends", lambda: LM(OneBackend()), lambda: LM(Causal("flags")), {}),
        ("precision", lambda: LM(OnePrecision()), lambda: LM(Causal("dense")), {}),
        ("longer input", lambda: LM(LongOnly()), lambda: LM(Causal("flags")), {}),
        ("window per layer", lambda: LM(SlidingAttention(4, 5)), lambda: LM(SlidingAttention(4, 4)), {}),
    ],
)
def test_a_form_is_told_from_its_fix(check: str, leaking: Any, clean: Any, options: dict[str, Any]):
    report = full(leaking(), tokens(), **options)
    assert report.verdict is Verdict.LEAKS
    assert report.check(check).status == "failed"
    report = full(clean(), tokens(), **options)
    assert report.ok, str(report)
    assert report.check(check).status == "passed"


@pytest.mark.parametrize(
    ("how", "hint"), [("skips the mask", "no mask reaches this attention"), ("off by one", "off by one")]
)
def test_a_leak_with_a_cache_has_a_place(how: str, hint: str):
    model = Cached(how)
    report = full(model, tokens())
    assert report.place is not None
    assert report.place.source.endswith("# here")
    assert report.place.confirmed
    assert hint in report.place.hint
    assert report.witness is not None
    assert report.witness.steps
    assert replay(model, report.witness).leaks


@pytest.mark.parametrize(("shift", "words"), [(0, "which is in its input"), (2, "shifted twice")])
def test_labels_that_are_not_shifted_by_one(shift: int, words: str):
    report = full(LM(Causal()), tokens(), loss=partial(shifted_loss, shift=shift))
    assert report.check("label alignment").status == "failed"
    assert words in report.check("label alignment").why
    assert full(LM(Causal()), tokens(), loss=shifted_loss).check("label alignment").status == "passed"


def test_labels_of_another_item():
    def loss(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x).flatten(0, 1)[:-1], labels.flatten()[1:].roll(5))

    assert full(LM(Causal()), tokens(), loss=loss).check("label alignment").status == "failed"


def test_padding_of_another_item():
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, :4] = 0
    inputs = {"tokens": tokens(), "attention_mask": mask}
    report = audit(RepeatedMask("wrong"), inputs)
    assert report.verdict is Verdict.LEAKS
    assert report.check("padding").status == "failed"
    assert audit(RepeatedMask("right"), inputs).ok


def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return shifted_loss(model, x, x)


def test_the_canary_sings_when_the_answer_is_in_the_input():
    report = full(LM(Roll()), tokens(), step=step)
    assert report.check("random-token canary").status == "failed"
    assert full(LM(Causal()), tokens(), step=step).check("random-token canary").status == "passed"


def test_a_step_that_updates_by_itself():
    optimisers: dict[int, torch.optim.Optimizer] = {}

    def own(model: nn.Module, x: torch.Tensor) -> float:
        optimiser = optimisers.setdefault(id(model), torch.optim.Adam(model.parameters(), lr=1e-2))
        optimiser.zero_grad()
        loss = step(model, x)
        loss.backward()
        optimiser.step()
        return loss.item()

    assert full(LM(Roll()), tokens(), step=own).check("random-token canary").status == "failed"


def test_a_step_that_trains_something_else():
    model = LM(Causal())
    report = full(model, tokens(), step=lambda given, x: 1.0)
    check = report.check("random-token canary")
    assert (check.status, report.verdict) == ("inconclusive", Verdict.INCONCLUSIVE)
    why = "step= trains another model than the one that it is given; create its optimizer for the given one"
    assert check.why == why


class BlockAware(Packed):
    """Keeps documents apart when positions restart, unless there is a mask of ones."""

    def forward(self, x, attention_mask=None, position_ids=None):
        embedded = nn.functional.one_hot(x, VOCAB).float()[..., :12]
        q, k, v = self.split(embedded)
        heard = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if position_ids is not None and attention_mask is None:
            ids = (position_ids == 0).cumsum(1)
            heard = heard & (ids.unsqueeze(-1) == ids.unsqueeze(1)).unsqueeze(1)
        return embedded + self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=heard))


def test_packing_in_each_convention():
    ids = torch.tensor(DOCUMENTS)
    positions = torch.cat([torch.arange(int((ids == n).sum())) for n in range(3)]).expand(2, -1)
    inputs = {"x": tokens(), "position_ids": positions}
    report = full(BlockAware(leaky=False), inputs, causal() & documents(DOCUMENTS), vocab=12)
    check = report.check("packed documents")
    assert check.status == "failed"
    assert "a mask of ones" in check.why
    assert check.numbers["conventions that hold"] == "positions that restart"


def test_a_contract_in_which_documents_only_add():
    """`causal() | documents(...)`, as for images in text, keeps nothing apart, so packing has nothing to fail."""
    inputs = {"x": tokens(), "position_ids": torch.arange(len(DOCUMENTS)).expand(2, -1)}
    report = full(BlockAware(leaky=False), inputs, causal() | documents(DOCUMENTS), vocab=12)
    assert report.check("packed documents").status == "passed"
    nested = causal() & (causal() & documents(DOCUMENTS) | documents(DOCUMENTS))
    assert full(BlockAware(leaky=False), inputs, nested, vocab=12).check("packed documents").status == "failed"


def test_skipped_checks_say_why():
    report = full(LM(Causal()), tokens())
    skipped = {check.name: check.why for check in report.checks if check.status == "skipped"}
    assert skipped["padding"] == "the model takes no attention_mask"
    assert skipped["random-token canary"] == "no step= was given"
    assert all(skipped.values())
