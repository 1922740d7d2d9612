"""The CPU kernel through its binding: the grid on each instruction set, threads, forks, memory, shapes, refusals."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rearview import (
    Mask,
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
    window,
)
from rearview.attention.call import Call
from rearview.attention.engines import native
from rearview.attention.engines.native import kernel, library, openmp, ranges
from rearview.errors import BadArgument, RearviewError
from rearview.masks import Frame
from rearview.masks.encoding import encode
from tests.attention import test_conformance as grid
from tests.native_kernel import needs_native

pytestmark = needs_native

DTYPES = grid.DTYPES
SINKS = (causal() & window(9)) | prefix(2)


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(
    batch=2, heads=4, key_heads=2, q_len=65, k_len=65, dim=16, value_dim=16, dtype=torch.float32
) -> list[Tensor]:
    query = draw(batch, heads, q_len, dim, seed=1, dtype=dtype)
    key = draw(batch, key_heads, k_len, dim, seed=2, dtype=dtype)
    return [query, key, draw(batch, key_heads, k_len, value_dim, seed=3, dtype=dtype)]


def answers(tensors: list[Tensor], *, engine: str = "native", **options) -> list[Tensor]:
    """The output, the log-sum-exp and all gradients, of a sum that both flow into."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    if len(leaves) > 3:
        options["bias"] = leaves[3]
    out, lse = attend(*leaves[:3], engine=engine, return_lse=True, **options)
    total = (out * draw(*out.shape, seed=4, dtype=out.dtype)).sum() + lse.masked_fill(lse == -torch.inf, 0).sum()
    return [out.detach(), lse.detach(), *torch.autograd.grad(total, leaves)]


def assert_same_as_reference(tensors: list[Tensor], **options) -> None:
    got = answers(tensors, **options)
    expected = answers([tensor.double() for tensor in tensors], engine="reference", **options)
    dtype = tensors[0].dtype
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        sums = torch.float64 if dtype == torch.float64 else torch.float32
        kind = dtype if number != 1 else sums
        if number == 5:
            # A bias that is finer than the sums has a gradient of its own dtype, and of their precision.
            assert one.dtype == tensors[3].dtype
            kind = max(one.dtype, sums, key=lambda each: torch.finfo(each).eps)
        grid.assert_close(one.to(kind), other, kind, grid.GRADIENT_UNITS)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Any number of threads, also for small calls."""
    monkeypatch.setattr(kernel, "FEW", 0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=native.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    native.force_isa(request.param)
    yield request.param
    native.force_isa(None)


# Instruction sets.

PART_OF_THE_GRID = [
    "causal",
    "full",
    "sinks and window",
    "documents per item",
    "padding with holes",
    "per head and item",
    "only the future",
    "nobody",
]


@pytest.mark.parametrize("family", PART_OF_THE_GRID)
@grid.dtypes
def test_the_grid_on_each_instruction_set(isa: str, family: str, dtype: torch.dtype):
    assert native.isa() == isa
    grid.test_forward("native", family, dtype)
    grid.test_gradients("native", family, dtype)
    grid.test_keys_that_no_query_hears_may_hold_anything("native", family, dtype)
    grid.test_invisible_keys_change_nothing_bit_for_bit("native", family, dtype, "largest")


@pytest.mark.parametrize("option", [{"softcap": 1.5, "scale": 2.0}, {"bias": "alibi"}], ids=str)
@pytest.mark.parametrize("family", ["sinks and window", "padding left"])
def test_options_on_each_instruction_set(isa: str, family: str, option: dict):
    grid.test_options("native", family, option)
    grid.test_gradient_of_a_bias("native", family, (1, 4))


@pytest.mark.parametrize("bits", [0x7FF8000000000000, 0x7FF8000000000001, 0x7FF80000000007FF, -1], ids=hex)
@pytest.mark.parametrize("q_len", [1, 40])
def test_every_nan_that_is_heard_stays_visible(isa: str, bits: int, q_len: int):
    """A NaN may carry any bits; in float32 those of the upper half."""
    query, key, value = (torch.randn(1, 1, size, 8, dtype=torch.float64) for size in (q_len, 40, 40))
    key[0, 0, 0, 0] = torch.tensor([bits]).view(torch.float64)[0]
    narrow = key.float()
    narrow[0, 0, 0, 0] = torch.tensor([bits >> 32 | bits & 0x1FF], dtype=torch.int64).int().view(torch.float32)[0]
    assert attend(query, key, value, engine="native").isnan().all()
    assert attend(query.float(), narrow, value.float(), engine="native").isnan().all()


def test_the_best_instruction_set_is_taken_unless_another_is_forced():
    assert native.isas()[0] == "portable"
    best = native.isa()
    # On Intel's processors without tiles, products of bfloat16 pairs are there, and are not the fastest.
    assert best == native.isas()[-1] or (best, native.isas()[-1]) == ("avx512", "avx512_bf16")
    native.force_isa("portable")
    assert native.isa() == "portable"
    native.force_isa(None)
    assert native.isa() == best


def test_a_wrong_instruction_set_is_an_error(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        BadArgument, match=r"^isa: expected portable, avx2, avx512, avx512_bf16, amx or None, got 'mmx'"
    ):
        native.force_isa("mmx")
    monkeypatch.setattr(library, "isas", lambda: ["portable"])
    with pytest.raises(BadArgument, match=r"^isa: expected one that is built in .* has: portable, got 'avx512'"):
        native.force_isa("avx512")


@pytest.mark.parametrize(
    ("named", "said"), [("portable", "portable"), ("mmx", "REARVIEW_NATIVE_ISA: expected portable")]
)
def test_the_environment_forces_an_instruction_set(named: str, said: str):
    # A wrong name leaves `import rearview` and the other engines alone, and is told to who asks for this one.
    script = """
