"""The contract of every engine, against the float64 reference: one grid that a new engine joins with one line.

An engine may refuse only what `REFUSALS` expects, with those reasons, and must then refuse it. On a CPU the flex engine
runs uncompiled here (some kernels are compiled in test_flex.py); on a GPU, compiled. The engine for Hopper GPUs takes
part where there is one (`make test-gpu`); that it refuses elsewhere is in test_hopper.py.
"""

import functools
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from rearview import Mask, Pages, Unsupported, alibi, attend, causal, documents, padding, window
from rearview.attention.call import Call
from rearview.attention.engines import ENGINES, decode, flex, hopper
from rearview.attention.engines.native import library
from rearview.masks import Frame
from tests.mask_families import FAMILIES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, HEADS, DIM, VALUE_DIM = 2, 4, 16, 16
LENGTHS = (1, 3, 63, 65, 129)
HAS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

# Largest difference from float64 on inputs of size 1, in units of the dtype's own resolution.
FORWARD_UNITS, GRADIENT_UNITS = 24, 120

families = pytest.mark.parametrize("family", list(FAMILIES))
# For an engine that refuses a call for any mask, a few masks show that it gives its reasons.
FEW_FAMILIES = ("causal", "dilated", "per head", "padding left")
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
        # Even uncompiled, FlexAttention traces every new shape and mask. Untraced, it runs the same operator.
        monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        # FlexAttention vmaps a mask_mod over each axis, which takes most of the time here. Ours broadcast too, and
        # `test_forward` vmaps them.
        monkeypatch.setattr(flex_attention, "_vmap_for_bhqkv", broadcasting)


def broadcasting(mod: Callable[..., Tensor], prefix: tuple[int, ...], suffix: tuple[None, ...] = ()):
    """A score_mod or mask_mod on index tensors [batch, 1, 1, 1], [heads, 1, 1], [query, 1] and [key]."""

    def called(*arguments: Tensor) -> Tensor:
        score, (b, h, q_idx, kv_idx, *others) = arguments[: len(prefix)], arguments[len(prefix) :]
        assert len(others) == len(suffix)
        indices = b.view(-1, 1, 1, 1), h.view(-1, 1, 1), q_idx.view(-1, 1), kv_idx
        shape = torch.broadcast_shapes(*(index.shape for index in indices))
        return mod(*score, *indices, *others).expand(shape)

    return called


VMAP = flex_attention._vmap_for_bhqkv


@pytest.fixture
def vmapped(uncompiled_on_cpu, monkeypatch):
    monkeypatch.setattr(flex_attention, "_vmap_for_bhqkv", VMAP)


@pytest.fixture
def traced(vmapped, monkeypatch):
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)


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


def native_refuses(call: Call) -> list[str]:
    if library.MISSING is not None:
        return [library.MISSING]
    if DEVICE != "cpu":
        return [f"it is a CPU kernel, and the tensors are on {DEVICE}"]
    expected = {
        "the mask has no range form, and ranges are all that it reads of one": not call.mask.has_ranges,
        "it has no gradients through pages": call.pages is not None and call.needs_grad,
    }
    return [reason for reason, holds in expected.items() if holds]


def decode_refuses(call: Call) -> list[str]:
    """On a CPU it refuses everything; test_decode.py runs it in the interpreter of Triton."""
    if DEVICE == "cpu":
        return ["it is a kernel for NVIDIA GPUs, and the tensors are on cpu"]
    expected = {
        "it has no backward pass": call.needs_grad,
        "the mask has no range form, and ranges are all that it reads of one": not call.mask.has_ranges,
        "it has no float64 kernel": call.query.dtype == torch.float64,
    }
    return [reason for reason, holds in expected.items() if holds]


def products_refuse(call: Call) -> list[str]:
    return ["its matrix products add up in an order that depends on the sizes"] if call.batch_invariant else []


