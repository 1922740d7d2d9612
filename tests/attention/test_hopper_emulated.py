"""The numbers of the kernels for Hopper GPUs, and their barriers, without such a GPU: as threads on CPU tensors.

With as few processors as here, every program computes several blocks one after the other, which is where barriers go
wrong.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rearview import Mask, alibi, attend, causal, dilated, documents, padding, per_head, prefix, window
from rearview.attention.call import Call
from rearview.attention.engines.hopper import backward, kernel
from tests.attention import emulated_gluon
from tests.attention.emulated_gluon import Deadlock, NewValues, emulated_kernels

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None and not os.environ.get("CI"),
        reason="Triton, whose functions the kernels are, is not installed",
    ),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter has other functions"),
]

LENGTH = 330
MASKS: dict[str, Mask] = {
    "causal": causal(),
    "window": causal() & window(70),
    "documents": causal() & documents([each // 90 for each in range(LENGTH)]),
    "two ranges": (causal() & window(70)) | (causal() & prefix(3)),
    "bits": causal() & dilated(3),
    "per head": per_head([causal() & window(9), causal()]),
    "unheard": causal() & padding([200]),
    "deaf rows": prefix(40) & window(30),
}


def drawn(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def difference(found: Tensor, wanted: Tensor) -> float:
    assert bool(found.isfinite().all())
    return float((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-9))


def assert_same(mask: Mask, dim: int, value_dim: int | None = None, *, batch: int = 1, heads: int = 2, **given) -> None:
    """The output, the log-sum-exp and the gradients of both, against the definition in float64."""
    dtype, value_dim, key_heads = torch.float16, value_dim or dim, given.pop("key_heads", 1)
    q_len = given.pop("q_len", LENGTH)
    query, key, value, d_out = (
        drawn(batch, *shape, seed=seed, dtype=dtype)
        for seed, shape in enumerate(
            [(heads, q_len, dim), (key_heads, LENGTH, dim), (key_heads, LENGTH, value_dim), (heads, q_len, value_dim)]
        )
    )
    sinks = given.pop("sinks", None)
    call = Call.of(query, key, value, mask=mask, sinks=sinks, **given)
    tensors = (query, key, value, call.bias_tensor, sinks)
    out, lse = kernel.forward(tensors, call)
    d_lse = drawn(*lse.shape, seed=9, dtype=torch.float32)
    grads = backward.backward(tensors, call, out, lse, d_out, d_lse)
    leaves = [each.double().requires_grad_() for each in (query, key, value)]
    own = [] if sinks is None else [sinks.double().requires_grad_()]
    wide: dict[str, Any] = {name: each.double() if isinstance(each, Tensor) else each for name, each in given.items()}
    if own:
        wide["sinks"] = own[0]
    wanted, wanted_lse = attend(*leaves, mask=mask, engine="reference", return_lse=True, **wide)
    heard = wanted_lse.isfinite()
    assert torch.equal(lse.isfinite(), heard)
    torch.testing.assert_close(lse[heard].double(), wanted_lse[heard].detach(), rtol=1e-4, atol=1e-4)
    assert difference(out, wanted.detach()) < 1e-3
    finite = wanted_lse.masked_fill(~heard, 0)
    expected = torch.autograd.grad([wanted, finite], leaves + own, [d_out.double(), d_lse.double() * heard])
    for grad, want in zip([each for each in grads if each is not None], expected, strict=True):
        assert difference(grad, want) < 3e-3


@pytest.fixture(params=["fused", "apart"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    torch.use_deterministic_algorithms(request.param == "apart")
    with emulated_kernels(monkeypatch):
        yield request.param


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str, dim: int, way: str):
    assert_same(MASKS[mask], dim)


@pytest.mark.parametrize("dims", [(64, 128), (128, 64), (200, 200), (256, 64), (80, 80), (33, 33)], ids=str)
@pytest.mark.parametrize("mask", ["window", "two ranges", "bits"])
def test_head_dims(mask: str, dims: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    with emulated_kernels(monkeypatch):
        assert_same(MASKS[mask], *dims)


OPTIONS = {
    "softcap": {"softcap": 2.0},
    "alibi": {"bias": alibi(2)},
    "bias": {"bias": drawn(1, 2, LENGTH, LENGTH, seed=5, dtype=torch.float16)},
    "sinks": {"sinks": torch.tensor([0.5, -1.0])},
    "groups of heads": {"heads": 4, "key_heads": 2},
    "fewer queries": {"q_len": 150},
    "queries elsewhere": {"q_len": 150, "q_start": 40},
    "more queries than keys": {"q_len": 400},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("mask", ["window", "two ranges"])
def test_options(mask: str, option: str, way: str):
    assert_same(MASKS[mask], 64, **OPTIONS[option])


@pytest.mark.parametrize("reach", ["near", "middle", "far"])
@pytest.mark.parametrize("dim", [64, 128])
def test_tilings(reach: str, dim: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel, "reach_of", lambda *given: reach)
    with emulated_kernels(monkeypatch):
        for mask in ("causal", "two ranges", "bits"):
            assert_same(MASKS[mask], dim)


def test_every_item_has_documents_of_its_own(way: str):
    ids = [[each // 90 for each in range(LENGTH)], [each // 7 for each in range(LENGTH)]]
    assert_same(causal() & documents(ids), 64, batch=2)


class WithoutWaits(NewValues):
    """A kernel whose waits for some barrier are left out."""

    name = ""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        is_wait = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "wait"
        return ast.Pass() if is_wait and self.name in ast.unparse(call) else self.generic_visit(node)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["q_full", "k_full", "v_full", "k_empty", "v_empty", "q_empty", "told"])
def test_a_missing_wait_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    """The emulation finds what it is there to find, in the forward kernel."""
    monkeypatch.setattr(WithoutWaits, "name", name)
    monkeypatch.setattr(emulated_gluon, "NewValues", WithoutWaits)
    monkeypatch.setattr(emulated_gluon, "_emulated", {})
    monkeypatch.setattr(emulated_gluon, "PATIENCE_S", 2.0)

    def several_times() -> None:
        for _ in range(5):
            assert_same(MASKS["two ranges"], 64)

    with emulated_kernels(monkeypatch), pytest.raises((AssertionError, Deadlock, IndexError)):
        several_times()
