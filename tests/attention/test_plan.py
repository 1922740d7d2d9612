"""The plan: the engine for each call, the reasons, and that attend follows the plan."""

import html
from typing import Any

import pytest
import torch

from rearview import Mask, Unsupported, alibi, attend, causal, dilated, documents, full, padding, plan, prefix, window
from rearview.attention import prepared
from rearview.attention.engines import ENGINES, hopper, reference
from rearview.attention.engines.native import library, measured
from tests.native_kernel import NATIVE, needs_native

FUSED = "the fused kernel expresses this mask without a dense tensor"
SMALL = "at this size one fused call with a dense mask costs less than several exact ones"
VISIBLE = "it computes the visible ranges only, forward and backward, and compiles nothing"
STRIPS = "it makes the mask for a strip of queries at a time, forward and backward, and compiles nothing"

NO_RANGES = "no ranges, the keys that a query hears are not a few ranges"
NO_HOPPER = "cannot: its kernels are for NVIDIA Hopper GPUs (H100, H200), and the tensors are on cpu"
OWN = "the C++ kernel computes the visible pairs only, on all cores"

# What is asked for -> (q_len, k_len), mask, options, (engine, reason); on a CPU, without the kernel. With it, it is
# taken wherever the mask has ranges.
RULE: dict[str, tuple[tuple[int, int], Mask, dict[str, Any], tuple[str, str]]] = {
    "causal": ((512, 512), causal(), {}, ("sdpa", FUSED)),
    "everything": ((512, 512), full(), {}, ("sdpa", FUSED)),
    "a window that is wider than the keys": ((512, 512), causal() & window(4096), {}, ("sdpa", FUSED)),
    "one step over a cache": ((1, 512), causal(), {}, ("sdpa", FUSED)),
    "one step over a long cache, in a window of it": ((1, 8192), causal() & window(512), {}, ("sdpa", FUSED)),
    "one step over a padded cache": ((1, 8192), causal() & padding([8192, 99]), {}, ("sdpa", FUSED)),
    "one step over a short cache, in a window of it": ((1, 64), causal() & window(8), {}, ("sdpa", FUSED)),
    "one step that hears every second key": ((1, 64), causal() & dilated(2), {}, ("blocks", STRIPS)),
    "a chunk over a cache": ((256, 512), causal(), {}, ("blocks", VISIBLE)),
    "a window": ((512, 512), causal() & window(64), {}, ("blocks", VISIBLE)),
    "documents": ((512, 512), causal() & documents(torch.arange(512) // 64), {}, ("blocks", VISIBLE)),
    "prefix-LM": ((512, 512), causal() | prefix(64), {}, ("blocks", VISIBLE)),
    "padding": ((512, 512), causal() & padding([512, 300]), {}, ("blocks", VISIBLE)),
    "no ranges": ((512, 512), causal() & dilated(2), {}, ("blocks", STRIPS)),
    "small": ((16, 16), causal() & window(4), {}, ("sdpa", SMALL)),
    "small, with a softcap": ((16, 16), causal(), {"softcap": 1.0}, ("blocks", VISIBLE)),
    "small, with the log-sum-exp": ((16, 16), causal(), {"return_lse": True}, ("blocks", VISIBLE)),
    "small, with dropout": ((16, 16), causal() & window(4), {"dropout": 0.1}, ("sdpa", SMALL)),
    "with a bias": ((512, 512), causal(), {"bias": alibi(2)}, ("blocks", VISIBLE)),
    "small, with a bias": ((16, 16), causal(), {"bias": alibi(2)}, ("sdpa", SMALL)),
}
rule = pytest.mark.parametrize(("sizes", "mask", "options", "expected"), RULE.values(), ids=RULE)


def inputs(q_len: int, k_len: int, dim: int = 32, **options: Any) -> tuple[torch.Tensor, ...]:
    return torch.zeros(2, 2, q_len, dim, **options), *(torch.zeros(2, 2, k_len, dim, **options) for _ in range(2))


@pytest.fixture(params=["with the kernel", "without"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Is the CPU kernel there, for this machine's own instructions?"""
    there = request.param == "with the kernel"
    monkeypatch.setattr(library, "IS_FAST", there)
    monkeypatch.setattr(library, "HAS_TILES", False)
    monkeypatch.setattr(library, "MISSING", None if there else "its library is not in this installation: it is a test")
    return there


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the engines that ran, each replaced by the definition."""
    names: list[str] = []
    define = reference.run
    # Nothing is remembered from calls of other tests with the same mask.
    monkeypatch.setattr(prepared, "kind_of", lambda *arguments: None)
    for name, engine in ENGINES.items():

        def run(call, name=name):
            names.append(name)
            return define(call)

        monkeypatch.setattr(engine, "run", run)
    return names


@rule
def test_the_rule_and_that_attend_follows_it(kernel, taken, sizes, mask, options, expected):
    tensors = inputs(*sizes)
    made = plan(*tensors, mask=mask, **options)
    assert (made.engine, made.reason) == (("native", OWN) if kernel and mask.has_ranges else expected)
    assert taken == []
    attend(*tensors, mask=mask, **options)
    assert taken == [made.engine]


@needs_native
def test_where_pytorch_is_faster_than_the_kernel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "IS_FAST", True)
    # A processor with matrix tiles, and a kernel that does not use them.
    monkeypatch.setattr(library, "HAS_TILES", True)
    monkeypatch.setattr(library, "ISA", "avx512")
    assert plan(*inputs(1, 512, dim=16)).engine == "sdpa"
    half = inputs(512, 512, dtype=torch.bfloat16)
    assert plan(*half).engine == "sdpa"
    assert plan(*inputs(512, 512, dtype=torch.bfloat16, requires_grad=True)).engine == "sdpa"
    # Not where it would need a dense mask, nor in another dtype.
    assert plan(*half, mask=causal() & window(9)).engine == "native"
    assert plan(*inputs(512, 512)).engine == "native"
    assert plan(*inputs(512, 512, dtype=torch.float16)).engine == "native"
    # Nor on a processor without them.
    monkeypatch.setattr(library, "ISA", "avx512_bf16")
    monkeypatch.setattr(library, "HAS_TILES", False)
    assert plan(*half).engine == "native"


@needs_native
def test_where_pytorch_is_faster_than_the_kernel_in_tiles(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "IS_FAST", True)
    monkeypatch.setattr(library, "HAS_TILES", True)
    monkeypatch.setattr(library, "ISA", "amx")
    half: dict[str, Any] = {"dtype": torch.bfloat16}
    assert plan(*inputs(512, 512, **half)).engine == "native"
    assert plan(*inputs(512, 512, requires_grad=True, **half)).engine == "native"
    # Short sequences, forward alone.
    assert plan(*inputs(128, 128, **half)).engine == "sdpa"
    assert plan(*inputs(128, 128, requires_grad=True, **half)).engine == "native"
    assert plan(*inputs(128, 128, **half), mask=causal() & window(9)).engine == "native"
    assert (plan(*inputs(64, 64)).engine, plan(*inputs(128, 128)).engine) == ("sdpa", "native")
    # A step, unless wide keys are shared by several queries.
    assert plan(*inputs(1, 4096, **half)).engine == "sdpa"
    assert plan(*inputs(1, 4096)).engine == "native"
    shared = torch.zeros(1, 2, 4096, 128, **half)
    assert plan(torch.zeros(1, 8, 1, 128, **half), shared, shared).engine == "native"


def test_every_row_of_the_table_names_instruction_sets_of_the_kernel():
    assert {name for row in measured.TABLE for name in row.isas} <= set(library.ISAS) - {"portable"}


@rule
def test_the_text_of_a_plan(kernel, sizes, mask, options, expected):
    made = plan(*inputs(*sizes), mask=mask, **options)
    first, about_mask, about_engine, heading, *others = str(made).splitlines()
    queries = "1 query" if sizes[0] == 1 else f"{sizes[0]} queries"
    assert first == f"2 x 2 heads x {queries} over {sizes[1]} keys, dim 32, float32, cpu"
    share = f"{100 * mask.spans(*sizes).share:.1f} % visible" if mask.has_ranges else NO_RANGES
    assert about_mask == f"mask {mask!r}: {share}"
    assert about_engine.startswith(f"engine {made.engine}: {made.reason}; about ")
    assert about_engine.endswith("B beyond inputs and output")
    assert heading == "not taken:"
    # Every other engine, each with a reason of its own.
    assert [line.split()[0] for line in others] == [name for name in ENGINES if name != made.engine]
    reasons = [line.split(maxsplit=1)[1] for line in others]
    assert len(set(reasons)) == len(others)
    assert all(len(reason) > 20 for reason in reasons)


@pytest.mark.parametrize("engine", [NATIVE if name == "native" else name for name in ENGINES if name != "decode"])
def test_a_named_engine_is_taken(taken: list[str], engine: str, monkeypatch: pytest.MonkeyPatch):
    # As if there were a Hopper GPU, and it took these tensors.
    monkeypatch.setattr(hopper, "refusals", lambda call: [])
    tensors = inputs(16, 16)
    made = plan(*tensors, engine=engine)
    assert (made.engine, made.reason) == (engine, "it was asked for")
    assert list(made.not_taken) == [name for name in ENGINES if name != engine]
    attend(*tensors, engine=engine)
    assert taken == [engine]


def test_a_named_engine_that_cannot_is_not_planned_either():
    with pytest.raises(Unsupported, match=r"(?s)engine 'sdpa' cannot do this exactly:.*it has no softcap"):
        plan(*inputs(16, 16), engine="sdpa", softcap=1.0)


def test_each_engine_says_why_it_was_not_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "IS_FAST", False)
    monkeypatch.setattr(library, "MISSING", None)
    not_faster = "on this processor, or under torch.func, it was not measured to be faster than"
    compiled = "it would be compiled at the first call, which takes seconds"
    definition = "it is the definition, which is not optimized, and holds 12.0 MiB of scores"
    on_gpus = "cannot: it is a kernel for NVIDIA GPUs, and the tensors are on cpu"
    assert plan(*inputs(512, 512)).not_taken == {
        "native": f"{not_faster} sdpa",
        "hopper": NO_HOPPER,
        "decode": on_gpus,
        "flex": compiled,
        "blocks": "sdpa expresses this mask too, and is faster",
        "reference": definition,
    }
    assert plan(*inputs(512, 512), mask=causal() & window(9)).not_taken == {
        "native": f"{not_faster} blocks",
        "hopper": NO_HOPPER,
        "decode": on_gpus,
        "flex": compiled,
        "sdpa": "it would compute every pair, with a dense mask of 256.0 KiB",
        "reference": definition,
    }
    monkeypatch.setattr(library, "IS_FAST", True)
    assert plan(*inputs(512, 512)).not_taken["sdpa"] == (
        "it expresses this mask exactly too, but native was measured to be faster"
    )
    assert plan(*inputs(512, 512), mask=causal() & window(9)).not_taken["blocks"] == (
        "it computes the visible ranges in many calls of PyTorch, and native was measured to be faster"
    )


def test_why_not_is_what_the_engine_would_say():
    made = plan(*inputs(16, 16, requires_grad=True), softcap=1.0, return_lse=True, dropout=0.1)
    assert made.not_taken["sdpa"] == "cannot: it does not return the log-sum-exp; it has no softcap"
    assert made.not_taken["flex"].startswith(
        "cannot: it has no dropout; FlexAttention on a CPU is forward only; FlexAttention on a CPU does not return"
    )
    named = plan(*inputs(16, 16), engine="reference")
    assert named.not_taken["blocks"] == "another engine was asked for"


def test_memory_is_what_grows_with_the_length():
    window_of = causal() & window(64)
    short, long = inputs(1024, 1024), inputs(4096, 4096)
    # A dense mask of bools, the float32 scores of every batch item and head, and a few tiles of them.
    assert plan(*short, mask=window_of, engine="sdpa").memory == 1024**2
    assert plan(*long, mask=window_of, engine="sdpa").memory == 4096**2
    assert plan(*long, mask=causal(), engine="sdpa").memory == 0
    for bias, numbers in ((alibi(2), 2), (torch.zeros(1024, 1024), 1), (torch.zeros(2, 2, 1024, 1024), 4)):
        assert plan(*short, mask=window_of, bias=bias, engine="sdpa").memory == numbers * 4 * 1024**2
    assert plan(*long, mask=window_of, engine="reference").memory >= 4 * 4 * 4096**2
    exact = [plan(*tensors, mask=window_of, engine="blocks").memory for tensors in (short, long)]
    assert exact[0] == exact[1] < 2**23
    assert "about 16.0 MiB beyond" in str(plan(*long, mask=window_of, engine="sdpa"))
    assert "about 0 B beyond" in str(plan(*long, mask=causal(), engine="sdpa"))


@needs_native
def test_the_memory_of_the_kernel_is_linear_in_the_length():
    short, long = (plan(*inputs(length, length), engine="native").memory for length in (1024, 4096))
    assert 4 * short == long
    # At least the log-sum-exp in float32, and by far no score for each pair.
    assert 2 * 2 * 4096 * 4 <= long < 4096 * 4096


def test_a_notebook_shows_the_text_of_a_plan():
    found = plan(*inputs(64, 64), mask=causal() & documents([0] * 64))
    assert str(found) in html.unescape(found._repr_html_())
