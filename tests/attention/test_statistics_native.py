"""The pass by the C++ kernel: every instruction set, layout and number of threads, and when it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from rearview import Mask, alibi, causal, documents, full, prefix, where, window
from rearview.attention import Statistics, statistics
from rearview.attention.call import Call
from rearview.attention.engines import native
from rearview.attention.stats import native as native_pass
from tests.attention.full_matrix import FullMatrix
from tests.native_kernel import needs_native

pytestmark = needs_native

SINKS = causal() & (window(9) | prefix(2))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernel on any machine."""
    monkeypatch.setattr(native.library, "IS_FAST", True)


@pytest.fixture(params=native.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    native.force_isa(request.param)
    yield request.param
    native.force_isa(None)


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def qk(length: int, dim: int, dtype: torch.dtype = torch.float32, heads: int = 4) -> tuple[Tensor, Tensor]:
    return draw(2, heads, length, dim, dtype=dtype, seed=1), draw(2, 2, length, dim, dtype=dtype, seed=2)


def everything(seen: Statistics) -> list[Tensor]:
    fields = [getattr(seen, name) for name in Statistics.__dataclass_fields__]
    return [each for each in fields if isinstance(each, Tensor)] + [seen.links.weight, seen.links.query, seen.links.key]


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("mask", [causal(), full(), SINKS, causal() & documents(torch.arange(150) // 37)], ids=repr)
@pytest.mark.parametrize(
    ("dtype", "within"),
    [(torch.float64, 1e-10), (torch.float32, 2e-5), (torch.bfloat16, 2e-5), (torch.float16, 2e-5)],
    ids=str,
)
def test_every_instruction_set(mask: Mask, dtype: torch.dtype, within: float):
    query, key = qk(150, 24, dtype)
    options = {"bias": alibi(4), "softcap": 3.0, "sinks": torch.tensor([-torch.inf, 0.0, 1.0, 4.0])}
    FullMatrix(query, key, mask).check(statistics(query, key, mask=mask, map_size=7), within=within)
    FullMatrix(query, key, mask, **options).check(statistics(query, key, mask=mask, **options), within=within)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [1, 7, 33, 80, 256])
def test_odd_head_dims_and_a_step(dim: int, dtype: torch.dtype):
    query, key = qk(131, dim, dtype)
    FullMatrix(query, key, causal()).check(statistics(query, key), within=2e-5)
    for rows in (1, 3):
        FullMatrix(query[:, :, -rows:], key, SINKS).check(statistics(query[:, :, -rows:], key, mask=SINKS), within=2e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_any_layout(dtype: torch.dtype):
    query, key = qk(70, 18, dtype)
    expected = everything(statistics(query, key, bias=draw(4, 70, 70, seed=3)))

    def transposed(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    def padded(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (3, 2))[..., 3:-2]

    def turned(x: Tensor) -> Tensor:
        return x.mT.contiguous().mT

    for layout in (transposed, padded, turned):
        seen = statistics(layout(query), layout(key), bias=turned(draw(4, 70, 70, seed=3)))
        for one, other in zip(everything(seen), expected, strict=True):
            assert torch.equal(one, other), layout.__name__


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_bias_of_another_dtype(dtype: torch.dtype):
    query, key = qk(40, 16)
    bias = draw(40, 40, seed=3).to(dtype)
    FullMatrix(query, key, full(), bias=bias).check(statistics(query, key, mask=full(), bias=bias), within=2e-5)


@pytest.mark.parametrize("mask", [causal(), SINKS, full()], ids=repr)
@pytest.mark.parametrize(("heads", "length"), [(1, 700), (3, 300), (20, 60), (5, 1)])
def test_any_number_of_threads_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, mask: Mask, heads: int, length: int
):
    monkeypatch.setattr(native.kernel, "FEW", 0)
    query, key = draw(1, heads, length, 16, seed=1), draw(1, heads, max(length, 200), 16, seed=2)
    before, seen = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            seen.append(everything(statistics(query, key, mask=mask, map_size=5)))
    finally:
        torch.set_num_threads(before)
    for others in seen[1:]:
        assert all(torch.equal(one, other) for one, other in zip(seen[0], others, strict=True))


@pytest.mark.parametrize("map_size", [None, 1, 3, 64, 600])
def test_bins_across_the_parts_of_a_head(map_size: int | None):
    # Several threads share a head, and parts of it share a bin.
    query, key = draw(1, 1, 600, 8, seed=1), draw(1, 1, 600, 8, seed=2)
    seen = statistics(query, key, map_size=map_size)
    FullMatrix(query, key, causal()).check(seen, within=2e-5)


def test_sums_of_many_rows_are_accurate():
    # Each of 100,000 queries gives half of its mass to one key: a running sum in float32 would lose digits.
    length = 100_000
    query, key = torch.zeros(1, 1, length, 1), torch.zeros(1, 1, length, 1)
    seen = statistics(query, key, mask=causal() & (window(1) | prefix(1)), map_size=1)
    assert float(seen.received[0, 0, 0]) == (length + 1) / 2
    assert seen.map is not None
    assert float(seen.map) == length
    assert float(seen.histogram[0, 0, 1]) == (length + 1) / 2


def test_equal_weights_stay_in_the_order_of_query_and_key():
    zeros = torch.zeros(1, 1, 300, 4)
    links = statistics(zeros, zeros, mask=full(), links=5).links
    assert links.query.tolist() == [[[0, 0, 0, 0, 0]]]
    assert links.key.tolist() == [[[0, 1, 2, 3, 4]]]
    assert statistics(zeros, zeros, links=2**17).links.key.shape == (1, 1, 300 * 300)


def test_a_heard_nan_is_visible():
    query, key = qk(30, 8)
    key[0, 0, 4] = torch.nan
    seen = statistics(query, key)
    hears = torch.arange(30) >= 4
    assert seen.lse[0, 0].isnan().tolist() == hears.tolist()
    assert not seen.lse[1].isnan().any()
    assert not seen.received[1].isnan().any()


def taken(monkeypatch: pytest.MonkeyPatch, **options) -> bool:
    calls, real = [], native_pass.compute_sums
    monkeypatch.setattr(native_pass, "compute_sums", lambda *given: calls.append(given) or real(*given))
    query, key = qk(20, options.pop("dim", 8))
    FullMatrix(query, key, options.get("mask", causal())).check(statistics(query, key, **options), within=2e-5)
    return bool(calls)


def test_when_it_is_used(monkeypatch: pytest.MonkeyPatch):
    assert taken(monkeypatch)
    assert taken(monkeypatch, mask=SINKS)
    assert not taken(monkeypatch, mask=where(lambda i, j: j <= i)), "no ranges"
    assert not taken(monkeypatch, dim=300), "a head too wide"
    with torch.autograd.forward_ad.dual_level():
        assert not taken(monkeypatch), "forward-mode derivatives"
    monkeypatch.setattr(native.library, "IS_FAST", False)
    assert not taken(monkeypatch), "no instruction set of its own"


def test_tensors_without_storage_use_another_pass():
    suited = []

    def ask(query: Tensor) -> Tensor:
        suited.append(native_pass.suits(Call.of(query, query, query, mask=causal())))
        return query

    query, _ = qk(20, 8)
    ask(query)
    torch.func.vmap(ask)(query.unsqueeze(1))
    with FakeTensorMode() as fake:
        ask(fake.from_tensor(query))
    assert suited == [True, False, False]


@pytest.mark.parametrize("environment", [{"REARVIEW_NATIVE_ISA": "portable"}, {"NO_LIBRARY": "1"}])
def test_without_a_fast_kernel_the_portable_pass_is_used(environment: dict[str, str]):
    code = """
import os, pathlib
if os.environ.get("NO_LIBRARY"):
    exists = pathlib.Path.exists
    pathlib.Path.exists = lambda self, **options: self.name != "librearview.so" and exists(self, **options)
import torch
from rearview.attention import statistics
from rearview.attention.engines.native import library
from rearview.attention.stats import native
assert (library.MISSING is not None) == bool(os.environ.get("NO_LIBRARY"))
def fail(*given): raise AssertionError("the kernel was used")
native.compute_sums = fail
print(round(float(statistics(torch.zeros(1, 1, 9, 4), torch.zeros(1, 1, 9, 4)).received.sum())))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "9", done.stderr


MEMORY = """
import json, sys, torch
from pathlib import Path
from rearview import causal, prefix, window
from rearview.attention.call import Call
from rearview.attention.stats.native import compute_sums

def resident(name):
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])

torch.set_num_threads(1)
masks = {"causal": causal(), "sinks": causal() & (window(64) | prefix(4))}
def peak(length):
    query = torch.ones(1, 1, length, 8)
    call = Call.of(query, query, query, mask=masks[sys.argv[1]])
    assert call.spans is not None
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS:")
    compute_sums(call, length // 64, 32)
    return resident("VmHWM:") - before
peak(512)
print(json.dumps([peak(8192), peak(32768)]))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of a process is read from Linux")
@pytest.mark.parametrize("mask", ["causal", "sinks"])
def test_memory_is_linear(mask: str):
    done = subprocess.run([sys.executable, "-c", MEMORY, mask], capture_output=True, text=True, check=True)
    short, long = json.loads(done.stdout)
    assert long < 4.4 * short + 2**24
    assert long < 4 * 32768**2 / 64, "a sixty-fourth of one matrix of weights"
