"""What can be audited, what is refused with a clear message, and that the model is as it was afterwards."""

import copy
import random
import warnings
from types import SimpleNamespace
from typing import Any, Literal

import numpy
import pytest
import torch
from torch import Tensor, nn

from rearview import RearviewError, causal, documents, full, padding, per_head, window
from rearview.auditing import ModelFailed, Verdict, audit
from rearview.errors import BadArgument
from tests.auditing.reproducers import Flexible
from tests.auditing.zoo import DIM, LM, VOCAB, BatchNorm, Causal, NoMask, signal, tokens

X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


def running_sum(x: Tensor) -> Tensor:
    return x.cumsum(1)


# What a model may return, and where its time may lie.


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("tensor", lambda out: out),
        ("tuple", lambda out: (out, None)),
        ("loss first", lambda out: (torch.zeros(()), out)),
        ("dict", lambda out: {"loss": torch.zeros(()), "logits": out}),
        ("nested", lambda out: {"aux": {"x": torch.zeros(3)}, "parts": [out]}),
        ("one number a position", lambda out: out.sum(-1)),
    ],
)
def test_outputs_are_found(name: str, wrap: Any):
    clean, leaking = LM(Causal()), LM(NoMask())
    assert audit(lambda x: wrap(clean(x)), tokens()).ok
    assert audit(lambda x: wrap(leaking(x)), tokens()).verdict is Verdict.LEAKS


def test_the_main_output_is_taken():
    """`hidden_states` peeks on purpose here, the logits do not."""

    def model(x: Tensor) -> dict[str, Tensor]:
        return {"hidden_states": x.flip(1), "logits": x.cumsum(1)}

    assert audit(model, X).ok


def test_time_first_and_channels_first():
    conv = nn.Conv1d(3, 3, 3, padding=1)
    report = audit(conv, torch.randn(2, 3, 16), time_axis=2)
    assert report.verdict is Verdict.LEAKS
    gru = nn.GRU(3, 3)
    assert audit(gru, torch.randn(16, 2, 3), time_axis=0, batch_axis=1).ok
    assert audit(gru, torch.randn(16, 2, 3), time_axis=0, batch_axis=1).sizes == {"batch": 2, "time": 16}


def test_another_signature():
    class Odd(nn.Module):
        def forward(self, scale: float, x: Tensor) -> Tensor:
            return scale * x.cumsum(1)

    assert audit(Odd(), X, call=lambda model, x: model(2.0, x)).ok
    assert audit(Odd(), (2.0, X), vary=1).ok


def test_companions_follow():
    def model(x: Tensor, gate: Tensor) -> Tensor:
        assert x.shape[:2] == gate.shape
        return (x * gate).cumsum(1)

    assert audit(model, {"x": X, "gate": torch.ones(2, 8)}, vary="x").ok


def test_a_model_that_takes_one_batch_size():
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(2, 8).cumsum(1)

    report = audit(Fixed(), X)
    assert report.ok
    leaks = audit(lambda x: x.view(2, 8).flip(1), X)
    assert leaks.verdict is Verdict.LEAKS


def test_a_batch_of_one():
    report = audit(LM(Causal()), tokens(batch=1))
    assert report.ok
    assert report.check("batch isolation").status == "passed"
    assert audit(lambda x: x - x.mean(0, keepdim=True) * (len(x) > 1) + x.cumsum(1), X[:1]).verdict is Verdict.LEAKS
    alone = audit(lambda x: x.view(1, 8).cumsum(1), X[:1])
    assert alone.check("batch isolation").status == "skipped"
    why = "the batch has one item, and the model does not run with two: RuntimeError: shape '[1, 8]' is invalid"
    assert alone.check("batch isolation").why.startswith(why)


def test_tokens_are_drawn_from_the_vocabulary():
    report = audit(LM(Causal()), torch.zeros(2, 16, dtype=torch.long))
    assert report.sizes["vocab"] == VOCAB
    table = torch.randn(7, 4)
    looked_up = audit(lambda x: table[x].cumsum(1), torch.zeros(1, 8, dtype=torch.long), vocab=7)
    assert looked_up.ok


# What is refused.


def test_a_model_that_fails_when_it_is_called_again():
    calls = []

    def once(x: Tensor) -> Tensor:
        calls.append(x)
        if len(calls) > 1:
            raise ValueError("only once")
        return x.cumsum(1)

    with pytest.raises(ModelFailed, match=r"once fails on its own inputs .*ValueError: only once"):
        audit(once, torch.randn(2, 6))


def test_lazy_and_sparse_parameters():
    with pytest.raises(BadArgument) as caught:
        audit(nn.LazyLinear(4), torch.randn(2, 6, 4))
    expected = "model: expected initialized parameters, got a lazy module. Call the model once before the audit."
    assert str(caught.value) == expected
    sparse = LM(Causal())
    sparse.register_parameter("unused", nn.Parameter(torch.eye(3).to_sparse(), requires_grad=False))
    assert audit(sparse, tokens()).verdict is Verdict.PROVEN


