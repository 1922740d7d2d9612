"""The Triton kernels give the numbers of the full matrix: on a GPU, or else in the interpreter of Triton."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rearview import Mask, alibi, causal, dilated, documents, full, padding, prefix, window
from rearview.attention import Links, Statistics, statistics
from rearview.attention.call import Call
from rearview.attention.stats import gpu, measurement
from rearview.attention.stats.gpu.visits import of_key_blocks, of_query_blocks
from rearview.attention.stats.sums import Sums
from rearview.masks import Frame
from tests.attention.full_matrix import FullMatrix
from tests.mask_families import FAMILIES

HAS_GPU = torch.cuda.is_available()
IN_INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1"
on_a_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")


def kernels(test: Callable) -> Callable:
    """A test of the kernels themselves, whichever pass `statistics` would choose."""
    reason = "needs a GPU; without one, test_in_the_interpreter runs it there"
    skips = pytest.mark.skipif(not (HAS_GPU or IN_INTERPRETER), reason=reason)
    return skips(pytest.mark.usefixtures("by_kernels")(test))


# NumPy, which the interpreter uses, warns about -inf - -inf even where the result is not used.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in :RuntimeWarning")

# The interpreter is slow, so it runs one mask of each kind.
FEW = ["full", "causal", "window ahead", "sinks and window", "documents per item", "padding left", "padding with holes",
       "per head and item", "only the future", "nobody"]  # fmt: skip
RANGED = [name for name, family in FAMILIES.items() if family(2, 4, 16).has_ranges] if HAS_GPU else FEW
DTYPES = [torch.float32, torch.bfloat16] if HAS_GPU else [torch.float32]
LENGTH = 300 if HAS_GPU else 40


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from rearview.attention.stats.gpu.launch import KernelTiles, TileShape, compute_sums

    tiles = None if HAS_GPU else KernelTiles(TileShape(32, 32), TileShape(32, 32))
    ran = []

    def by_kernels(call: Call, bin_width: int, links: int) -> Sums:
        ran.append(call)
        return compute_sums(call, bin_width, links, tiles)

    monkeypatch.setattr(measurement, "pass_for", lambda call: by_kernels)
    yield
    assert ran, "another pass computed the result"


def inputs(
    heads: int = 2, key_heads: int = 1, q_len: int = LENGTH, k_len: int | None = None, dim: int = 8, batch: int = 2
) -> tuple[Tensor, Tensor]:
    query = 2.0 * torch.randn(batch, heads, q_len, dim)
    return query, torch.randn(batch, key_heads, q_len if k_len is None else k_len, dim)


def on_device(value: Any) -> Any:
    return value.cuda() if HAS_GPU and isinstance(value, Tensor) else value


def on_cpu(seen: Statistics) -> Statistics:
    values = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
    tensors = {name: value.cpu() for name, value in values.items() if isinstance(value, Tensor)}
    links = Links(seen.links.weight.cpu(), seen.links.query.cpu(), seen.links.key.cpu())
    return dataclasses.replace(seen, links=links, **tensors)


def check(query: Tensor, key: Tensor, mask: Mask, within: float = 2e-5, map_size: int | None = 9, **options) -> None:
    given = {name: on_device(value) for name, value in options.items()}
    seen = statistics(on_device(query), on_device(key), mask=mask, map_size=map_size, links=5, **given)
    assert seen.lse.dtype == torch.float32
    FullMatrix(query, key, mask, **options).check(on_cpu(seen), within=within)


@kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", RANGED)
def test_every_mask(family: str, dtype: torch.dtype):
    query, key = inputs()
    check(query.to(dtype), key.to(dtype), FAMILIES[family](2, 2, LENGTH))


@kernels
@pytest.mark.parametrize("mask", [causal(), full()])
def test_tiles_that_need_no_comparison(mask: Mask):
    query, key = inputs(batch=1, heads=1, q_len=160)
    # Bins of 32, the size of the tiles.
    check(query, key, mask, map_size=5)


OPTIONS = {
    "softcap": lambda: {"softcap": 1.5},
    "alibi": lambda: {"bias": alibi(2)},
    "bias": lambda: {"bias": torch.randn(2, 2, LENGTH, LENGTH)},
    "bias of a head": lambda: {"bias": torch.randn(2, 1, LENGTH)},
    "bias that hides": lambda: {"bias": torch.randn(LENGTH, LENGTH).masked_fill_(torch.rand(LENGTH) < 0.5, -torch.inf)},
    "sinks": lambda: {"sinks": torch.tensor([-torch.inf, 0.5])},
    "all": lambda: {"scale": 0.5, "softcap": 3.0, "bias": alibi(2), "sinks": torch.ones(2)},
    "no map": lambda: {"map_size": None},
}


@kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option(option: str, dtype: torch.dtype):
    query, key = inputs()
    check(query.to(dtype), key.to(dtype), FAMILIES["padding left"](2, 2, LENGTH), **OPTIONS[option]())


@kernels
@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [(1, 40, None), (13, 40, 7), (40, 11, None), (20, 11, 25)])
@pytest.mark.parametrize("mask", [causal(), full()], ids=["causal", "full"])
def test_every_frame(q_len: int, k_len: int, q_start: int | None, mask: Mask):
    query, key = inputs(q_len=q_len, k_len=k_len, batch=1, heads=1)
    check(query, key, mask, q_start=q_start)


@kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [5, 40, 80, 128, 256] if HAS_GPU else [5, 40])
def test_every_head_dim(dim: int, dtype: torch.dtype):
    query, key = inputs(dim=dim, batch=1)
    # Not contiguous: [batch, time, heads, dim] in memory, as after a projection.
    query = query.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)
    check(query, key.to(dtype), causal())


@kernels
@pytest.mark.parametrize(("mask", "unheard"), [(causal() & padding([20, 40]), (0, slice(20, None))),
                                               (prefix(3), (slice(None), slice(3, None)))])  # fmt: skip
def test_keys_that_no_query_hears_have_no_effect(mask: Mask, unheard: tuple):
    query, key = inputs(q_len=40)
    clean = statistics(on_device(query), on_device(key), mask=mask, map_size=4)
    FullMatrix(query, key, mask).check(on_cpu(clean), within=2e-5)
    key[unheard[0], :, unheard[1]] = torch.nan
    again = statistics(on_device(query), on_device(key), mask=mask, map_size=4)
    for name in ("lse", "entropy", "received", "first", "distance", "histogram", "map"):
        torch.testing.assert_close(getattr(again, name), getattr(clean, name), rtol=0, atol=0)


@kernels
def test_a_heard_nan_is_visible():
    query, key = inputs(batch=1, heads=1, q_len=40)
    query[..., 5, 0] = torch.nan
    lse = statistics(on_device(query), on_device(key), map_size=None).lse[0, 0]
    assert lse.isnan().nonzero().flatten().tolist() == [5]


@kernels
def test_the_entropy_of_large_scores_is_accurate():
    query, key = inputs(batch=1)
    check(150 * query, key, causal(), within=5e-4)


@on_a_gpu
@kernels
def test_long_sequences_give_the_same_bits_in_every_run():
    query, key = (torch.randn(1, heads, 5000, 64, dtype=torch.bfloat16, device="cuda") for heads in (4, 2))
    mask = causal() & (window(1500) | prefix(4))
    seen, again = statistics(query, key, mask=mask), statistics(query, key, mask=mask)
    for name in ("lse", "entropy", "received", "first", "distance", "histogram", "map", "rows_heard"):
        torch.testing.assert_close(getattr(again, name), getattr(seen, name), rtol=0, atol=0)
    FullMatrix(query.cpu(), key.cpu(), mask).check(on_cpu(seen), within=2e-5)


@on_a_gpu
def test_other_calls_use_the_portable_pass():
    def call(mask: Mask = causal(), **to) -> Call:
        x = torch.zeros(1, 1, to.pop("q_len", 64), to.pop("dim", 64), device="cuda", dtype=to.pop("dtype", torch.half))
        return Call.of(x, x, x, mask=mask)

    assert gpu.suits(call())
    assert gpu.suits(call(dtype=torch.float32))
    assert not gpu.suits(call(dtype=torch.float64))
    assert not gpu.suits(call(causal() & dilated(2)))
    assert not gpu.suits(call(q_len=1))
    assert not gpu.suits(call(dim=512))
    assert gpu.suits(call(dim=256))
    assert not gpu.suits(call(dim=256, dtype=torch.float32))


def needs_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        if os.environ.get("CI"):
            pytest.fail("Triton is not installed. In CI the tests of the GPU kernels may not be skipped.")
        pytest.skip("Triton, which interprets and compiles the kernels, is not installed")


@pytest.mark.skipif(HAS_GPU or IN_INTERPRETER, reason="here the kernels run by themselves")
def test_in_the_interpreter():
    needs_triton()
    # Triton reads the variable when it is imported.
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", "not visits", __file__]
    done = subprocess.run(command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    # If all tests were skipped, this would prove nothing.
    assert re.search(r"\b[3-9]\d passed", done.stdout), done.stdout


COMPILED = {
    "one range": {},
    "many ranges, no map": {"RANGES": 0, "SLOTS": 0, "SINKS": True, "SOFTCAP": True},
}


@pytest.mark.skipif(HAS_GPU or IN_INTERPRETER, reason="here the kernels run")
@pytest.mark.parametrize("which", COMPILED)
def test_the_kernels_compile(which: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The kernels compile for an H100, without one: the interpreter accepts code that the compiler does not."""
    needs_triton()
    import triton  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
    from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

    from rearview.attention.stats.gpu.columns import columns_kernel
    from rearview.attention.stats.gpu.launch import tiles_for
    from rearview.attention.stats.gpu.rows import rows_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tiles = tiles_for(torch.bfloat16, 64)
    for kernel, blocks in ((rows_kernel, tiles.rows), (columns_kernel, tiles.columns)):
        constants = {"HEADS": 4, "GROUP": 2, "DIM": 64, "BLOCK_DIM": 64, "RANGES": 1, "PRECISION": "ieee", "SLOTS": 2}
        constants |= dict.fromkeys(("SOFTCAP", "ALIBI", "BIAS", "SINKS"), False) | blocks.options | COMPILED[which]
        kind = {"query_ptr": "*bf16", "key_ptr": "*bf16", "slopes": "*fp32", "sinks": "*fp32"}
        kind |= {"scale": "fp32", "cap": "fp32"}
        signature, constexprs = {}, {}
        for index, name in enumerate(kernel.arg_names):  # pyright: ignore[reportFunctionMemberAccess]
            signature[name] = kind.get(name, "*fp32" if name.endswith("_ptr") else "i32")
            if name.endswith(("starts", "ends")):
                signature[name] = "*i32"
            elif name.isupper():
                signature[name], constexprs[index,] = "constexpr", constants[name]
        options = {name: value for name, value in blocks.options.items() if not name.isupper()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        assert "wgmma" in compiled.asm["ptx"]


MASKS = {
    "causal": causal(),
    "full": full(),
    "two ranges": causal() & (window(20) | prefix(5)),
    "documents": causal() & documents(torch.arange(90) // 25),
    "ahead": ~causal(),
    "nobody": prefix(0),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(("q_len", "q_start"), [(90, 0), (50, 40), (33, 7)])
@pytest.mark.parametrize("bin_width", [0, 8, 16, 24, 64])
def test_visits_cover_every_heard_pair_once(mask: Mask, q_len: int, q_start: int, bin_width: int):
    frame, device = Frame.of(q_len, 90, q_start), torch.device("cpu")
    visible = mask.visible_in(frame, device)[0, 0]
    by_query = of_query_blocks(mask, frame, device, queries=32, keys=16)
    by_key = of_key_blocks(mask, frame, device, queries=16, keys=32, bin_width=bin_width)
    for visits, queries, keys, is_by_key in ((by_query, 32, 16, False), (by_key, 16, 32, True)):
        seen = torch.zeros(frame.q_len, 90, dtype=torch.int)
        for is_plain, runs in ((True, visits.plain.rows()), (False, visits.compared.rows())):
            for block, run in enumerate(runs):
                for other in itertools.chain(*(range(*each) for each in run)):
                    row, column = (other, block) if is_by_key else (block, other)
                    rows = slice(row * queries, (row + 1) * queries)
                    tile = rows, slice(column * keys, (column + 1) * keys)
                    seen[tile] += 1
                    if is_plain:
                        assert bool(visible[tile].all())
                        assert tile[1].stop <= 90
                    if is_plain and is_by_key:
                        place = torch.arange(q_len)[rows] + q_start
                        back = place.unsqueeze(-1) - torch.arange(90)[tile[1]]
                        # 0 for the future, 1 for distance 0, then the number of binary digits plus one.
                        assert len({0 if d < 0 else d.bit_length() + 1 for d in back.flatten().tolist()}) == 1
                        assert not bin_width or len(set((place // bin_width).tolist())) == 1
        assert bool((seen[visible] == 1).all())
        assert int(seen.max()) <= 1
