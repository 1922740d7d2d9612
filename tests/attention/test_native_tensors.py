"""Tensors that are not what they seem: rows that overlap, numbers that memory does not hold, hooks, other devices."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rearview import Mask, attend, causal, full, window
from rearview.attention.engines.native.ranges import one_range
from rearview.errors import BadArgument
from tests.native_kernel import needs_native

pytestmark = needs_native

TIME, DIM = 12, 16
NEAR: Mask = causal() & window(5)


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inputs() -> list[Tensor]:
    return [draw(1, 2, TIME, DIM, seed=seed) for seed in (1, 2, 3)]


def gradients(tensors: list[Tensor], *, engine: str = "native", **options: Any) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    out = attend(*leaves[:3], engine=engine, **options)
    return [out.detach(), *torch.autograd.grad((out * draw(*out.shape, seed=4)).sum(), leaves)]


def assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "strides", [(1, 1, 1), (0, 1, 0), (0, 0, 1), (1, 0, 2), (0, 16, 1), (2, 2, 0), (0, 0, 0)], ids=str
)
def test_rows_that_overlap(strides: tuple[int, int, int]):
    # A result that lies as these do would not have the numbers of a row side by side.
    tensors = [draw(200, seed=seed).as_strided((2, 3, 5, DIM), (*strides, 1)) for seed in (1, 2, 3)]
    expected = gradients([tensor.contiguous() for tensor in tensors], engine="reference", mask=causal())
    assert_same(gradients(tensors, mask=causal()), expected)


def test_sliding_windows_of_one_signal():
    rows = draw(64, seed=1).unfold(0, 32, 1)[:8].view(1, 1, 8, 32)
    assert rows.stride()[2:] == (1, 1)
    assert_same(gradients([rows] * 3), gradients([rows.contiguous()] * 3, engine="reference"))


def test_numbers_that_are_negated_when_read():
    negated = draw(1, 2, TIME, TIME, seed=5, dtype=torch.complex64).conj().imag
    query, key, value = inputs()
    lazily = torch.ops.aten._neg_view(query)
    assert negated.is_neg()
    assert lazily.is_neg()
    got = attend(lazily, key, value, bias=negated, engine="native")
    expected = attend(-query, key, value, bias=negated.resolve_neg(), engine="reference")
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)

    leaf = query.clone().requires_grad_()
    out = attend(leaf, key, value, engine="native")
    (got,) = torch.autograd.grad(out, leaf, torch.ops.aten._neg_view(value), retain_graph=True)
    assert torch.equal(got, torch.autograd.grad(out, leaf, -value)[0])


def test_a_default_device_is_not_asked():
    one_range.cache_clear()
    mask = causal() & window(7)
    tensors = [*inputs(), draw(TIME, TIME, seed=6)]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    # Nothing can be computed there.
    with torch.device("meta"):
        out = attend(*leaves[:3], mask=mask, bias=leaves[3], dropout=0.5, engine="native")
        out.sum().backward()
        one = attend(tensors[0][:, :, :1], *tensors[1:3], mask=full(), engine="native")
        given = attend(*tensors[:3], mask=mask, engine="native")
    assert {each.device.type for each in (out, one, given)} == {"cpu"}
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)
    torch.testing.assert_close(given, attend(*tensors[:3], mask=mask, engine="reference"), rtol=0, atol=1e-5)
    torch.testing.assert_close(one, attend(tensors[0][:, :, :1], *tensors[1:3], mask=full(), engine="reference"),
                               rtol=0, atol=1e-5)  # fmt: skip


def test_what_hooks_hand_back_may_lie_otherwise():
    """Offloading and compression save tensors elsewhere; what comes back has the numbers, in whatever order."""

    def turned(tensor: Tensor) -> Tensor:
        axes = tuple(reversed(range(tensor.ndim)))
        return tensor.permute(axes).contiguous().permute(axes)

    expected = gradients(inputs(), mask=NEAR)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, turned):
        got = gradients(inputs(), mask=NEAR)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_no_heads():
    query, key = draw(2, 0, 5, 8, seed=1).requires_grad_(), draw(2, 1, 5, 8, seed=2).requires_grad_()
    out, lse = attend(query, key, key, engine="native", return_lse=True)
    assert (out.shape, lse.shape) == ((2, 0, 5, 8), (2, 0, 5))
    out.sum().backward()
    assert key.grad is not None
    assert not key.grad.any()


def test_tensors_that_are_no_rows_in_memory_are_refused():
    query = inputs()[0]
    for other in (query.to_sparse(), torch.nested.as_nested_tensor(list(query), layout=torch.jagged)):
        with pytest.raises(BadArgument, match=r"^query: expected a plain tensor, .*, got a (sparse_coo|nested) "):
            attend(other, other, other, engine="native")


def test_gradients_in_batches():
    leaves = [tensor.requires_grad_() for tensor in inputs()]
    out = attend(*leaves, mask=NEAR, engine="native")
    many = draw(3, *out.shape, seed=7)
    got = torch.autograd.grad(out, leaves, many, is_grads_batched=True, retain_graph=True)
    for number, d_out in enumerate(many):
        expected = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
        assert_same([each[number] for each in got], list(expected))
