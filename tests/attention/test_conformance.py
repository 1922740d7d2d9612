"""The contract of every engine, against the float64 reference: one grid that a new engine joins by one line.

On a CPU the flex engine runs uncompiled here (one kernel is compiled in test_flex.py); on a GPU, compiled.
"""

import itertools

import pytest
import torch
from torch import Tensor

from rearview import Unsupported, alibi, attend, causal, documents, padding, window
from rearview.attention.engines import ENGINES, flex
from rearview.masks import Frame
from tests.mask_families import FAMILIES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, HEADS, DIM, VALUE_DIM = 2, 4, 16, 16
LENGTHS = (1, 3, 63, 65, 129)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

# Largest difference from float64 on inputs of size 1, in units of the dtype's own resolution.
FORWARD_UNITS, GRADIENT_UNITS = 24, 120

engines = pytest.mark.parametrize("engine", list(ENGINES))
families = pytest.mark.parametrize("family", list(FAMILIES))
pytestmark = [
    # FlexAttention warns whoever runs it uncompiled in earnest.
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    # The compiler of torch 2.11 looks at .grad of tensors that are not leaves, and uses torch.jit itself.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning"),
]

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.fixture(autouse=True)
def uncompiled_on_cpu(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(flex, "_compiled", lambda function, device: function)


def draw(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


def inputs(length: int, dtype: torch.dtype, *, key_heads: int = HEADS, k_len: int | None = None) -> list[Tensor]:
    query = draw(BATCH, HEADS, length, DIM, dtype=dtype, seed=10)
    key = draw(BATCH, key_heads, k_len or length, DIM, dtype=dtype, seed=11)
    return [query, key, draw(BATCH, key_heads, k_len or length, VALUE_DIM, dtype=dtype, seed=12)]


def reference(query: Tensor, key: Tensor, value: Tensor, **options) -> Tensor:
    return attend(query.double(), key.double(), value.double(), engine="reference", **options)


def leaves(engine: str, tensors: list[Tensor]) -> list[Tensor]:
    """Tensors that need gradients, except for flex on a CPU, which is forward only: there at least that is held."""
    trains = engine != flex.name or DEVICE != "cpu"
    return [tensor.requires_grad_(trains) for tensor in tensors]


def run(engine: str, *tensors: Tensor, **options):
    """`attend`, or a skip when the engine says with reasons that it cannot: that is the contract too."""
    try:
        return attend(*tensors, engine=engine, **options)
    except Unsupported as refusal:
        if not refusal.reasons:
            raise
        pytest.skip(str(refusal))


def assert_close(came: Tensor, expected: Tensor, dtype: torch.dtype, units: int) -> None:
    assert came.dtype == dtype
    # Sums over the keys of values of size 1 grow like their square root at most.
    came, expected = came.detach().double(), expected.detach().double()
    limit = units * torch.finfo(dtype).eps * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(came, expected, rtol=0, atol=limit)


@engines
@families
@dtypes
def test_forward(engine, family, dtype):
    for length in LENGTHS:
        mask = FAMILIES[family](BATCH, HEADS, length)
        tensors = inputs(length, dtype)
        assert_close(run(engine, *tensors, mask=mask), reference(*tensors, mask=mask), dtype, FORWARD_UNITS)


@engines
@families
@dtypes
def test_gradients(engine, family, dtype):
    for length in LENGTHS:
        mask = FAMILIES[family](BATCH, HEADS, length)
        tensors = [tensor.requires_grad_() for tensor in inputs(length, dtype)]
        upcast = [tensor.detach().double().requires_grad_() for tensor in tensors]
        d_out = draw(BATCH, HEADS, length, VALUE_DIM, dtype=dtype, seed=13)
        came = torch.autograd.grad(run(engine, *tensors, mask=mask), tensors, d_out)
        expected = torch.autograd.grad(reference(*upcast, mask=mask), upcast, d_out.double())
        for grad, wanted in zip(came, expected, strict=True):
            assert_close(grad, wanted, dtype, GRADIENT_UNITS)


@engines
@families
@pytest.mark.parametrize("shape", [(BATCH, HEADS), (1, HEADS), (1, 1), (BATCH, 1)], ids=str)
def test_gradient_of_a_bias(engine, family, shape):
    length, dtype = 65, torch.float32
    mask = FAMILIES[family](BATCH, HEADS, length)
    tensors = [*inputs(length, dtype, key_heads=2), draw(*shape, length, length, dtype=dtype, seed=14)]
    tensors = leaves(engine, tensors)
    upcast = [tensor.detach().double().requires_grad_() for tensor in tensors]
    out = run(engine, *tensors[:3], mask=mask, bias=tensors[3])
    expected = reference(*upcast[:3], mask=mask, bias=upcast[3])
    assert_close(out, expected, dtype, FORWARD_UNITS)
    if not out.requires_grad:
        return
    d_out = draw(*out.shape, dtype=dtype, seed=15)
    came, wanted = torch.autograd.grad(out, tensors, d_out), torch.autograd.grad(expected, upcast, d_out.double())
    for grad, want in zip(came, wanted, strict=True):
        assert_close(grad, want, dtype, GRADIENT_UNITS)


@engines
@families
@pytest.mark.parametrize("steps", ["one by one", "in chunks"])
def test_cached_equals_uncached(engine, family, steps):
    length, dtype = 33, torch.float32
    mask = FAMILIES[family](BATCH, HEADS, length)
    # Queries stand at the last positions of the keys, so a mask that looks ahead hears less when less has been said.
    looks_back = mask & causal()
    query, key, value = inputs(length, dtype, key_heads=2)
    whole = run(engine, query, key, value, mask=looks_back)
    edges = range(length + 1) if steps == "one by one" else [0, 7, 8, 20, 33]
    for start, end in itertools.pairwise(edges):
        step = run(engine, query[:, :, start:end], key[:, :, :end], value[:, :, :end], mask=looks_back)
        assert_close(step, whole[:, :, start:end], dtype, FORWARD_UNITS)
        placed = run(engine, query[:, :, start:end], key, value, mask=mask, q_start=start)
        assert_close(placed, run(engine, query, key, value, mask=mask)[:, :, start:end], dtype, FORWARD_UNITS)


@engines
@families
@pytest.mark.parametrize("key_heads", [1, 2])
def test_fewer_key_heads(engine, family, key_heads):
    mask = FAMILIES[family](BATCH, HEADS, 65)
    query, key, value = inputs(65, torch.float32, key_heads=key_heads)
    repeated = [tensor.repeat_interleave(HEADS // key_heads, dim=1) for tensor in (key, value)]
    came = run(engine, query, key, value, mask=mask)
    assert_close(came, reference(query, *repeated, mask=mask), torch.float32, FORWARD_UNITS)


@engines
@families
def test_non_contiguous_inputs(engine, family):
    mask = FAMILIES[family](BATCH, HEADS, 65)
    tensors = inputs(65, torch.float32)
    # As a projection leaves them, [batch, time, heads, dim], and as every other feature of something wider.
    by_time = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors]
    sliced = [torch.stack([tensor, torch.full_like(tensor, torch.nan)], dim=-1)[..., 0] for tensor in tensors]
    expected = reference(*tensors, mask=mask)
    for strided in (by_time, sliced):
        assert not strided[0].is_contiguous()
        assert_close(run(engine, *strided, mask=mask), expected, torch.float32, FORWARD_UNITS)


@engines
@families
@dtypes
def test_a_row_that_hears_nothing_is_zero(engine, family, dtype):
    length = 33
    # The first two positions are blocked for everyone: row 0 and 1 of a mask that looks back hear nothing.
    mask = FAMILIES[family](BATCH, HEADS, length) & padding(torch.arange(length).expand(BATCH, -1) >= 2) & causal()
    tensors = leaves(engine, inputs(length, dtype))
    out = run(engine, *tensors, mask=mask)
    empty = ~mask.visible_in(Frame.of(length), torch.device(DEVICE)).any(-1)
    empty = empty.expand(BATCH, HEADS, length)
    assert bool(empty[:, :, :2].all())
    assert bool((out[empty] == 0).all())
    if not out.requires_grad:
        return
    grads = torch.autograd.grad(out.float().square().sum() + out.float().sum(), tensors)
    assert all(bool(grad.isfinite().all()) for grad in grads)
    assert bool((grads[0][empty] == 0).all())


@engines
@dtypes
def test_log_sum_exp(engine, dtype):
    mask = causal() & documents([0] * 20 + [1] * 45) & padding(torch.arange(65).expand(BATCH, -1) > 0)
    tensors = inputs(65, dtype)
    out, lse = run(engine, *tensors, mask=mask, return_lse=True)
    expected_out, expected = reference(*tensors, mask=mask, return_lse=True)
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert bool((lse[:, :, 0] == -torch.inf).all())
    torch.testing.assert_close(lse.double(), expected, rtol=1e-4, atol=1e-4)
    assert_close(out, expected_out, dtype, FORWARD_UNITS)


@engines
@families
@dtypes
def test_keys_that_nobody_hears_may_hold_anything(engine, family, dtype):
    length = 65
    hole = torch.ones(BATCH, length, dtype=torch.bool)
    hole[0, 5:9], hole[1, -3:] = False, False
    mask = FAMILIES[family](BATCH, HEADS, length) & padding(hole)
    clean = leaves(engine, inputs(length, dtype, key_heads=2))
    unheard = ~mask.visible_in(Frame.of(length), torch.device(DEVICE)).any(-2).expand(BATCH, HEADS, length)
    unheard = unheard.unflatten(1, (2, HEADS // 2)).all(2).unsqueeze(-1)
    assert bool(unheard.any())
    garbage = torch.tensor([torch.nan, torch.inf, -torch.inf], device=DEVICE, dtype=dtype).repeat(22)[:length, None]
    dirty = [clean[0], *leaves(engine, [torch.where(unheard, garbage, tensor).detach() for tensor in clean[1:]])]
    expected, came = (run(engine, *tensors, mask=mask) for tensors in (clean, dirty))
    assert torch.equal(came, expected)
    if not came.requires_grad:
        return
    wanted = torch.autograd.grad(expected.sum(), clean)
    grads = torch.autograd.grad(came.sum(), dirty)
    for grad, want in zip(grads, wanted, strict=True):
        assert torch.equal(grad, want)


@engines
@families
@dtypes
@pytest.mark.parametrize("size", ["large", "largest"])
def test_invisible_keys_change_nothing_bit_for_bit(engine, family, dtype, size):
    length = 65
    mask = FAMILIES[family](BATCH, HEADS, length)
    query, key, value = inputs(length, dtype, key_heads=2)
    visible = mask.visible_in(Frame.of(length), torch.device(DEVICE)).expand(BATCH, HEADS, length, length)
    expected = run(engine, query, key, value, mask=mask)
    other = 1e4 if size == "large" else torch.finfo(dtype).max
    for row in (0, 31, 64):
        # A key head serves two query heads: only what neither of them hears is changed.
        hidden = ~visible[:, :, row].unflatten(1, (2, 2)).any(2).unsqueeze(-1)
        signs = draw(*key.shape, dtype=dtype, seed=row).sign() * torch.full_like(key, other)
        changed = [torch.where(hidden, signs, tensor) for tensor in (key, value)]
        came = run(engine, query, *changed, mask=mask)
        assert torch.equal(came[:, :, row], expected[:, :, row])


@pytest.mark.parametrize("engine", ["reference", "blocks", "native"])
@families
def test_second_order(engine, family):
    mask = FAMILIES[family](1, 2, 5)
    tensors = [draw(1, 2, 5, 3, dtype=torch.float64, seed=seed).requires_grad_() for seed in range(3)]
    run(engine, *tensors, mask=mask)
    assert torch.autograd.gradgradcheck(lambda q, k, v: attend(q, k, v, mask=mask, engine=engine), tensors)


@engines
@pytest.mark.parametrize(
    "option",
    [{"scale": 0.3}, {"softcap": 1.5}, {"bias": "alibi"}, {"softcap": 1.5, "bias": "alibi", "scale": 2.0}],
    ids=str,
)
@pytest.mark.parametrize("family", ["causal", "sinks and window", "per head", "dilated", "padding left"])
def test_options(engine, family, option):
    option = option | ({"bias": alibi(HEADS)} if "bias" in option else {})
    mask = FAMILIES[family](BATCH, HEADS, 65)
    tensors = leaves(engine, inputs(65, torch.float32, key_heads=2))
    upcast = [tensor.detach().double().requires_grad_() for tensor in tensors]
    out, expected = run(engine, *tensors, mask=mask, **option), reference(*upcast, mask=mask, **option)
    assert_close(out, expected, torch.float32, FORWARD_UNITS)
    if not out.requires_grad:
        return
    d_out = draw(*out.shape, dtype=torch.float32, seed=16)
    came, wanted = torch.autograd.grad(out, tensors, d_out), torch.autograd.grad(expected, upcast, d_out.double())
    for grad, want in zip(came, wanted, strict=True):
        assert_close(grad, want, torch.float32, GRADIENT_UNITS)


@engines
def test_more_queries_than_keys(engine):
    query, key, value = inputs(12, torch.float32, k_len=7)
    out = run(engine, query, key, value, mask=causal())
    assert bool((out[:, :, :5] == 0).all())
    assert_close(out[:, :, 5:], reference(query[:, :, 5:], key, value), torch.float32, FORWARD_UNITS)


@engines
@pytest.mark.parametrize(("q_len", "k_len"), [(0, 4), (3, 0), (0, 0)])
def test_nothing_to_do(engine, q_len, k_len):
    query = draw(1, 2, q_len, 4, dtype=torch.float32, seed=1).requires_grad_()
    key = draw(1, 2, k_len, 4, dtype=torch.float32, seed=2)
    out = run(engine, query, key, key, mask=window(3))
    assert out.shape == query.shape
    assert bool((out == 0).all())