def blocks_refuses(call: Call) -> list[str]:
    return (["it does not read pages"] if call.pages else []) + products_refuse(call)


def flex_refuses(call: Call) -> list[str]:
    per_key_head = call.frame.q_len * call.queries_per_key_head
    expected = {
        "it does not read pages": call.pages is not None,
        "FlexAttention adds up in an order that depends on the sizes": call.batch_invariant,
        "FlexAttention on a CPU is forward only": DEVICE == "cpu" and call.needs_grad,
        "FlexAttention does not compile at every size with a bias that needs gradients": (
            isinstance(call.bias, Tensor) and call.bias.requires_grad
        ),
        "FlexAttention on a CPU does not return the log-sum-exp": (
            DEVICE == "cpu" and (call.return_lse or call.sinks is not None)
        ),
        "FlexAttention has no float64 kernel": call.query.dtype == torch.float64,
        f"FlexAttention does not compile for {per_key_head} short queries per key head": (
            DEVICE != "cpu" and call.frame.q_len < 128 < per_key_head
        ),
    }
    return [reason for reason, holds in expected.items() if holds]


def hopper_refuses(call: Call) -> list[str]:
    dtype = str(call.query.dtype).removeprefix("torch.")
    expected = {
        "it does not read pages": call.pages is not None,
        f"its kernels are for bfloat16 and float16, and the tensors are {dtype}": (
            call.query.dtype not in (torch.bfloat16, torch.float16)
        ),
        "it has no gradient of a bias": isinstance(call.bias, Tensor) and call.bias.requires_grad,
    }
    return [reason for reason, holds in expected.items() if holds]


def sdpa_refuses(call: Call) -> list[str]:
    expected = {
        "it does not read pages": call.pages is not None,
        "PyTorch's kernels add up in an order that depends on the sizes": call.batch_invariant,
        "it does not return the log-sum-exp": call.return_lse or call.sinks is not None,
        "it has no softcap": call.softcap is not None,
    }
    reasons = [reason for reason, holds in expected.items() if holds]
    if call.pages is not None:
        return reasons
    # The grid has ordinary numbers and the largest ones of a dtype, and nothing in between that could overflow.
    heard = call.visible().any(-2).expand(call.batch, call.heads, -1)
    heard = heard.unflatten(1, (call.key_heads, call.queries_per_key_head)).any(2)
    largest = any(bool((each[heard].abs() == torch.finfo(each.dtype).max).any()) for each in (call.key, call.value))
    added = call.needs_dense_mask or (
        DEVICE != "cpu" and call.query.dtype in (torch.float32, torch.float64) and not call.hears_everything
    )
    if not reasons and largest and added and call.query.dtype != torch.float16:
        reasons.append("inputs this large can overflow to inf at keys that the mask forbids, and inf x 0 is NaN")
    return reasons


# What each engine refuses in this grid, written down apart from the engines. An engine that is not here refuses none.
REFUSALS: dict[str, Callable[[Call], list[str]]] = {
    "native": native_refuses,
    "hopper": hopper_refuses,
    "decode": decode_refuses,
    "flex": flex_refuses,
    "sdpa": sdpa_refuses,
    "blocks": blocks_refuses,
    "reference": products_refuse,
}


class Refused(Exception):
    """The engine has refused a call, as expected: there is nothing more to hold it to."""


def run(engine: str, *tensors: Tensor, **options):
    """`attend`; or, where a refusal is expected, a check that the engine gives exactly the expected reasons."""
    expected = REFUSALS[engine](Call.of(*tensors, **options)) if engine in REFUSALS else []
    try:
        out, reasons = attend(*tensors, engine=engine, **options), []
    except Unsupported as refusal:
        out, reasons = None, list(refusal.reasons)
    if out is None:
        assert reasons == expected
        raise Refused
    assert expected == [], "the engine has computed what it was expected to refuse"
    return out


