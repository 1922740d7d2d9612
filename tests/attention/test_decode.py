"""The kernels for a few queries give the numbers of the definition: on a GPU, or else in the interpreter of Triton."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rearview import Mask, Pages, Unsupported, alibi, attend, causal, dilated, padding, plan, prefix, tree, window
from rearview.attention import prepared
from rearview.attention.call import Call
from rearview.attention.engines import decode, gpu_choice
from rearview.attention.engines.decode.ranges import RangeTable, table_for
from rearview.masks import Frame
from tests.mask_families import FAMILIES

HAS_GPU = torch.cuda.is_available()
IN_INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")
BATCH, HEADS, KEY_HEADS = 2, 4, 2
# The interpreter is slow, so it runs one mask of each kind.
FEW = ["causal", "sinks and window", "documents per item", "padding left", "per head and item", "tree", "nobody"]
RANGED = [name for name, family in FAMILIES.items() if family(2, 4, 70).has_ranges] if HAS_GPU else FEW

# NumPy, which the interpreter uses, warns about -inf - -inf even where the result is not used.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in :RuntimeWarning")


def kernels(test: Callable) -> Callable:
    reason = "needs a GPU; without one, test_in_the_interpreter runs it there"
    return pytest.mark.skipif(not (HAS_GPU or IN_INTERPRETER), reason=reason)(test)


on_a_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")


def inputs(q_len: int, k_len: int, *, dim: int = 24, value_dim: int = 16, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((BATCH, HEADS, q_len, dim), (BATCH, KEY_HEADS, k_len, dim), (BATCH, KEY_HEADS, k_len, value_dim))
    return [torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes]


def check(tensors: list[Tensor], **options: Any) -> Tensor:
    """The output of the kernels, which agrees with the definition in float64, and so does the log-sum-exp."""
    out, lse = attend(*tensors, engine="decode", return_lse=True, **options)
    exact = {name: option for name, option in options.items() if name != "batch_invariant"}
    wide = [tensor.double() for tensor in tensors]
    wanted, wanted_lse = attend(*wide, engine="reference", return_lse=True, **exact)
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=2e-5)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=2e-5)
    return out


@kernels
@pytest.mark.parametrize("family", RANGED)
@pytest.mark.parametrize("q_len", [1, 5])
def test_every_family(family: str, q_len: int):
    k_len = 70
    mask, tensors = FAMILIES[family](BATCH, HEADS, k_len), inputs(q_len, k_len)
    out = check(tensors, mask=mask)
    # Keys that nobody hears may hold anything.
    heard = mask.visible_in(Frame.of(q_len, k_len), DEVICE).any(-2).expand(BATCH, HEADS, k_len)
    heard = heard.unflatten(1, (KEY_HEADS, -1)).any(2).unsqueeze(-1)
    dirty = [tensors[0], *(tensor.where(heard, torch.nan) for tensor in tensors[1:])]
    assert torch.equal(attend(*dirty, mask=mask, engine="decode"), out)


OPTIONS: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 2.0},
    "scale": {"scale": -0.3},
    "q_start": {"q_start": 10},
    "queries before the first key": {"mask": causal() | prefix(2), "q_start": None},
    "alibi and sinks": {"bias": alibi(HEADS), "sinks": torch.tensor([0.0, 1.0, -torch.inf, 2.0])},
    "bias": {"bias": torch.randn(1, HEADS, 3, 40, generator=torch.Generator().manual_seed(1))},
    "a tree": {"mask": tree([-1, *range(36), 36, 37, 37]) & causal()},
}


@kernels
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str):
    options = {key: x.to(DEVICE) if isinstance(x, Tensor) else x for key, x in OPTIONS[name].items()}
    check(inputs(3, 2 if "before" in name else 40), **options)


@kernels
def test_lengths_are_those_of_shorter_caches_bit_for_bit():
    query, key, value = inputs(1, 70)
    for mask in (causal() & window(9), (causal() & window(9)) | (causal() & prefix(2))):
        for first, second in ((33, 64),):
            lengths = torch.tensor([first, second], device=DEVICE)
            # What lies after the end of an item may hold anything.
            past = torch.arange(70, device=DEVICE) >= lengths.view(-1, 1, 1)
            dirty = [tensor.masked_fill(past.unsqueeze(-1), torch.nan) for tensor in (key, value)]
            first_out, out = (attend(query, *dirty, mask=mask, lengths=lengths, engine="decode") for _ in range(2))
            assert torch.equal(first_out, out)
            for item, length in enumerate((first, second)):
                alone = [tensor[item : item + 1] for tensor in (query, key[:, :, :length], value[:, :, :length])]
                # Alone, an item has other splits.
                step = attend(*alone, mask=mask, engine="decode")
                torch.testing.assert_close(out[item : item + 1], step, rtol=0, atol=1e-6)
            even = torch.tensor([second, second], device=DEVICE)
            short = attend(query, key[:, :, :second], value[:, :, :second], mask=mask, engine="decode")
            assert torch.equal(attend(query, key, value, mask=mask, lengths=even, engine="decode"), short)


@kernels
def test_pages():
    query, *_ = inputs(2, 1)
    generator = torch.Generator().manual_seed(3)
    key, value = (torch.randn(10, KEY_HEADS, 8, dim, generator=generator).to(DEVICE) for dim in (24, 16))
    for lengths in ([29, 29], [29, 12]):
        pages = Pages(torch.randperm(10, generator=generator)[:8].view(2, 4), lengths)
        check([query, key, value], mask=causal() & window(20), pages=pages)


@pytest.fixture
def products_row_by_row(monkeypatch: pytest.MonkeyPatch):
    """The interpreter multiplies with NumPy, and in some kernels of OpenBLAS a row depends on its place."""

    def matmul(a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> np.ndarray:
        return (a[:, :, None] * b[None]).sum(1, dtype=dtype)

    if IN_INTERPRETER:
        monkeypatch.setattr(np, "matmul", matmul)


@kernels
@pytest.mark.usefixtures("products_row_by_row")
def test_batch_invariant_rows_have_bits_of_their_own():
    query, key, value = inputs(6, 600 if HAS_GPU else 70)
    mask = (causal() & window(40)) | (causal() & prefix(2))
    whole = check([query, key, value], mask=mask, batch_invariant=True)
    end = key.shape[2]
    for item, row in ((0, 5), (1, 3)):
        cut = end - 5 + row
        own = [query[item : item + 1, :, row : row + 1], *(x[item : item + 1, :, :cut] for x in (key, value))]
        step = attend(*own, mask=mask, batch_invariant=True, engine="decode")
        assert torch.equal(step, whole[item : item + 1, :, row : row + 1])


@kernels
def test_a_repeated_call_is_the_same_and_follows_a_growing_cache():
    query, key, value = inputs(1, 40)
    mask = (causal() & window(9)) | (causal() & prefix(2))
    for length in (3, 17, 40):
        step = attend(query, key[:, :, :length], value[:, :, :length], mask=mask, engine="decode")
        fresh = attend(query, key[:, :, :length], value[:, :, :length], mask=mask & causal(), engine="decode")
        assert torch.equal(step, fresh)
    assert len(prepared.plans_of(mask)) == 1


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype):
    tensors = [tensor.to(dtype) for tensor in inputs(1, 3000, dim=128, value_dim=128)]
    out = attend(*tensors, mask=causal() & window(1000), engine="decode")
    wanted = attend(*(x.double() for x in tensors), mask=causal() & window(1000), engine="reference")
    assert float((out.double() - wanted).norm() / wanted.norm()) < 1e-2


@on_a_gpu
def test_a_cuda_graph_follows_the_lengths():
    query, key, value = (tensor.bfloat16() for tensor in inputs(1, 512, dim=64, value_dim=64))
    lengths = torch.tensor([1, 2], device=DEVICE, dtype=torch.int32)
    mask = causal() & window(100)
    for _ in range(2):
        attend(query, key, value, mask=mask, lengths=lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(query, key, value, mask=mask, lengths=lengths)
    for counts in ([512, 300], [7, 511]):
        lengths.copy_(torch.tensor(counts))
        graph.replay()
        assert torch.equal(out, attend(query, key, value, mask=mask, lengths=lengths))
        wanted = attend(query, key, value, mask=mask, lengths=lengths, engine="reference")
        torch.testing.assert_close(out, wanted, rtol=0, atol=2e-2)


@on_a_gpu
def test_auto_takes_it_for_steps():
    query, key, value = (tensor.bfloat16() for tensor in inputs(1, 512))
    assert plan(query, key, value, mask=causal() & window(100)).engine == "decode"
    assert plan(query, key, value, lengths=torch.tensor([3, 9], device=DEVICE)).engine == "decode"


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("it has no backward pass", {"requires_grad": True}),
    ("the mask has no range form, and ranges are all that it reads of one", {"mask": causal() & dilated(2)}),
    ("it has no float64 kernel", {"dtype": torch.float64}),
    ("it has no dropout", {"dropout": 0.1}),
    ("its head dims go up to 256", {"dim": 300}),
]


@pytest.mark.parametrize(("reason", "given"), REFUSED, ids=[reason for reason, _ in REFUSED])
def test_refusals(reason: str, given: dict[str, Any]):
    options = dict(given)
    tensors = inputs(1, 9, dim=options.pop("dim", 24))
    dtype, trains = options.pop("dtype", torch.float32), options.pop("requires_grad", False)
    tensors = [tensor.to(dtype).requires_grad_(trains) for tensor in tensors]
    with pytest.raises(Unsupported) as refusal:
        attend(*tensors, engine="decode", **options)
    if not (HAS_GPU or IN_INTERPRETER):
        reason = "it is a kernel for NVIDIA GPUs, and the tensors are on cpu"
    assert list(refusal.value.reasons) == [reason]


def test_a_table_of_ranges_by_position_serves_longer_caches():
    mask = (causal() & window(3)) | (causal() & prefix(1))
    table = table_for(mask, Frame.of(1, 5), torch.device("cpu"), every_position=False)
    assert table.serves_positions >= 4096
    for position in (0, 4, 4000):
        row = [
            (int(start), int(end))
            for start, end in zip(table.starts[0, 0, position], table.ends[0, 0, position], strict=True)
            if start < end
        ]
        assert row == mask.spans(1, position + 1).rows()[0]
    # A mask with data of its own has a table for the frame.
    own = table_for(causal() & padding([4, 5]), Frame.of(2, 5), torch.device("cpu"), every_position=False)
    assert (own.first_row, own.starts.shape[0], own.serves_positions) == (-3, 2, 0)
    every = RangeTable.at_positions(causal(), 4, torch.device("cpu"))
    assert every.ends.flatten().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "direction", "capability", "first"),
    [
        ("decode", "forward", (9, 0), "decode"),
        ("plain", "forward", (9, 0), "sdpa"),
        ("long", "forward", (9, 0), "hopper"),
        ("long", "backward", (9, 0), "hopper"),
        ("long narrow", "backward", (9, 0), "sdpa"),
        ("composed", "backward", (9, 0), "hopper"),
        ("decode", "forward", (8, 9), "decode"),
        ("plain", "forward", (10, 0), "sdpa"),
        ("composed", "backward", (8, 0), "flex"),
    ],
)
def test_the_table_of_what_was_measured(kind: str, direction: str, capability: tuple[int, int], first: str):
    assert gpu_choice.order_for(kind, direction, capability=capability)[0] == first


def test_the_table_asks_every_engine_that_leaves_the_choice_to_it():
    """`hopper` and `flex` never ask for a call themselves, so each row that they can serve must have them."""
    for capability, rows in gpu_choice.FASTEST.items():
        for kind, engines in rows.items():
            assert "flex" in engines
            assert ("hopper" in engines) == (capability == gpu_choice.HOPPER)
            assert ("decode" in engines) == (kind in [("decode", "forward"), ("composed", "forward")])


KINDS: list[tuple[str, tuple[int, int], Mask, bool]] = [
    ("decode", (1, 4096), causal() & window(100), False),
    ("decode", (16, 4096), causal(), False),
    ("plain", (64, 64), causal(), False),
    ("plain", (512, 512), causal(), False),
    ("plain", (9000, 9000), causal(), False),
    ("composed", (512, 512), causal() & window(9), False),
    ("composed", (5, 512), causal(), True),
]


@pytest.mark.parametrize(("kind", "sizes", "mask", "trains"), KINDS)
def test_the_kind_of_a_call(kind: str, sizes: tuple[int, int], mask: Mask, trains: bool):
    query, key, value = inputs(*sizes)
    call = Call.of(query.requires_grad_(trains), key, value, mask=mask)
    assert gpu_choice._kind(call) == kind


@pytest.mark.parametrize(
    ("length", "dims", "kind"),
    [
        (2047, (128, 128), "plain"),
        (2048, (128, 128), "long"),
        (8191, (64, 64), "plain"),
        (8192, (64, 64), "long narrow"),
        (8192, (80, 80), "plain"),
        (8192, (128, 64), "plain"),
    ],
)
def test_from_where_on_our_kernel_was_faster(length: int, dims: tuple[int, int], kind: str):
    query, value = (torch.empty(1, 1, length, dim) for dim in dims)
    assert gpu_choice._kind(Call.of(query, query, value)) == kind


@pytest.mark.skipif(HAS_GPU or IN_INTERPRETER, reason="here the kernels run by themselves")
def test_in_the_interpreter():
    pytest.importorskip("triton")
    # Triton reads the variable when it is imported.
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    # If all tests were skipped, this would prove nothing.
    assert re.search(r"\b[3-9]\d passed", done.stdout), done.stdout


@pytest.mark.skipif(HAS_GPU or IN_INTERPRETER, reason="here the kernels run")
@pytest.mark.parametrize(("capability", "lengths"), [(80, "*i32"), (90, "*i64")])
def test_the_kernels_compile(capability: int, lengths: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The kernels compile for a GPU, without one: the interpreter accepts code that the compiler does not."""
    pytest.importorskip("triton")
    import triton  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
    from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

    from rearview.attention.engines.decode import launch

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = launch.Decoding(Call.of(*(tensor.bfloat16() for tensor in inputs(1, 64, dim=128, value_dim=128))))
    pointers = {"starts": "*i32", "ends": "*i32", "lengths": lengths, "table": "*i32", "partial": "*fp32",
                "sums": "*fp32", "lse": "*fp32", "slopes": "*fp32", "sinks": "*fp32"}  # fmt: skip
    own = {"ONE_RANGE": False, "SINGLE": False, "LENGTHS": True, "DIRECT": False}
    combined = {**made.common, "HEADS": HEADS, "MOST_SPLITS": 8, "IN_ORDER": False}
    for kernel, constants in ((launch.split_kernel, {**made.constants, **own}), (launch.combine_kernel, combined)):
        signature, constexprs = {}, {}
        for index, name in enumerate(kernel.arg_names):  # pyright: ignore[reportFunctionMemberAccess]
            if name.isupper():
                signature[name], constexprs[index,] = "constexpr", constants[name]
            elif name in ("query", "key", "value", "bias", "out"):
                signature[name] = "*bf16"
            else:
                signature[name] = pointers.get(name, "fp32" if name in ("scale", "cap") else "i32")
        source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs)
        options = {"enable_fp_fusion": True}
        assert triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["ptx"]


def test_the_engine_is_listed():
    assert (decode.name, decode.where) == ("decode", "NVIDIA GPUs")
