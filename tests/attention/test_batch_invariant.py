"""Batch-invariant attention: the bits of a row, whatever else is computed with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rearview import (
    MaskedSelfAttention,
    PagedCache,
    Unsupported,
    alibi,
    attend,
    causal,
    documents,
    padding,
    plan,
    prefix,
    window,
)
from rearview.attention.engines import native
from rearview.attention.engines.native import kernel
from rearview.errors import BadArgument
from tests.native_kernel import needs_native

pytestmark = needs_native

LENGTH, HEADS, KEY_HEADS, DIM = 300, 8, 2, 32
MASKS = {
    "causal": causal(),
    "window": causal() & window(70),
    # Between the two ranges of a row lies less than a tile, and more.
    "first keys and a window": causal() & (prefix(3) | window(40)),
    "documents": causal() & documents(torch.arange(LENGTH) // 45),
}
OPTIONS = {
    "plain": {},
    "softcap": {"softcap": 2.0},
    "ALiBi": {"bias": alibi(HEADS)},
    "sinks": {"sinks": torch.linspace(-2, 2, HEADS)},
    "huge": {"scale": 300.0},
}
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16], ids=str)
masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
options = pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)


def inputs(batch: int, dtype: torch.dtype, key_heads: int = KEY_HEADS) -> list[Tensor]:
    make = torch.Generator().manual_seed(5)
    shapes = ((batch, heads, LENGTH, DIM) for heads in (HEADS, key_heads, key_heads))
    return [torch.randn(shape, generator=make).to(dtype) for shape in shapes]


def invariant(*tensors: Tensor, **asked) -> tuple[Tensor, Tensor]:
    return attend(*tensors, batch_invariant=True, return_lse=True, engine="native", **asked)


def assert_equal(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.fixture(params=native.isas() or ["none"])
def isa(request) -> Iterator[str]:
    native.force_isa(request.param)
    yield request.param
    native.force_isa(None)


@masks
@options
@dtypes
def test_at_once_in_chunks_and_one_by_one(isa, mask, option, dtype):
    chunks = list(itertools.pairwise([0, 1, 64, 65, 190, 299, 300]))
    steps = [(n, n + 1) for n in (0, 1, 2, 63, 64, 127, 128, 129, 200, 255, 256, 298, 299)]
    for key_heads in (1, KEY_HEADS, HEADS):
        query, key, value = inputs(1, dtype, key_heads)
        out, lse = invariant(query, key, value, mask=mask, **option)
        for start, end in chunks + steps:
            part = invariant(query[:, :, start:end], key[:, :, :end], value[:, :, :end], mask=mask, **option)
            assert_equal(part, (out[:, :, start:end], lse[:, :, start:end]))


@masks
@dtypes
def test_any_batch(mask, dtype):
    query, key, value = inputs(5, dtype)
    together = invariant(query, key, value, mask=mask)
    for items in ([0], [3], [4, 1], [2, 2, 2]):
        own = invariant(query[items], key[items], value[items], mask=mask)
        assert_equal(own, (together[0][items], together[1][items]))


@masks
@dtypes
def test_any_number_of_threads(monkeypatch, mask, dtype):
    monkeypatch.setattr(kernel, "FEW", 0)
    tensors = inputs(2, dtype)
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append((invariant(*tensors, mask=mask), invariant(tensors[0][:, :, -1:], *tensors[1:], mask=mask)))
    torch.set_num_threads(before)
    for whole, step in found[1:]:
        assert_equal(whole, found[0][0])
        assert_equal(step, found[0][1])


@masks
@options
@dtypes
def test_in_pages_and_not(mask, option, dtype):
    query, key, value = inputs(2, dtype)
    out, lse = invariant(query, key, value, mask=mask, **option)
    for block_size in (16, 50, 128):
        cache = PagedCache(
            batch=2, heads=KEY_HEADS, max_len=LENGTH, key_dim=DIM, block_size=block_size, num_blocks=60, dtype=dtype
        )
        for start, end in itertools.pairwise([0, 40, 41, 42, 170, 299, 300]):
            pools = cache.append(key[:, :, start:end], value[:, :, start:end])
            part = invariant(query[:, :, start:end], *pools, mask=mask, pages=cache.pages, **option)
            assert_equal(part, (out[:, :, start:end], lse[:, :, start:end]))


def test_items_of_unequal_length_and_a_shared_prefix():
    query, key, value = inputs(1, torch.float32)
    out, lse = invariant(query, key, value)
    cache = PagedCache(batch=1, heads=KEY_HEADS, max_len=LENGTH, key_dim=DIM, block_size=8, num_blocks=99)
    cache.append(key[:, :, :280], value[:, :, :280])
    cache.take([0] * 40)
    lengths = [40 + 6 * item for item in range(40)]
    cache.keep(lengths)
    items = [(key[:, :, n : n + 1], value[:, :, n : n + 1], query[:, :, n : n + 1]) for n in lengths]
    new_key, new_value, new_query = (torch.cat(each) for each in zip(*items, strict=True))
    got = invariant(new_query, *cache.append(new_key, new_value), pages=cache.pages)
    assert_equal(got, (out[0, :, lengths].transpose(0, 1).unsqueeze(2), lse[0, :, lengths].T.unsqueeze(2)))


def test_padding_and_unheard_keys_change_nothing():
    query, key, value = inputs(2, torch.bfloat16)
    expected = invariant(query[:, :, :200], key[:, :, :200], value[:, :, :200])
    key[:, :, 200:], value[:, :, 200:] = torch.nan, torch.nan
    got = invariant(query[:, :, :200], key, value, mask=causal() & padding([200, 200]), q_start=0)
    assert_equal(got, expected)


@dtypes
@options
@pytest.mark.parametrize("mask", [causal(), causal() & window(70), causal() & window(3)], ids=repr)
def test_a_step_in_a_cache_that_holds_anything_elsewhere(mask, option, dtype):
    query, key, value = inputs(1, dtype)
    for n in (0, 1, 2, 65, 127, 200, 299):
        expected = invariant(query[:, :, n : n + 1], key[:, :, : n + 1], value[:, :, : n + 1], mask=mask, **option)
        heard = mask.to_bool(1, LENGTH, q_start=n)[0].unsqueeze(-1)
        dirty = [each.masked_fill(~heard, torch.nan) for each in (key, value)]
        assert_equal(invariant(query[:, :, n : n + 1], *dirty, mask=mask, q_start=n, **option), expected)


def test_it_is_the_same_number_as_without_it():
    query, key, value = (x.double() for x in inputs(2, torch.float32))
    plain = attend(query, key, value, return_lse=True)
    for got, expected in zip(invariant(query, key, value), plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_with_gradients_and_in_a_graph_the_output_is_the_same():
    query, key, value = inputs(1, torch.float32)
    out, _ = invariant(query, key, value)
    leaves = [each.clone().requires_grad_() for each in (query, key, value)]
    assert torch.equal(invariant(*leaves)[0], out)
    run = torch.compile(lambda q, k, v: attend(q, k, v, batch_invariant=True), backend="eager", fullgraph=True)
    assert torch.equal(run(query, key, value), out)


def test_a_layer(monkeypatch):
    asked = []

    def watched(*tensors: Tensor, **given) -> Tensor:
        asked.append(given["batch_invariant"])
        return attend(*tensors, **given)

    monkeypatch.setattr(MaskedSelfAttention, "attend", staticmethod(watched))
    MaskedSelfAttention(16, 4, batch_invariant=True)(torch.randn(1, 5, 16))
    MaskedSelfAttention(16, 4)(torch.randn(1, 5, 16))
    assert asked == [True, False]


def test_who_refuses():
    query, key, value = inputs(1, torch.float32)
    made = plan(query, key, value, batch_invariant=True)
    assert made.engine == "native"
    order = "add up in an order that depends on the sizes"
    assert made.not_taken["reference"] == made.not_taken["blocks"] == f"cannot: its matrix products {order}"
    assert made.not_taken["sdpa"] == f"cannot: PyTorch's kernels {order}"
    assert "FlexAttention adds up in an order that depends on the sizes" in made.not_taken["flex"]
    with pytest.raises(Unsupported, match="engine 'blocks' cannot do this exactly:\n  - its matrix products add up"):
        attend(query, key, value, batch_invariant=True, engine="blocks")
    with pytest.raises(Unsupported, match="what its dropout drops depends on the place in the batch"):
        attend(query, key, value, batch_invariant=True, dropout=0.5, engine="native")
    with pytest.raises(Unsupported, match=r"no engine can do this exactly:\n  - native: what its dropout drops"):
        attend(query, key, value, batch_invariant=True, dropout=0.5)


def test_it_is_true_or_false():
    with pytest.raises(BadArgument, match=r"^batch_invariant: expected True or False, got 1\.$"):
        attend(*inputs(1, torch.float32), batch_invariant=1)  # pyright: ignore[reportArgumentType]
