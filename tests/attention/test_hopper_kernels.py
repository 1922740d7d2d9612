"""The kernels for Hopper GPUs compile for one, without one: Gluon does not run in Triton's interpreter.

What they compute is tested where there is such a GPU (test_hopper.py, test_conformance.py).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rearview import Mask, causal, dilated, prefix, window
from rearview.attention.call import Call
from rearview.attention.engines.hopper import backward, kernel, launcher, recording, schedule

HAS_GPU = torch.cuda.is_available()
pytestmark = [
    pytest.mark.skipif(HAS_GPU, reason="here the kernels run"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter does not compile"),
]

LENGTH = 200


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What was launched and is compiled instead, by the name of the kernel."""
    if importlib.util.find_spec("triton") is None:
        if os.environ.get("CI"):
            pytest.fail("Triton is not installed. In CI the tests of the GPU kernels may not be skipped.")
        pytest.skip("Triton, which compiles the kernels, is not installed")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found: dict[str, Any] = {}

    def compile_only(
        function: Any,
        programs: tuple[int, ...],
        arguments: Sequence[Any],
        constants: Mapping[str, object],
        *,
        warps: int = 4,
    ) -> None:
        found[function.fn.__name__] = compile_for_hopper(function, arguments, constants, warps)

    nothing = torch.zeros(1, dtype=torch.int32)
    for module in (recording, schedule):
        monkeypatch.setattr(module, "launch", compile_only)
    for module in (kernel, backward):
        monkeypatch.setattr(module, "counter", lambda tensor: nothing)
        monkeypatch.setattr(module, "processors", lambda device: 132)
    return found


def compile_for_hopper(function: Any, arguments: Sequence[Any], constants: Mapping[str, object], warps: int) -> Any:
    import triton  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
    from triton.compiler import ASTSource, make_backend  # pyright: ignore[reportMissingImports]
    from triton.experimental.gluon._runtime import GluonASTSource  # pyright: ignore[reportMissingImports]
    from triton.runtime.jit import create_function_from_signature  # pyright: ignore[reportMissingImports]

    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    bind = create_function_from_signature(function.signature, function.params, backend)
    given = [launcher._descriptor(each) if isinstance(each, launcher.Tiled) else each for each in arguments]
    bound, kinds, _ = bind(*given, **constants)
    signature, constexprs, attributes = {}, {}, {}
    for index, (parameter, kind, value) in enumerate(zip(function.params, kinds, bound.values(), strict=True)):
        signature[parameter.name] = kind[0]
        if kind[0] == "constexpr":
            constexprs[(index,)] = value
        elif kind[1]:
            attributes[(index,)] = backend.parse_attr(kind[1])
    source = (GluonASTSource if function.is_gluon() else ASTSource)(function, signature, constexprs, attributes)
    return triton.compile(source, target=target, options={"num_warps": warps, "enable_fp_fusion": True})


def launch_all(mask: Mask, dim: int, **options) -> None:
    query, key, value = (torch.zeros(1, heads, LENGTH, dim, dtype=torch.bfloat16) for heads in (2, 1, 1))
    call = Call.of(query, key, value, mask=mask, **options)
    tensors = (query, key, value, None, None)
    out, lse = kernel.forward(tensors, call)
    backward.backward(tensors, call, out, lse, torch.zeros_like(out), None)


def assert_on_tensor_cores(made: Any) -> None:
    assert "wgmma.mma_async" in made.asm["ptx"]
    assert "cp.async.bulk.tensor" in made.asm["ptx"]
    # A block of an H100 or H200 has 227 KiB.
    assert made.metadata.shared <= 227 << 10


@pytest.mark.parametrize("dim", [64, 128])
def test_the_fused_pass_compiles(compiled: dict[str, Any], dim: int):
    # The tests on a CPU ask for deterministic algorithms.
    torch.use_deterministic_algorithms(False)
    launch_all((causal() & window(70)) | prefix(3), dim)
    assert set(compiled) == {
        "make_granules", "attention_forward", "prepare_rows", "make_key_lists", "fused_gradients", "finish_rows"
    }  # fmt: skip
    for name in ("attention_forward", "fused_gradients"):
        assert_on_tensor_cores(compiled[name])
    # The gradients of queries are added up by the copy engine.
    assert "cp.reduce.async.bulk.tensor" in compiled["fused_gradients"].asm["ptx"]


def test_the_passes_apart_compile(compiled: dict[str, Any]):
    # The fewest instructions, so that it takes seconds: narrow tiles, of a dim that is computed in two passes.
    launch_all(causal() & dilated(3), 200, softcap=2.0)
    assert set(compiled) == {"attention_forward", "prepare_rows", "key_gradients", "query_gradients"}
    for name in ("attention_forward", "key_gradients", "query_gradients"):
        assert_on_tensor_cores(compiled[name])
