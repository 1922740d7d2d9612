"""The CPU kernel as an operator: what compiled and exported graphs, fake tensors and dispatch modes see of it.

Compiled graphs with gradients, autocast and torch.func stand with the other engines in test_transforms.py.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rearview import Mask, Unsupported, alibi, attend, causal, documents, padding, per_head, prefix, window
from rearview.attention.call import Call
from rearview.attention.engines.native import op
from tests.native_kernel import needs_native

pytestmark = [
    needs_native,
    # The compiler of torch warns about its own parts.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning"),
]

BATCH, HEADS, TIME, DIM = 2, 2, 9, 4
SINKS = (causal() & window(3)) | prefix(1)
PACKED = causal() & documents([0] * 4 + [1] * 5)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(time: int = TIME) -> list[Tensor]:
    return [draw(BATCH, HEADS, time, DIM, seed=seed) for seed in (1, 2, 3)]


def compiled(function: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True, **options)


@pytest.mark.parametrize(
    ("mask", "options"),
    [
        (SINKS, {}),
        (PACKED, {"softcap": 2.0}),
        (causal() & padding([9, 4]), {"bias": draw(TIME, TIME, seed=4).requires_grad_()}),
        (per_head([causal(), window(2)]), {"bias": alibi(HEADS), "dropout": 0.3}),
        (SINKS, {"sinks": draw(HEADS, seed=5).requires_grad_(), "batch_invariant": True}),
    ],
    ids=str,
)
def test_torch_finds_no_fault_with_the_operator(mask: Mask, options: dict):
    call = Call.of(*(tensor.requires_grad_() for tensor in inputs()), mask=mask, **options)
    tensors = (call.query, call.key, call.value, call.bias_tensor, call.sinks)
    given = (*tensors, *op.options_of(call, call.drawn_seed()))
    torch.library.opcheck(torch.ops.rearview.attention.default, given)


def test_a_graph_with_other_documents_of_the_same_length_is_the_same_graph():
    run = compiled(lambda q, k, v, ids: attend(q, k, v, mask=causal() & documents(ids), engine="native"))
    tensors = inputs()
    run(*tensors, torch.arange(TIME) // 4)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for ids in (torch.arange(TIME) // 3, torch.zeros(TIME, dtype=torch.int64), torch.arange(TIME) % 2):
            expected = attend(*tensors, mask=causal() & documents(ids), engine="reference")
            torch.testing.assert_close(run(*tensors, ids), expected)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_graph_of_any_length(dynamic: bool | None):
    run = compiled(lambda q, k, v: attend(q, k, v, mask=SINKS, engine="native"), dynamic=dynamic)
    for time in (9, 12, 30, 31, 45):
        # The second length makes the graph one for all.
        with torch._dynamo.config.patch(error_on_recompile=time > 12):
            tensors = inputs(time)
            torch.testing.assert_close(run(*tensors), attend(*tensors, mask=SINKS, engine="reference"))


def test_steps_with_a_growing_cache_are_one_graph():
    query, key, value = inputs(50)
    run = compiled(lambda q, k, v, start: attend(q, k, v, mask=causal() & window(4), q_start=start, engine="native"))
    for time in (20, 21, 22, 30, 40):
        given = (query[:, :, :1], key[:, :, :time], value[:, :, :time])
        with torch._dynamo.config.patch(error_on_recompile=time > 21):
            got = run(*given, time - 1)
        torch.testing.assert_close(got, attend(*given, mask=causal() & window(4), engine="reference"))


def test_dropout_in_a_graph_follows_the_global_seed():
    run = compiled(lambda q, k, v: attend(q, k, v, dropout=0.4, engine="native"))
    found = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        found.append(run(*inputs()))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_the_gradient_of_a_bias_and_of_the_log_sum_exp_in_a_graph():
    leaves = [tensor.requires_grad_() for tensor in [*inputs(), draw(HEADS, TIME, TIME, seed=5)]]

    def run(engine: str, *leaves: Tensor) -> Tensor:
        query, key, value, bias = leaves
        out, lse = attend(query, key, value, mask=SINKS, bias=bias, softcap=2.0, return_lse=True, engine=engine)
        return out.square().sum() + lse.sum()

    got = torch.autograd.grad(compiled(lambda *leaves: run("native", *leaves))(*leaves), leaves)
    expected = torch.autograd.grad(run("reference", *leaves), leaves)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


class Layer(torch.nn.Module):
    def __init__(self, mask: Mask):
        super().__init__()
        self.mask = mask

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, mask=self.mask, engine="native")


@pytest.mark.parametrize("mask", [causal(), SINKS, PACKED], ids=str)
def test_export(mask: Mask):
    exported = torch.export.export(Layer(mask), tuple(inputs()))
    assert "torch.ops.rearview.attention.default" in exported.graph_module.code
    torch.testing.assert_close(exported.module()(*inputs()), Layer(mask)(*inputs()))


def test_export_for_any_length():
    time = torch.export.Dim("time", min=4, max=100)
    exported = torch.export.export(Layer(SINKS), tuple(inputs()), dynamic_shapes=({2: time},) * 3)
    for length in (4, 33):
        torch.testing.assert_close(exported.module()(*inputs(length)), Layer(SINKS)(*inputs(length)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("learns", [False, True])
def test_a_traced_function_computes_and_does_not_repeat(learns: bool):
    traced = torch.jit.trace(Layer(SINKS), tuple(tensor.requires_grad_(learns) for tensor in inputs()))
    others = [tensor.flip(2).requires_grad_(learns) for tensor in inputs()]
    got, expected = traced(*others), Layer(SINKS)(*others)  # pyright: ignore[reportCallIssue]
    assert torch.equal(got, expected)
    if learns:
        assert torch.equal(*(torch.autograd.grad(out.square().sum(), others[1])[0] for out in (got, expected)))


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_the_operator_forward_and_backward():
    leaves = [tensor.requires_grad_() for tensor in inputs()]
    with Seen() as seen:
        out = attend(*leaves, mask=SINKS, engine="native")
        grads = torch.autograd.grad(out.sum(), leaves)
    assert [name for name in seen.names if name.startswith("rearview")] == [
        "rearview::attention",
        "rearview::attention_backward",
    ]
    plain = attend(*leaves, mask=SINKS, engine="native")
    assert torch.equal(out, plain)
    for one, other in zip(grads, torch.autograd.grad(plain.sum(), leaves), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_fake_tensors(dropout: float):
    mask = causal() & window(3)
    with FakeTensorMode() as mode:
        query, key = (mode.from_tensor(tensor) for tensor in inputs()[:2])
        value = torch.empty(BATCH, HEADS, TIME, 7)
        out, lse = attend(query, key, value, mask=mask, dropout=dropout, return_lse=True, engine="native")
    assert out.shape == (BATCH, HEADS, TIME, 7)
    assert (lse.shape, lse.dtype) == ((BATCH, HEADS, TIME), torch.float32)
    # Nothing fake is left behind in the mask.
    torch.testing.assert_close(
        attend(*inputs(), mask=mask, engine="native"), attend(*inputs(), mask=mask, engine="reference")
    )


def test_a_subclass_of_tensor_is_taken():
    class Named(Tensor):
        pass

    tensors = [tensor.as_subclass(Named) for tensor in inputs()]
    assert torch.equal(attend(*tensors, engine="native").as_subclass(Tensor), attend(*inputs(), engine="native"))


def test_inference_mode():
    mask = causal() & window(3)
    with torch.inference_mode():
        got = attend(*inputs(), mask=mask, engine="native")
    leaves = [tensor.requires_grad_() for tensor in inputs()]
    out = attend(*leaves, mask=mask, engine="native")
    assert torch.equal(got, out)
    torch.autograd.grad(out.sum(), leaves)


def test_a_generator_in_a_graph_is_refused():
    generator = torch.Generator().manual_seed(1)
    torch.compiler.reset()
    run = torch.compile(lambda q, k, v: attend(q, k, v, dropout=0.4, generator=generator, engine="native"),
                        backend="aot_eager")  # fmt: skip
    with pytest.raises(Unsupported, match="a compiled graph cannot draw from a generator"):
        run(*inputs())
