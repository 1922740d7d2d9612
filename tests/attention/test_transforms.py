"""torch.compile, autocast and torch.func: they change nothing where they work, and raise elsewhere."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, jacrev, jvp, vmap

from rearview import (
    Mask,
    MaskedSelfAttention,
    Unsupported,
    alibi,
    attend,
    causal,
    chunks,
    dilated,
    documents,
    full,
    padding,
    per_head,
    plan,
    prefix,
    weights,
    window,
)
from rearview.masks.lagged import lagged
from tests.native_kernel import NATIVE, needs_native

BATCH, HEADS, TIME, DIM = 2, 2, 9, 4

SINKS = (causal() & window(3)) | prefix(1)
PACKED = causal() & documents([0] * 4 + [1] * 5)
PADDED = causal() & padding([TIME, 4])
EACH_HEAD = per_head([causal(), window(2)])
EMPTY_ROWS = causal() & ~prefix(2)
NO_RANGES = causal() & dilated(2)
UNEVEN = lagged(causal() | prefix([1, 4]), [0, 3])
CHUNKED = chunks(4) & padding(torch.tensor([[True] * 9, [False] * 3 + [True] * 6]))


def in_native(mask: Mask):
    return pytest.param("native", mask, marks=needs_native)


# The compiler of torch warns about its own parts; functorch about kernels that it has to run in a loop.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented:UserWarning"),
]


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(*leading: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [draw(*leading, BATCH, HEADS, TIME, DIM, seed=seed, dtype=dtype) for seed in (1, 2, 3)]


def with_gradients(function: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Output and gradients of a sum of squares."""
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    out = function(*tensors)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), tensors)]


def assert_same(got: list[Tensor], expected: list[Tensor], atol: float = 1e-6) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


# torch.compile: traced and differentiated by the compiler, run by plain PyTorch, which takes a tenth of the time.


def compiled(function: Callable[..., Tensor], *, whole: bool) -> Callable[..., Tensor]:
    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=whole)


@pytest.mark.parametrize(
    ("engine", "mask"),
    [
        *(("reference", mask) for mask in (causal(), SINKS, PADDED, NO_RANGES)),
        *(("sdpa", mask) for mask in (causal(), SINKS, EACH_HEAD, EMPTY_ROWS)),
        *(("auto", mask) for mask in (causal(), SINKS, PACKED)),
        *(in_native(mask) for mask in (causal(), SINKS, PACKED, PADDED, EACH_HEAD, EMPTY_ROWS, UNEVEN, CHUNKED)),
    ],
    ids=str,
)
def test_one_graph(engine: str, mask: Mask):
    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, mask=mask, engine=engine)

    assert_same(with_gradients(compiled(run, whole=True), inputs()), with_gradients(run, inputs()))


@pytest.mark.parametrize("mask", [causal(), SINKS, PADDED, NO_RANGES], ids=str)
def test_blocks_breaks_the_graph_and_continues(mask: Mask):
    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query * 2, key, value, mask=mask, engine="blocks") + 1

    assert_same(with_gradients(compiled(run, whole=False), inputs()), with_gradients(run, inputs()))


def test_a_mask_may_be_made_inside():
    ids = torch.tensor([0] * 4 + [1] * 5)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, mask=causal() & documents(ids), bias=alibi(HEADS))

    assert_same(with_gradients(compiled(run, whole=True), inputs()), with_gradients(run, inputs()))


def test_a_compiled_call_leaves_no_traced_tensors():
    mask = causal() & window(3)
    run = compiled(lambda q, k, v: attend(q, k, v, mask=mask, engine="reference"), whole=True)
    tensors = inputs()
    expected = run(*tensors)
    # The mask remembers the ranges of its frames: those of a plain call must be real tensors.
    assert mask.spans(TIME).rows()[5] == [(3, 6)]
    torch.testing.assert_close(attend(*tensors, mask=mask, engine="blocks"), expected)