import torch, rearview
from rearview.attention.engines import native
x = torch.ones(1, 1, 3, 4)
rearview.attend(x, x, x, engine="reference")
try:
    rearview.attend(x, x, x, engine="native")
    print(native.isa())
except rearview.RearviewError as error:
    print(error)
"""
    done = run_script(script, REARVIEW_NATIVE_ISA=named)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(said)


def run_script(script: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | environment,
        check=False,
    )


# Threads, processes.


@pytest.mark.parametrize("mask", [causal(), SINKS, causal() & padding([65, 30]), full()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_number_of_threads_gives_the_same_bits(threads: None, mask: Mask, dtype: torch.dtype):
    # A bias for all heads and items: its gradient is a sum over what several threads compute.
    tensors = [*inputs(dtype=dtype), draw(65, 65, seed=5, dtype=dtype)]
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(answers(tensors, mask=mask))
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [1, 3])
def test_chunks_of_a_long_head_give_the_same_bits(threads: None, dtype: torch.dtype, heads: int):
    # Long enough for several chunks of keys: added as they are computed by one thread, and at the end by several.
    tensors = [torch.randn(1, heads, 1300, 8, generator=torch.Generator().manual_seed(n)).to(dtype) for n in range(3)]
    seen = []
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        leaves = [each.clone().requires_grad_() for each in tensors]
        out = attend(*leaves, mask=causal() | prefix(40), engine="native")
        seen.append([out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)])
    for others in seen[1:]:
        assert all(torch.equal(one, other) for one, other in zip(seen[0], others, strict=True))


def test_the_threads_are_those_of_torch():
    address = openmp.find_parallel()
    if torch.backends.openmp.is_available() and sys.platform == "linux":
        assert address


def test_small_calls_run_on_one_thread(monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []

    class Kernel:
        def __getattr__(self, name: str):
            return lambda packed, threads: seen.append(threads)

    monkeypatch.setattr(kernel, "KERNEL", Kernel())
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        small, large = torch.zeros(1, 2, 64, 16), torch.zeros(1, 2, 512, 16)
        attend(small, small, small, engine="native")
        attend(large, large, large, engine="native")
        # As much work as the large one: a step over a long cache.
        cache = torch.zeros(1, 2, 1 << 18, 16)
        attend(small[:, :, :1], cache, cache, engine="native")
        # Backward does two and a half times as much as forward.
        x = torch.zeros(1, 2, 80, 16, requires_grad=True)
        attend(x, x, x, engine="native").sum().backward()
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 3, 3, 1, 3]


def test_several_python_threads_at_once():
    cases = [(inputs(q_len=20 + 7 * n, k_len=90), SINKS if n % 2 else causal()) for n in range(8)]
    expected = [answers(tensors, mask=mask) for tensors, mask in cases]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            got = list(pool.map(lambda case: answers(case[0], mask=case[1]), cases))
            for one, other in zip(got, expected, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA, autograd itself refuses to run in a forked child")
@pytest.mark.parametrize("parent_threads", [1, 2])
def test_a_forked_child_computes_the_same(parent_threads: int):
    # A data loader forks after the parent has used its threads, which do not survive: the child must not wait for them.
    script = f"""
