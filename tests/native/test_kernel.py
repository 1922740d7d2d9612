"""The kernel's own tests in C++ (native/tests/), the short run: random calls against the definition, every
instruction set, guard pages around every buffer, sanitizers, valgrind."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from native import build
from native.tests import run
from tests.native_kernel import IN_CI

HAS_COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
pytestmark = pytest.mark.skipif(not HAS_COMPILER and not IN_CI, reason="no C++ compiler here")


def has_bfloat16_products() -> bool:
    compiler = build.Compiler.find()
    flags = next(flags for file, _, flags in build.INSTRUCTION_SETS if file == "amx.cpp")
    return compiler.is_x86 and compiler.takes(flags) and torch.cpu._is_avx512_bf16_supported()


@pytest.mark.parametrize("way", ["plain", "emulated", "sanitized", "valgrind"])
def test_the_kernel_agrees_with_the_definition(way: str, capfd: pytest.CaptureFixture[str]):
    if way == "emulated" and not has_bfloat16_products():
        pytest.skip("this processor or compiler has none of the instructions around the emulated ones")
    if way == "valgrind" and not shutil.which("valgrind"):
        assert not IN_CI, "valgrind is to be installed there"
        pytest.skip("valgrind is not installed")
    if way == "sanitized" and not build.Compiler.find().takes(run.SANITIZERS, linking=True):
        pytest.skip("this compiler has no sanitizers")
    small = run.SMALL if way == "valgrind" else ()
    code = run.run(way, [*small, "--cases", str(run.CASES[way][1])])
    said = capfd.readouterr()
    assert code == 0, said.out[-3000:] + said.err[-3000:]
    assert " 0 failures" in said.out


FORWARD = """
static reference::Output careless(rv_call call) {
    call.scale *= 1.01;
    return reference::forward(call, keep_of(call));
}
"""
STATISTICS = """
static reference::Statistics careless(rv_statistics_call call) {
    call.attention.scale *= 1.01;
    return reference::statistics(call);
}
"""


@pytest.mark.parametrize(
    ("right", "careless", "named"),
    [
        ("reference::forward(*call, keep_of(*call));", FORWARD, "out"),
        ("reference::statistics(*call);", STATISTICS, "statistics, lse"),
    ],
)
def test_a_wrong_kernel_is_caught(tmp_path: Path, right: str, careless: str, named: str):
    """The program must be able to fail: it is run with a kernel whose scale is slightly wrong."""
    folder = build.NATIVE / "tests"
    text = (folder / "reference_library.cpp").read_text()
    wrong = text.replace(right, "careless(*call);").replace('extern "C" {', careless + 'extern "C" {')
    assert wrong.count("careless") == 2
    source = tmp_path / "wrong.cpp"
    source.write_text(wrong)
    compiler = build.Compiler.find()
    flags = (f"-I{folder}", "-O0")
    sources = [build.Source(path, flags) for path in (*(folder / name for name in run.TESTS), source)]
    compiler.link(compiler.compile(sources, tmp_path / "objects"), tmp_path / "check", [])
    done = subprocess.run([tmp_path / "check", "--cases", "4"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"FAILED: {named}: expected" in done.stdout
    assert re.search(r"seed [1-4], portable: dtype", done.stdout)