def test_a_layer_in_one_graph():
    layer = MaskedSelfAttention(8, 2, mask=causal() & window(4))
    x = draw(2, 7, 8, seed=4)
    torch.testing.assert_close(compiled(layer, whole=True)(x), layer(x))


# autocast.


@pytest.mark.parametrize(
    ("engine", "mask"),
    [
        *(
            (engine, mask)
            for engine in ("reference", "sdpa", "blocks", "auto")
            for mask in (causal(), SINKS, NO_RANGES)
        ),
        *(in_native(mask) for mask in (causal(), SINKS)),
    ],
    ids=str,
)
def test_autocast_is_the_same_as_casting(engine: str, mask: Mask):
    tensors = inputs()

    def cast(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        halves = (tensor.bfloat16() for tensor in (query, key, value))
        return attend(*halves, mask=mask, engine=engine)

    def autocast(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return attend(query, key, value, mask=mask, engine=engine)

    got = with_gradients(autocast, tensors)
    assert [tensor.dtype for tensor in got] == [torch.bfloat16] + [torch.float32] * 3
    assert_same(got, with_gradients(cast, tensors))
    exact = with_gradients(lambda q, k, v: attend(q, k, v, mask=mask, engine="reference"), inputs(dtype=torch.float64))
    for one, other in zip(got, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0.03, atol=0.06)


@pytest.mark.parametrize("engine", ["reference", "blocks", NATIVE])
def test_autocast_keeps_sums_in_single_precision(engine: str):
    tensors = inputs()
    halves = [tensor.bfloat16() for tensor in tensors]
    expected = attend(*halves, return_lse=True, engine=engine)
    with torch.autocast("cpu", torch.bfloat16):
        got = attend(*tensors, return_lse=True, engine=engine)
        seen = weights(*tensors[:2])
    assert_same(list(got), list(expected))
    assert got[1].dtype == seen.dtype == torch.float32
    assert torch.equal(seen, weights(*halves[:2]))


def test_autocast_takes_mixed_dtypes_and_leaves_float64_alone():
    query, key, value = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(query, key.bfloat16(), value.half()).dtype == torch.bfloat16
        assert attend(query.double(), key.double(), value.double()).dtype == torch.float64


# torch.func.

UNBATCHED = (causal(), full(), SINKS, EACH_HEAD)
# Masks that native cannot take are left out for it.
functional = pytest.mark.parametrize(
    ("engine", "mask"),
    [
        *((engine, mask) for engine in ("reference", "blocks") for mask in (*UNBATCHED, NO_RANGES)),
        *(in_native(mask) for mask in UNBATCHED),
    ],
    ids=str,
)


def loss(engine: str, mask: Mask) -> Callable[..., Tensor]:
    return lambda query, key, value: attend(query, key, value, mask=mask, engine=engine).square().sum()


@functional
def test_grad(engine: str, mask: Mask):
    got = grad(loss(engine, mask), argnums=(0, 1, 2))(*inputs())
    expected = with_gradients(lambda q, k, v: attend(q, k, v, mask=mask, engine="reference"), inputs())
    assert_same(list(got), expected[1:], atol=1e-5)


@functional
def test_jacobian_and_hessian(engine: str, mask: Mask):
    query, key, value = (tensor[:1, :, :4] for tensor in inputs(dtype=torch.float64))

    def run(query: Tensor, key: Tensor, engine: str = engine) -> Tensor:
        return attend(query, key, value, mask=mask, engine=engine)

    def one(query: Tensor, engine: str = engine) -> Tensor:
        return run(query, key, engine).square().sum()

    for got, expected in zip(
        (*jacrev(run, argnums=(0, 1))(query, key), jacrev(jacrev(one))(query)),
        (
            *torch.autograd.functional.jacobian(lambda q, k: run(q, k, "reference"), (query, key)),
            torch.autograd.functional.hessian(lambda q: one(q, "reference"), query),
        ),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


@functional
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (1, None, 2)], ids=str)
def test_vmap(engine: str, mask: Mask, in_dims: tuple[int | None, ...]):
    many = inputs(3)
    mapped = [x[0] if dim is None else x.movedim(0, dim) for x, dim in zip(many, in_dims, strict=True)]
    got = vmap(lambda q, k, v: attend(q, k, v, mask=mask, engine=engine), in_dims=in_dims)(*mapped)
    for index, one in enumerate(got):
        alone = [x[0] if dim is None else x[index] for x, dim in zip(many, in_dims, strict=True)]
        torch.testing.assert_close(one, attend(*alone, mask=mask, engine="reference"))


@functional
def test_vmap_of_grad(engine: str, mask: Mask):
    many = inputs(3)
    got = vmap(grad(loss(engine, mask), argnums=(0, 1, 2)))(*many)
    for index in range(3):
        expected = grad(loss("reference", mask), argnums=(0, 1, 2))(*(x[index] for x in many))
        assert_same([found[index] for found in got], list(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "bias"),
    [(PADDED, None), (causal(), draw(TIME, TIME, seed=5))],
    ids=["a mask for each item", "a bias"],
)
@pytest.mark.parametrize("engine", ["blocks", NATIVE])
def test_vmap_that_cannot_be_done_is_refused(engine: str, mask: Mask, bias: Tensor | None):
    many = inputs(3)
    with pytest.raises(Unsupported, match=rf"(?s)^vmap over engine '{engine}':.*use engine='reference'"):
        vmap(lambda q, k, v: attend(q, k, v, mask=mask, bias=bias, engine=engine))(*many)
    # The engine that the message names can.
    got = vmap(lambda q, k, v: attend(q, k, v, mask=mask, bias=bias, engine="reference"))(*many)
    alone = attend(*(x[1] for x in many), mask=mask, bias=bias, engine="reference")
    torch.testing.assert_close(got[1], alone)


@pytest.mark.parametrize("engine", ["blocks", "sdpa", NATIVE])
def test_forward_mode_derivatives(engine: str):
    query, key, value = inputs(dtype=torch.float64)
    tangent = draw(*query.shape, seed=6, dtype=torch.float64)
    refused = (
        rf"(?s)^engine '{engine}' cannot do this exactly:.*it has no forward-mode derivatives\nengine='auto' chooses"
    )
    with pytest.raises(Unsupported, match=refused):
        jvp(lambda q: attend(q, key, value, engine=engine), (query,), (tangent,))
    with forward_ad.dual_level(), pytest.raises(Unsupported, match=refused):
        attend(forward_ad.make_dual(query, tangent), key, value, engine=engine)
    with forward_ad.dual_level():
        # Without a tangent there is nothing to refuse.
        assert torch.equal(attend(query, key, value, engine=engine), attend(query, key, value, engine=engine))


@pytest.mark.parametrize("mask", [causal(), causal() & window(3), dilated(2)], ids=str)
def test_auto_takes_the_reference_for_forward_mode_derivatives(mask: Mask):
    query, key, value = inputs(dtype=torch.float64)
    tangent = draw(*query.shape, seed=6, dtype=torch.float64)
    step = 1e-6 * tangent
    difference = attend(query + step, key, value, mask=mask) - attend(query - step, key, value, mask=mask)
    got = jvp(lambda q: attend(q, key, value, mask=mask), (query,), (tangent,))[1]
    torch.testing.assert_close(got, difference / 2e-6, rtol=1e-6, atol=1e-8)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(query, tangent)
        assert plan(dual, key, value, mask=mask).reason == "it alone has forward-mode derivatives"
        torch.testing.assert_close(forward_ad.unpack_dual(attend(dual, key, value, mask=mask)).tangent, got)

    def total(factor: Tensor, engine: str) -> Tensor:
        return attend(factor * query, key, value, mask=mask, engine=engine).square().sum()

    one = torch.ones((), dtype=torch.float64)
    second = torch.func.hessian(lambda factor: total(factor, "auto"))(one)
    torch.testing.assert_close(second, torch.func.hessian(lambda factor: total(factor, "reference"))(one))