def ends_where_refused(test: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(test)
    def held(*arguments, **parameters):
        try:
            test(*arguments, **parameters)
        except Refused:
            return

    return held


def engines(test: Callable[..., None]) -> Callable[..., None]:
    """Decorator: the test for every engine, until it refuses as expected."""
    here = [name for name in ENGINES if name != hopper.name or HAS_HOPPER]
    return pytest.mark.parametrize("engine", here)(ends_where_refused(test))


def engines_and_families(*, refused_by: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: the test for every engine with every family, but with a few for an engine that refuses them all."""
    refusing = {*refused_by, *((decode.name,) if DEVICE == "cpu" else ())}
    grid = [
        (engine, family)
        for engine in ENGINES
        if engine != hopper.name or HAS_HOPPER
        for family in (FEW_FAMILIES if engine in refusing else FAMILIES)
    ]

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def held(engine: str, *arguments, **parameters):
            try:
                test(engine, *arguments, **parameters)
            except Refused:
                return
            assert engine not in refusing, "it computes what it was said to refuse: test it with every family"

        return pytest.mark.parametrize(("engine", "family"), grid)(held)

    return decorated


# What refuses every call of a kind on a CPU; on a GPU the tables above decide.
FORWARD_ONLY = (flex.name,) if DEVICE == "cpu" else ()
NO_LSE = ("sdpa", *FORWARD_ONLY)


def assert_close(got: Tensor, expected: Tensor, dtype: torch.dtype, units: int) -> None:
    assert got.dtype == dtype
    # Sums over the keys of values of size 1 grow like their square root at most.
    got, expected = got.detach().double(), expected.detach().double()
    limit = units * torch.finfo(dtype).eps * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(got, expected, rtol=0, atol=limit)


def assert_close_with_gradients(
    out: Tensor, expected: Tensor, tensors: list[Tensor], upcast: list[Tensor], dtype: torch.dtype
) -> None:
    """The output, and the gradients of the tensors where the engine has them."""
    assert_close(out, expected, dtype, FORWARD_UNITS)
    if not out.requires_grad:
        return
    d_out = draw(*out.shape, dtype=dtype, seed=15)
    got, wanted = torch.autograd.grad(out, tensors, d_out), torch.autograd.grad(expected, upcast, d_out.double())
    for grad, want in zip(got, wanted, strict=True):
        assert_close(grad, want, dtype, GRADIENT_UNITS)


@engines_and_families()
@dtypes
@pytest.mark.usefixtures("vmapped")
def test_forward(engine, family, dtype):
    for length in LENGTHS:
        mask = FAMILIES[family](BATCH, HEADS, length)
        tensors = inputs(length, dtype)
        assert_close(run(engine, *tensors, mask=mask), reference(*tensors, mask=mask), dtype, FORWARD_UNITS)


@engines_and_families(refused_by=FORWARD_ONLY)
@dtypes
def test_gradients(engine, family, dtype):
    for length in LENGTHS:
        mask = FAMILIES[family](BATCH, HEADS, length)
        tensors = [tensor.requires_grad_() for tensor in inputs(length, dtype)]
        upcast = [tensor.detach().double().requires_grad_() for tensor in tensors]
        d_out = draw(BATCH, HEADS, length, VALUE_DIM, dtype=dtype, seed=13)
        got = torch.autograd.grad(run(engine, *tensors, mask=mask), tensors, d_out)
        expected = torch.autograd.grad(reference(*upcast, mask=mask), upcast, d_out.double())
        for grad, wanted in zip(got, expected, strict=True):
            assert_close(grad, wanted, dtype, GRADIENT_UNITS)


@engines_and_families()
@pytest.mark.parametrize("shape", [(BATCH, HEADS), (1, HEADS), (1, 1), (BATCH, 1)], ids=str)
def test_gradient_of_a_bias(engine, family, shape):
    length, dtype = 65, torch.float32
    mask = FAMILIES[family](BATCH, HEADS, length)
    tensors = [*inputs(length, dtype, key_heads=2), draw(*shape, length, length, dtype=dtype, seed=14)]
    tensors = leaves(engine, tensors)
    upcast = [tensor.detach().double().requires_grad_() for tensor in tensors]
    out = run(engine, *tensors[:3], mask=mask, bias=tensors[3])
    expected = reference(*upcast[:3], mask=mask, bias=upcast[3])
    assert_close_with_gradients(out, expected, tensors, upcast, dtype)


def with_sinks(query: Tensor, key: Tensor, value: Tensor, *, mask: Mask, sinks: Tensor) -> Tensor:
    """The definition: a sink is one more column of scores, which no value belongs to."""
    out, lse = attend(query, key, value, mask=mask, engine="reference", return_lse=True)
    columns = torch.stack([lse, sinks.view(1, -1, 1).expand_as(lse)], dim=-1)
    return out * columns.softmax(-1)[..., :1]


@engines_and_families(refused_by=NO_LSE)
@dtypes
def test_sinks(engine, family, dtype):
    length = 65
    mask = FAMILIES[family](BATCH, HEADS, length)
    tensors = [*inputs(length, dtype, key_heads=2), draw(HEADS, dtype=dtype, seed=18)]
    tensors = leaves(engine, tensors)
    upcast = [tensor.detach().double().requires_grad_() for tensor in tensors]
    out = run(engine, *tensors[:3], mask=mask, sinks=tensors[3])
    expected = with_sinks(*upcast[:3], mask=mask, sinks=upcast[3])
    assert_close_with_gradients(out, expected, tensors, upcast, dtype)


@engines_and_families()
@pytest.mark.parametrize("steps", ["one by one", "in chunks"])
def test_cached_equals_uncached(engine, family, steps):
    length, dtype = 33, torch.float32
    mask = FAMILIES[family](BATCH, HEADS, length)
    # Queries stand at the last positions of the keys, so a mask that looks ahead hears less when less has been said.
    looks_back = mask & causal()
    query, key, value = inputs(length, dtype, key_heads=2)
    whole, ahead = (run(engine, query, key, value, mask=each) for each in (looks_back, mask))
    # Uncompiled, FlexAttention takes as long for one step as other engines take for all of them.
    every = 8 if engine == flex.name and DEVICE == "cpu" else 1
    ones = list(itertools.pairwise(range(length + 1)))[::every]
    for start, end in ones if steps == "one by one" else [(0, 7), (7, 8), (8, 20), (20, 33)]:
        step = run(engine, query[:, :, start:end], key[:, :, :end], value[:, :, :end], mask=looks_back)
        assert_close(step, whole[:, :, start:end], dtype, FORWARD_UNITS)
        placed = run(engine, query[:, :, start:end], key, value, mask=mask, q_start=start)
        assert_close(placed, ahead[:, :, start:end], dtype, FORWARD_UNITS)


@engines_and_families(refused_by=("flex", "sdpa", "blocks"))
@pytest.mark.parametrize("q_len", [1, 5, 65])
@dtypes
def test_pages(engine, family, q_len, dtype):
    # A pool in which the blocks of the items are mixed, with one block that holds NaN.
    length, size = 65, 16
    mask = FAMILIES[family](BATCH, HEADS, length)
    query, key, value = inputs(length, dtype, key_heads=2)
    order = torch.randperm(5 * BATCH + 1, generator=torch.Generator().manual_seed(17)).to(DEVICE)
    pools = []
    for tensor in (key, value):
        padded = torch.nn.functional.pad(tensor, (0, 0, 0, 5 * size - length), value=torch.nan)
        by_block = padded.unflatten(2, (5, size)).transpose(1, 2).flatten(0, 1)
        pool = torch.full((len(order), *by_block.shape[1:]), torch.nan, dtype=dtype, device=DEVICE)
        pool[order[:-1]] = by_block
        pools.append(pool)
    pages = Pages(order[:-1].view(BATCH, 5), [length] * BATCH)
    got = run(engine, query[:, :, -q_len:], *pools, mask=mask, pages=pages)
    assert_close(got, reference(query[:, :, -q_len:], key, value, mask=mask), dtype, FORWARD_UNITS)


@engines_and_families(refused_by=("flex", "sdpa", "blocks", "reference"))
@dtypes
def test_batch_invariant(engine, family, dtype):
    length = 65
    mask = FAMILIES[family](BATCH, HEADS, length)
    query, key, value = inputs(length, dtype, key_heads=2)
    whole = run(engine, query, key, value, mask=mask, batch_invariant=True)
    assert_close(whole, reference(query, key, value, mask=mask), dtype, FORWARD_UNITS)
    for start, end in [(0, 1), (1, 40), (40, 41), (41, 64), (64, 65)]:
        part = run(engine, query[:, :, start:end], key, value, mask=mask, q_start=start, batch_invariant=True)
        assert torch.equal(part, whole[:, :, start:end])


@engines_and_families()
@pytest.mark.parametrize("key_heads", [1, 2])
def test_fewer_key_heads(engine, family, key_heads):
    mask = FAMILIES[family](BATCH, HEADS, 65)
    query, key, value = inputs(65, torch.float32, key_heads=key_heads)
    repeated = [tensor.repeat_interleave(HEADS // key_heads, dim=1) for tensor in (key, value)]
    got = run(engine, query, key, value, mask=mask)
    assert_close(got, reference(query, *repeated, mask=mask), torch.float32, FORWARD_UNITS)


@engines_and_families()
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


@engines_and_families()
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


@engines_and_families()
@dtypes
def test_keys_that_no_query_hears_may_hold_anything(engine, family, dtype):
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
    expected, got = (run(engine, *tensors, mask=mask) for tensors in (clean, dirty))
    assert torch.equal(got, expected)
    if not got.requires_grad:
        return
    wanted = torch.autograd.grad(expected.sum(), clean)
    grads = torch.autograd.grad(got.sum(), dirty)
    for grad, want in zip(grads, wanted, strict=True):
        assert torch.equal(grad, want)


@engines_and_families()
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
        got = run(engine, query, *changed, mask=mask)
        assert torch.equal(got[:, :, row], expected[:, :, row])


@pytest.mark.parametrize("engine", ["reference", "blocks", "native"])
@families
@ends_where_refused
def test_second_order(engine, family):
    mask = FAMILIES[family](1, 2, 5)
    # Numerical derivatives of every input: the smallest head dim that has something to sum over.
    tensors = [draw(1, 2, 5, 2, dtype=torch.float64, seed=seed).requires_grad_() for seed in range(3)]
    run(engine, *tensors, mask=mask)
    # In fast mode random projections of the Jacobians are compared instead of all their elements.
    assert torch.autograd.gradgradcheck(
        lambda q, k, v: attend(q, k, v, mask=mask, engine=engine), tensors, fast_mode=True
    )


@engines
@pytest.mark.parametrize(
    "option",
    [
        {"scale": 0.3},
        {"scale": 0.0},
        {"scale": -0.3},
        {"softcap": 1.5},
        {"bias": "alibi"},
        {"softcap": 1.5, "bias": "alibi", "scale": 2.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["causal", "sinks and window", "per head", "dilated", "padding left"])
@pytest.mark.usefixtures("traced")
def test_options(engine, family, option):
    option = option | ({"bias": alibi(HEADS)} if "bias" in option else {})
    mask = FAMILIES[family](BATCH, HEADS, 65)
    tensors = leaves(engine, inputs(65, torch.float32, key_heads=2))
    upcast = [tensor.detach().double().requires_grad_() for tensor in tensors]
    out, expected = run(engine, *tensors, mask=mask, **option), reference(*upcast, mask=mask, **option)
    assert_close_with_gradients(out, expected, tensors, upcast, torch.float32)


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
