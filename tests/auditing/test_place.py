"""From a difference to the line: how tensors are read, who is blamed, and what is said of it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rearview import causal, window
from rearview.auditing import Hears, Verdict, audit
from rearview.auditing.place.hints import shape_words
from rearview.auditing.place.scores import fault_of_mask, fault_of_scores
from rearview.auditing.place.views import BatchView, LengthView, TimeView
from rearview.models import GPT, GPTConfig
from tests.auditing.zoo import LM, Causal, NoMask, tokens
from tests.native_kernel import needs_native

TIME = 6
WATCHED = torch.arange(TIME) < 4
FORBIDDEN = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)


def touched(*shape: int, at: Any) -> tuple[Tensor, Tensor]:
    clean = torch.zeros(shape)
    other = clean.clone()
    other[at] = 1
    return clean, other


@pytest.mark.parametrize(
    ("name", "shape", "at", "state"),
    [
        ("nothing", (2, TIME, 5), (slice(0),), "same"),
        ("later positions", (2, TIME, 5), (0, slice(4, None)), "clean"),
        ("an early position", (2, TIME, 5), (0, 3), "dirty"),
        ("channels first", (2, 5, TIME), (0, 0, 5), "clean"),
        ("scores of a later key", (2, 3, TIME, TIME), (0, 0, slice(None), 5), "clean"),
        ("scores of early ones", (2, 3, TIME, TIME), (0, 0, 1, 2), "dirty"),
        ("flattened with the batch", (2 * TIME, 5), (TIME + 5,), "clean"),
        ("flattened, dirty", (2 * TIME, 5), (TIME + 1,), "dirty"),
        ("split into chunks", (2, 3, 2, 5), (0, 2), "guessed"),
        ("a state for each chunk", (2, 3, 5), (0, 2), "guessed"),
        ("no time left", (2, 5), (0,), "lost"),
        ("padded", (2, TIME + 2, 5), (0, slice(6, None)), "stretched"),
    ],
)
def test_states_in_time(name: str, shape: tuple[int, ...], at: Any, state: str):
    clean, other = touched(*shape, at=at)
    view = TimeView(WATCHED, batch=2)
    assert view.state(clean, other) == state
    if state == "dirty":
        assert view.state(clean, view.repair(clean, other)) in ("same", "clean")


def test_steps_of_a_cache():
    view = TimeView(WATCHED, steps=(2, 4))
    clean, other = touched(1, 3, 4, TIME, at=(0, 0, 2, 5))  # queries 2 to 5, keys 0 to 5
    assert view.state(clean, other) == "clean"
    clean, other = touched(1, 3, 4, TIME, at=(0, 0, 1, 3))
    assert view.state(clean, other) == "dirty"


def test_states_in_a_batch_and_of_lengths():
    view = BatchView(torch.tensor([True, False]))
    assert view.state(*touched(2, TIME, at=(1,))) == "clean"
    assert view.state(*touched(2, TIME, at=(0,))) == "dirty"
    assert view.state(*touched(6, TIME, at=(2,))) == "dirty"
    assert view.state(*touched(5, at=(2,))) == "lost"
    lengths = LengthView(torch.ones(4, dtype=torch.bool))
    assert lengths.state(torch.ones(1, 6, 2), torch.ones(1, 4, 2)) == "same"
    assert lengths.state(torch.ones(1, 6, 2), 2 * torch.ones(1, 4, 2)) == "dirty"


def test_data_that_decides_the_way():
    """The two runs part: what read the value is to blame, and that is said."""

    def model(x: Tensor) -> Tensor:
        if x.sum() > 0:  # here
            return x.cumsum(1) * 2
        return x.cumsum(1)

    report = audit(model, torch.randn(1, 8), seed=1)
    assert report.verdict is Verdict.LEAKS
    assert report.place is not None
    assert report.place.source.endswith("# here")
    assert not report.place.confirmed


def test_a_leak_that_no_op_shows():
    """What leaves torch and comes back is found by the evidence, without a place."""

    def model(x: Tensor) -> Tensor:
        values = x.tolist()
        return torch.tensor([[sum(row) for _ in row] for row in values])

    report = audit(model, torch.randn(1, 8))
    assert report.verdict is Verdict.LEAKS
    assert report.witness is not None


def test_functional_code_in_the_model_itself():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = LM(Causal())

        def forward(self, x: Tensor) -> Tensor:
            logits = self.body(x)
            return logits - logits.logsumexp(1, keepdim=True)  # here

    report = audit(Model(), tokens())
    assert report.place is not None
    assert (report.place.module, report.place.module_class) == ("", "Model")
    assert report.place.source.endswith("# here")


@torch.library.custom_op("rearview_tests::mirrored", mutates_args=())
def mirrored(x: Tensor) -> Tensor:
    """An op of the user's own, through which positions cannot be followed."""
    return torch.cat([x, x.flip(1)], 2).transpose(1, 2).contiguous()