import multiprocessing, os, sys, torch
from rearview import attend, causal
torch.set_num_threads({parent_threads})
# Small enough for torch to use one thread for its own part: its threads do hang in a child.
x = torch.randn(1, 4, 200, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
def both():
    out = attend(x, x, x, mask=causal(), engine="native")
    return [out.detach(), *torch.autograd.grad(out.square().sum(), x)]
expected = both()
def child(_):
    torch.set_num_threads(2)
    return all(torch.equal(a, b) for a, b in zip(both(), expected))
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(child, range(4)) == [True] * 4
pid = os.fork()
if pid == 0:
    os._exit(0 if child(0) else 1)
assert os.waitpid(pid, 0)[1] == 0
assert all(torch.equal(a, b) for a, b in zip(both(), expected))
print("same")
"""
    done = run_script(script, timeout=100, OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "same"


# Shapes and memory.


@pytest.mark.parametrize("dim", [1, 2, 5, 8, 15, 16, 17, 31, 33, 48, 64, 80, 100, 128, 130, 255, 256])
def test_head_dims(dim: int):
    dtype = DTYPES[dim % 4]
    assert_same_as_reference(inputs(q_len=19, k_len=37, dim=dim, value_dim=dim, dtype=dtype), mask=causal())


@pytest.mark.parametrize(("dim", "value_dim"), [(1, 256), (256, 1), (64, 48), (24, 72), (7, 3)])
@grid.dtypes
def test_values_of_another_dim(dim: int, value_dim: int, dtype: torch.dtype):
    assert_same_as_reference(inputs(q_len=33, k_len=40, dim=dim, value_dim=value_dim, dtype=dtype), mask=SINKS)


@pytest.mark.parametrize(
    ("batch", "heads", "key_heads", "q_len", "k_len"),
    [(1, 1, 1, 1, 1), (3, 6, 2, 1, 300), (1, 8, 1, 5, 130), (2, 5, 5, 140, 3), (1, 32, 4, 1, 65), (5, 3, 3, 64, 64)],
)
def test_sizes(batch: int, heads: int, key_heads: int, q_len: int, k_len: int):
    tensors = inputs(batch=batch, heads=heads, key_heads=key_heads, q_len=q_len, k_len=k_len)
    for mask in (causal(), full(), causal() & window(4)):
        assert_same_as_reference(tensors, mask=mask)


def test_the_neighbours_of_a_tensor_are_neither_read_nor_written():
    """Everything is a part of something larger that is full of NaN, and in every axis."""
    mask = causal() & window(20)

    def inside(tensor: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.full([size + 3 for size in tensor.shape], torch.nan, dtype=tensor.dtype)
        part = whole[1:-2, 1:-2, 1:-2, 1:-2]
        part.copy_(tensor)
        return whole, part

    for dtype in (torch.float32, torch.bfloat16):
        tensors = [*inputs(dim=13, value_dim=21, dtype=dtype), draw(2, 4, 65, 65, seed=6, dtype=dtype)]
        wholes, parts = zip(*map(inside, tensors), strict=True)
        copies = [whole.clone() for whole in wholes]
        got, expected = answers(list(parts), mask=mask), answers(tensors, mask=mask)
        assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
        for whole, copy in zip(wholes, copies, strict=True):
            assert torch.equal(whole.nan_to_num(7.0), copy.nan_to_num(7.0))


def test_expanded_and_transposed_inputs():
    query, key, value = inputs(key_heads=4, dim=16)
    strided = [
        [query[:, :1].expand(-1, 4, -1, -1), key[:1].expand(2, -1, -1, -1), value],
        [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value)],
        [x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0) for x in (query, key, value)],
        [torch.cat([x, x], dim=-1)[..., 3:11] for x in (query, key, value)],
    ]
    for tensors in strided:
        got = answers(tensors, mask=causal())
        expected = answers([tensor.contiguous() for tensor in tensors], mask=causal())
        assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_the_output_lies_as_the_query_does():
    query, key, value = inputs(key_heads=4)
    by_time = query.transpose(1, 2).contiguous().transpose(1, 2)
    out = attend(by_time, key, value, engine="native")
    # So that joining the heads is a view.
    assert out.transpose(1, 2).is_contiguous()
    assert attend(query, key, value, engine="native").is_contiguous()
    assert torch.equal(out, attend(query, key, value, engine="native"))


# Bias, options.


@pytest.mark.parametrize(
    "shape",
    [(65,), (65, 1), (65, 65), (4, 1, 65), (4, 1, 1), (2, 1, 1, 65), (2, 4, 65, 65), (1, 4, 65, 1), ()],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_bias_of_any_shape_and_dtype(shape: tuple[int, ...], dtype: torch.dtype):
    assert_same_as_reference([*inputs(), draw(*shape, seed=7, dtype=dtype)], mask=SINKS)


def test_a_strided_bias():
    bias = draw(65, 2, 4, 65, seed=8).permute(1, 2, 3, 0)
    assert bias.stride(3) != 1
    assert_same_as_reference([*inputs(), bias], mask=causal(), softcap=2.0)


@pytest.mark.parametrize("mask", [causal(), SINKS, causal() & padding([65, 20])], ids=str)
def test_the_log_sum_exp_has_a_gradient(mask: Mask):
    tensors = [tensor[:, :, :6].double().requires_grad_() for tensor in inputs(dim=3, value_dim=2)]
    bias = draw(4, 6, 6, seed=9, dtype=torch.float64).requires_grad_()
    mask = causal() & padding([6, 3]) if mask.batch else mask

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        query, key, value, bias = tensors
        out, lse = attend(query, key, value, mask=mask, bias=bias, softcap=3.0, return_lse=True, engine="native")
        return out, lse.masked_fill(lse == -torch.inf, 0)

    assert torch.autograd.gradcheck(run, (*tensors, bias), fast_mode=True)


def test_only_what_needs_a_gradient_may_be_asked_for():
    query, key, value = inputs()
    bias = draw(65, 65, seed=10).requires_grad_()
    out = attend(query, key, value, bias=bias, engine="native")
    (got,) = torch.autograd.grad(out.sum(), bias)
    (expected,) = torch.autograd.grad(attend(query, key, value, bias=bias, engine="reference").sum(), bias)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "option", [{"softcap": 2.0}, {"bias": alibi(4)}, {"dropout": 0.3}, {"softcap": 1.0, "scale": 3.0}]
)
@grid.dtypes
def test_keys_that_no_query_hears_may_hold_anything_with_options_too(isa: str, option: dict, dtype: torch.dtype):
    mask = causal() & padding([40, 65]) & ~prefix(3)
    clean = inputs(dtype=dtype)
    garbage = torch.tensor([-torch.inf, torch.inf, torch.nan], dtype=dtype).repeat(22)[:65, None]
    dirty = [tensor.clone() for tensor in clean]
    for tensor in dirty[1:]:
        tensor[:, :, :3], tensor[0, :, 40:] = garbage[:3], garbage[40:]
    found = []
    for tensors in (clean, dirty):
        torch.manual_seed(1)
        found.append(answers(tensors, mask=mask, **option))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


# What is kept for a mask.


def test_ranges_are_made_once_for_a_mask():
    mask = causal() & window(5)
    spans = mask.spans(30)
    assert ranges.ranges_of(spans, 2) is ranges.ranges_of(spans, 4)
    each = per_head([causal(), window(2), full(), causal()]) & padding([30, 7])
    assert ranges.ranges_of(each.spans(30), 2) is ranges.ranges_of(each.spans(30), 2)
    assert ranges.ranges_of(each.spans(30), 2).heard is not ranges.ranges_of(each.spans(30), 4).heard
    before = len(ranges._made)
    del spans, mask
    assert len(ranges._made) == before - 1


def test_an_encoded_mask_with_other_tensors_has_other_ranges():
    frame = Frame.of(6)
    said, numbers, data = encode(documents([0, 0, 0, 1, 1, 1]))
    first = ranges.ranges_in(said, numbers, data, frame, 1)
    assert ranges.ranges_in(said, numbers, [data[0].clone()], frame, 1) is first
    # The caller may write into its own tensor.
    data[0][2] = 1
    assert ranges.ranges_in(said, numbers, data, frame, 1).ends.flatten().tolist() == [2, 2, 6, 6, 6, 6]
    for length in range(7, 7 + ranges.REMEMBERED):
        ranges.ranges_in("causal", [], [], Frame.of(length), 1)
    assert len(ranges._remembered) == ranges.REMEMBERED


# One query.


@pytest.mark.parametrize(
    "mask",
    [
        causal(),
        full(),
        window(9),
        causal() & window(9),
        window(4, ahead=3),
        prefix(7) & window(40),
        chunks(16),
        causal() & chunks(16) & window(5),
        prefix(0),
        prefix(3) & window(2),
        SINKS,
        causal() & padding([40, 9]),
        per_head([causal(), window(2), full(), causal()]),
    ],
    ids=str,
)
@pytest.mark.parametrize("q_start", [None, 0, 17])
def test_one_query_hears_what_the_mask_says(mask: Mask, q_start: int | None):
    tensors = inputs(q_len=1, k_len=40)
    options = {"mask": mask, "q_start": q_start, "bias": alibi(4), "return_lse": True}
    out, lse = attend(*tensors, engine="native", **options)
    expected, expected_lse = attend(*tensors, engine="reference", **options)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-5)
    # Keys that it does not hear may hold anything.
    heard = mask.visible_in(Frame.of(1, 40, q_start), torch.device("cpu")).any(1).squeeze(1)
    for tensor in tensors[1:]:
        tensor.masked_fill_(~heard[:, None, :, None].expand(-1 if len(heard) > 1 else 2, 2, 40, 16), torch.nan)
    assert torch.equal(attend(*tensors, engine="native", **options)[0], out)


# Refusals.


def test_what_it_cannot_do_it_says():
    query, key, value = inputs()
    wide = torch.zeros(1, 1, 4, 257)
    refused: tuple[tuple[tuple[Tensor, ...], dict[str, Any], str], ...] = (
        ((query, key, value), {"mask": causal() & dilated(2)}, "the mask has no range form, and ranges are all"),
        ((wide, wide, wide), {}, "its head dims go up to 256"),
        ((wide[..., :8], wide[..., :8], wide), {}, "its head dims go up to 256"),
    )
    for tensors, options, why in refused:
        with pytest.raises(Unsupported, match=f"(?s)^engine 'native' cannot do this exactly:.*{why}"):
            attend(*tensors, engine="native", **options)
    elsewhere = replace(Call.of(query, key, value, mask=causal()), query=query.to("meta"))
    assert native.refusals(elsewhere) == ["it is a CPU kernel, and the tensors are on meta"]


def test_an_installation_without_a_kernel_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(library, "PATH", tmp_path / "librearview.so")
    monkeypatch.setattr(library, "NOT_BUILT", tmp_path / "not_built.txt")
    assert library._load() == (None, "its library is not in this installation: it was never built")
    (tmp_path / "not_built.txt").write_text("no C++ compiler was found\n")
    found, why = library._load()
    assert (found, why) == (None, "its library is not in this installation: no C++ compiler was found")
    monkeypatch.setattr(library, "MISSING", why)
    monkeypatch.setattr(library, "KERNEL", None)
    tensors = inputs()
    with pytest.raises(Unsupported, match="not in this installation: no C"):
        attend(*tensors, engine="native")
    with pytest.raises(Unsupported, match="not in this installation: no C"):
        native.force_isa("portable")
    assert plan(*tensors).not_taken["native"] == f"cannot: {why}"
    assert (native.isas(), native.isa()) == ([], None)
    torch.testing.assert_close(attend(*tensors), attend(*tensors, engine="reference"))


def test_a_library_that_is_none_or_another_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "librearview.so"
    path.write_text("not a library")
    monkeypatch.setattr(library, "PATH", path)
    missing = "its library is damaged: its checksum, librearview.so.sha256, is missing; install rearview again"
    assert library._load() == (None, missing)
    # What the checksum cannot know: that something else was built.
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name("librearview.so.sha256").write_text(f"{digest}  librearview.so\n")
    found, why = library._load()
    assert found is None
    assert why is not None
    assert why.startswith("its library could not be loaded: ")
    monkeypatch.undo()
    monkeypatch.setattr(library, "ABI", library.ABI + 1)
    assert library._load() == (None, "its library is of another version of rearview; build it again")


def test_the_binding_and_the_header_agree():
    header = (Path(__file__).parents[2] / "native" / "include" / "rearview.h").read_text()
    assert f"#define RV_ABI {library.ABI}\n" in header
    names = header.partition("RV_PORTABLE = 0")[2].partition("RV_ISAS")[0]
    assert [name.upper() in names for name in library.ISAS[1:]] == [True] * (len(library.ISAS) - 1)


def test_a_failure_of_the_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch):
    from rearview.attention.engines.native import kernel

    monkeypatch.setattr(kernel, "DTYPES", kernel.DTYPES | {torch.float32: 99})
    with pytest.raises(RearviewError, match="engine 'native' failed: it does not understand the call"):
        attend(*inputs(), engine="native")


def test_alibi_of_other_dtypes():
    slopes = alibi(draw(4, seed=11, dtype=torch.float64).abs())
    got = attend(*inputs(), bias=slopes, engine="native")
    torch.testing.assert_close(got, attend(*inputs(), bias=slopes, engine="reference"), rtol=0, atol=1e-5)