def test_a_model_that_fails_on_its_own_inputs():
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.zeros(3, 3)

    with pytest.raises(ModelFailed, match="Broken fails on its own inputs") as caught:
        audit(Broken(), X)
    assert "return x @ torch.zeros(3, 3)" in str(caught.value)
    assert "call=lambda model, x" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert isinstance(caught.value, RearviewError)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: audit("model", X), "model: expected an nn.Module or another callable, got str"),  # pyright: ignore
        (lambda: audit(running_sum, [1, 2]), "inputs: expected a tensor, or a dict or tuple of tensors, got list"),
        (lambda: audit(running_sum, X[0]), "A single sequence is a batch of one: x\\[None\\]"),
        (lambda: audit(running_sum, X[:, :1]), "at least 1 batch item and 2 positions, got \\[2, 1\\]"),
        (lambda: audit(running_sum, X, "causal"), "contract: expected a mask"),  # pyright: ignore
        (
            lambda: audit(running_sum, X, torch.ones(9, 9).bool()),  # pyright: ignore[reportArgumentType]
            r"contract: expected a mask, got a bool tensor of shape \[9, 9\]\. For a bool tensor in which True means "
            r"may be heard: contract=dense\(tensor\)\.$",
        ),
        (lambda: audit(running_sum, X, per_head([causal(), full()])), "the same for every head"),
        (
            lambda: audit(running_sum, X, padding([3, 4, 5])),
            "contract: expected a mask for 2 batch items, as the inputs have, got padding",
        ),
        (lambda: audit(running_sum, X, documents([0, 1])), "an id for each of the 8 positions"),
        (lambda: audit(running_sum, X, mode="thorough"), "mode: expected 'quick' or 'full', got 'thorough'"),  # pyright: ignore
        (lambda: audit(running_sum, X, vary="x"), "vary: expected nothing, as the inputs are one tensor"),
        (lambda: audit(running_sum, {"x": X}, vary="y"), "vary: expected one of \\['x'\\], got 'y'"),
        (lambda: audit(lambda x: x.mean(1), X), "an axis for the 2 batch items and one for the 8 positions"),
        (lambda: audit(lambda x: None, X), "the model: expected a tensor as output, got NoneType"),
        (lambda: audit(running_sum, X, time_axis=5), "two different axes"),
        (lambda: audit(lambda x: x.float(), torch.zeros(1, 4).long()), "at least two different tokens"),
    ],
)
def test_bad_arguments_are_explained(call: Any, message: str):
    with pytest.raises(BadArgument, match=message):
        call()


# What cannot be known.


def test_a_model_that_does_not_repeat_itself():
    calls = []

    def model(x: Tensor) -> Tensor:
        calls.append(1)
        return x.cumsum(1) + len(calls)

    report = audit(model, X)
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert report.why.startswith("two runs of the same input with the same seed differ by 1: the model keeps state ")
    assert not report.ok
    assert [check.name for check in report.checks] == ["repeatability"]


def test_a_counter_in_a_buffer_is_undone():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1  # pyright: ignore
            return x.cumsum(1) + self.calls

    model = Counts()
    assert audit(model, X).ok
    assert float(model.calls) == 0  # pyright: ignore


def test_random_numbers_are_seeded():
    assert audit(lambda x: x.cumsum(1) + torch.rand_like(x), X).ok
    assert audit(lambda x: x.cumsum(1) + random.random(), X).ok


def test_outputs_that_are_not_numbers():
    report = audit(lambda x: x.cumsum(1) / (torch.arange(8) != 3), X)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "first at item 0, position 3" in report.why


def test_a_model_that_hears_nothing_is_no_pass():
    report = audit(lambda x: torch.zeros_like(x), X)
    assert report.verdict is Verdict.INCONCLUSIVE
    pointwise = audit(lambda x: x.relu(), X)
    assert pointwise.verdict is Verdict.INCONCLUSIVE
    assert "no position hears any other" in pointwise.why
    assert audit(lambda x: x.relu(), X, window(1)).ok


def test_a_contract_that_forbids_nothing():
    report = audit(running_sum, X, full())
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "forbids nothing" in report.why


def test_padded_outputs_are_nobodys():
    """A padded position hears itself, and nobody reads it."""

    def model(x: Tensor) -> Tensor:
        real = torch.arange(8) < torch.tensor([[5], [8]])
        return (x * real).cumsum(1) + x

    assert audit(model, X, causal() & padding([5, 8])).ok
    assert audit(running_sum, X, causal() & padding([5, 8])).ok


# As it was.