@pytest.mark.parametrize(("time", "confirmed"), [(12, True), (8, False)])
def test_a_line_that_rests_on_a_size_alone_is_called_ambiguous(time: int, confirmed: bool):
    """The model has eight features, so at eight positions the size of an axis says nothing."""

    def model(x: Tensor) -> Tensor:
        mixed = mirrored(x)
        return x + mixed[:, 8:].transpose(1, 2)

    (place,) = audit(model, torch.randn(1, time, 8, generator=torch.Generator().manual_seed(0)), prove=False).places
    assert place.confirmed == confirmed
    assert ("ambiguous: 8 is also another size of the model. Audit it at another length" in place.evidence) != confirmed


def test_a_shared_module_is_named_once():
    mixer = NoMask()
    report = audit(LM(mixer, mixer), tokens())
    (place,) = report.places
    assert (place.module, place.also) == ("mixers.0", ())


def test_gradients_do_not_hide_the_place():
    model = LM(NoMask())
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    report = audit(model, tokens(), call=lambda model, x: checkpoint(model, x, use_reentrant=False))
    assert report.place is not None
    assert report.place.module_class == "NoMask"


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (~FORBIDDEN, ""),
        (torch.ones_like(FORBIDDEN), "no mask"),
        (FORBIDDEN, "inverted"),
        (torch.ones(TIME, TIME).tril(1).bool(), "off by one"),
        (torch.ones(TIME, TIME).tril(3).bool(), "3 positions too far ahead"),
        (
            ~FORBIDDEN | ((torch.arange(TIME) // 2).unsqueeze(0) == (torch.arange(TIME) // 2).unsqueeze(1)),
            "next one|blocks",
        ),
        (
            ~FORBIDDEN | (torch.rand(TIME, TIME, generator=torch.Generator().manual_seed(0)) > 0.6),
            "forbidden pairs",
        ),
    ],
)
def test_faults_of_masks(mask: Tensor, words: str):
    fault = fault_of_mask(mask.unsqueeze(0), FORBIDDEN)
    assert any(word in fault for word in words.split("|")) if words else not fault


def test_faults_of_scores():
    scores = torch.randn(2, TIME, TIME, generator=torch.Generator().manual_seed(0))
    assert fault_of_scores(scores.masked_fill(FORBIDDEN, -math.inf), FORBIDDEN) == ""
    assert "finite number (about -1e+04)" in fault_of_scores(scores.masked_fill(FORBIDDEN, -1e4), FORBIDDEN)
    assert "multiplies" in fault_of_scores(scores.masked_fill(FORBIDDEN, 0.0), FORBIDDEN)
    assert "something (tanh, a clamp) follows the mask" in fault_of_scores(
        scores.masked_fill(FORBIDDEN, -30.0), FORBIDDEN
    )
    weak = torch.where(FORBIDDEN, scores - 20, scores)
    assert "too weak" in fault_of_scores(weak, FORBIDDEN)
    band = causal() & window(2)
    wide = torch.ones(1, TIME, TIME).tril().triu(-2).bool()
    assert "reaches back 3" in fault_of_mask(wide, ~band.to_bool(TIME))


@pytest.mark.parametrize(
    ("heard", "words"),
    [
        (torch.ones(TIME, TIME).tril(), ""),
        (torch.ones(TIME, TIME), "everything that it must not"),
        (torch.ones(TIME, TIME).tril(1), "exactly the next one"),
        (torch.ones(TIME, TIME).tril(2), "positions hear up to 2 positions ahead"),
        (torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)), "within blocks of 3"),
    ],
)
def test_shapes_of_leaks(heard: Tensor, words: str):
    assert words in shape_words(Hears(heard, FORBIDDEN, tuple(range(TIME))))


@needs_native
def test_the_mask_that_attend_was_given_is_named():
    model = GPT(GPTConfig(vocab_size=20, context=12, layers=1, heads=2, width=16, mask=window(4, ahead=2)))
    report = audit(model, torch.randint(0, 20, (1, 10), generator=torch.Generator().manual_seed(0)))
    assert "Attend was called with the mask window(4, ahead=2)." in str(report)