def test_the_model_is_as_it_was():
    model = LM(Causal(), BatchNorm())
    model.mixers[0].eval()
    model.head.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(7)
    random.seed(7)
    expected, drawn = torch.rand(3), random.random()
    torch.manual_seed(7)
    random.seed(7)
    audit(model, tokens(), mode="full", prove=False)
    assert torch.equal(torch.rand(3), expected)
    assert random.random() == drawn
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.head.weight.requires_grad
    assert model.embed.weight.requires_grad
    assert model.embed.weight.grad is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class ChangesEverything(nn.Module):
    """It writes to what it holds, however deep, replaces parameters, and leaves hooks and gradients behind."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer, self.scale, self.shift = LM(Causal()), nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))
        self.held = {"keys": [torch.zeros(2)], "counts": {"calls": 0}}
        self.pair, self.array = (torch.zeros(1), 3), numpy.zeros(2)
        self.bias = nn.Parameter(torch.zeros(1))
        self.scale.grad = torch.ones(1)

    def forward(self, x: Tensor) -> Tensor:
        self.held["keys"][0].add_(1)
        self.held["counts"]["calls"] += 1
        self.held["keys"].append(torch.ones(2))
        self.pair[0].add_(1)
        self.array += 1
        with torch.enable_grad():
            (self.scale * 2).sum().backward()
        self.scale.data = torch.full((1,), 2.0)
        self.bias.data.fill_(1.0)
        self.shift = nn.Parameter(torch.ones(1))
        self.mixer.register_forward_hook(lambda module, args, output: None)
        return self.mixer(x) * self.scale.detach()


def test_what_a_model_changes_deep_inside_is_restored():
    model = ChangesEverything()
    scale, shift, gradient = model.scale, model.shift, model.scale.grad
    assert audit(model, tokens()).ok
    assert model.scale is scale
    assert model.shift is shift
    assert (scale.item(), shift.item(), model.bias.item()) == (1.0, 0.0, 0.0)
    assert scale.grad is gradient
    assert gradient is not None
    assert gradient.item() == 1.0
    assert [key.tolist() for key in model.held["keys"]] == [[0.0, 0.0]]
    assert model.held["counts"] == {"calls": 0}
    assert (model.pair[0].item(), model.array.tolist()) == (0.0, [0.0, 0.0])
    assert not model.mixer._forward_hooks


class SwitchesItself(nn.Module):
    """At the first short input it swaps a module, and it keeps a word, a number, a list and a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer: nn.Module = LM(Causal())
        self.kind, self.calls, self.seen, self.last = "sparse", 0, [1], torch.zeros(3)
        self.register_buffer("total", torch.zeros(()))
        self.config = SimpleNamespace(kind="sparse")

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] < 10 and self.kind == "sparse":
            self.mixer, self.kind, self.config.kind = LM(NoMask()), "full", "full"
        self.calls += 1
        self.seen.append(self.calls)
        self.last += 1
        self.total += 1  # pyright: ignore
        return self.mixer(x)


@pytest.mark.parametrize("mode", ["quick", "full"])
def test_a_model_that_switches_itself_is_audited_and_left_as_it_was(mode: Literal["quick", "full"]):
    model = SwitchesItself()
    mixer, weights = model.mixer, copy.deepcopy(model.state_dict())
    threads, default = torch.get_num_threads(), torch.get_default_dtype()
    numpy_state = numpy.random.get_state()[1].copy()  # pyright: ignore
    report = audit(model, tokens(), mode=mode)
    # Not the model without a mask, which it becomes at a short input.
    assert report.check("suffix swap").status == "passed"
    assert report.check("train mode").status == "passed"
    assert model.mixer is mixer
    assert (model.kind, model.config.kind, model.calls, model.seen) == ("sparse", "sparse", 0, [1])
    assert model.last.tolist() == [0, 0, 0]
    assert set(vars(model)) == set(vars(SwitchesItself()))
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, default)
    assert (numpy.random.get_state()[1] == numpy_state).all()  # pyright: ignore
    assert any("the model changes mixer, kind, config.kind and 4 more as it runs" in c for c in report.conditions), (
        report
    )


@pytest.mark.parametrize("name", ["no mask", "eager attention"])
def test_flex_attention_works_after_an_audit(name: str):
    from torch.nn.attention.flex_attention import flex_attention

    x = torch.randn(1, 1, 8, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = flex_attention(x, x, x)
        ahead = 1 if name == "no mask" else 0
        report = audit(Flexible(ahead), torch.randn(1, 8, 32))
        assert report.ok == (name != "no mask")
        assert torch.equal(flex_attention(x, x, x), before)  # pyright: ignore


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_model_is_as_it_was_after_an_interruption(error: type[BaseException]):
    class Interrupted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(DIM)

        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            if len(calls) == 9:
                raise error("stop")
            return self.norm(x.transpose(1, 2)).transpose(1, 2).cumsum(1)

    calls: list[int] = []
    model = Interrupted()
    state = torch.get_rng_state()
    if error is KeyboardInterrupt:
        with pytest.raises(error):
            audit(model, signal(), prove=False)
    else:
        report = audit(model, signal(), prove=False)
        assert report.check("batch isolation").status == "inconclusive"
        assert report.check("batch isolation").why == "the check stopped with RuntimeError: stop"
    assert model.training
    assert torch.equal(model.norm.running_mean, torch.zeros(DIM))  # pyright: ignore
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_that_takes_gradients_on_the_way():
    def model(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((x.cumsum(1) ** 2).sum(), x, create_graph=True)
        return gradient

    assert audit(model, X, prove=False).verdict is Verdict.LEAKS
