"""The build of the CPU kernel: what is recompiled, what the library exports, and what happens if the build fails."""

import ctypes
import hashlib
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from native import build
from rearview.attention.engines.native.library import ABI
from tests.native_kernel import IN_CI

HAS_COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
pytestmark = pytest.mark.skipif(not HAS_COMPILER and not IN_CI, reason="no C++ compiler here")

SMALL = """
#include "rearview.h"
extern "C" int64_t rv_abi(void) { return RV_ABI; }
int64_t hidden() { return 1; }
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree of one small file, and everything that is made in a folder of its own."""
    (tmp_path / "src").mkdir()
    shutil.copytree(build.NATIVE / "include", tmp_path / "include")
    shutil.copy(build.NATIVE / "exports.map", tmp_path)
    (tmp_path / "src" / "dispatch.cpp").write_text(SMALL)
    monkeypatch.setattr(build, "NATIVE", tmp_path)
    monkeypatch.setattr(build, "OBJECTS", tmp_path / "objects")
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "package" / "librearview.so")
    monkeypatch.setattr(build, "NOT_BUILT", tmp_path / "package" / "not_built.txt")
    (tmp_path / "package").mkdir()
    for name in ("CXX", "CXXFLAGS", "LDFLAGS", "REARVIEW_NATIVE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_only_what_changed_is_compiled(place: Path):
    assert build.install() is None
    made = {path: path.stat().st_mtime_ns for path in (place / "objects").rglob("*.o")}
    library = build.LIBRARY.stat().st_mtime_ns
    assert ctypes.CDLL(str(build.LIBRARY)).rv_abi() == ABI
    assert build.install() is None
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert build.LIBRARY.stat().st_mtime_ns == library
    # A changed header counts.
    header = place / "include" / "rearview.h"
    header.write_text(header.read_text().replace(f"#define RV_ABI {ABI}", "#define RV_ABI 77"))
    assert build.install() is None
    assert build.LIBRARY.stat().st_mtime_ns > library
    assert "77" in header.read_text()


def test_other_flags_compile_again(place: Path, monkeypatch: pytest.MonkeyPatch):
    assert build.install() is None
    before = build.LIBRARY.stat().st_mtime_ns
    monkeypatch.setenv("CXXFLAGS", "-DSOMETHING")
    assert build.install() is None
    assert build.LIBRARY.stat().st_mtime_ns > before


def test_the_library_exports_only_the_interface(place: Path):
    build.install()
    assert shown(build.LIBRARY) == ["rv_abi"]
    built = build.PACKAGE / "lib" / "librearview.so"
    if built.exists():
        names = shown(built)
        assert {"rv_forward", "rv_statistics"} <= set(names)
        assert all(name.startswith("rv_") for name in names)


def shown(library: Path) -> list[str]:
    said = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in said.stdout.splitlines()]


def test_a_failed_build_is_reported_and_removes_the_old_library(place: Path):
    assert build.install() is None
    (place / "src" / "dispatch.cpp").write_text("this is no C++")
    why = build.install()
    assert why is not None
    assert why.startswith("compiling dispatch.cpp with ")
    assert "error" in why
    assert list(build.LIBRARY.parent.iterdir()) == [build.NOT_BUILT]
    # The reason that the engine gives: the sentence without the output of the compiler.
    (sentence,) = build.NOT_BUILT.read_text().splitlines()
    assert why.startswith(sentence)
    (place / "src" / "dispatch.cpp").write_text(SMALL)
    assert build.install() is None
    assert not build.NOT_BUILT.exists()


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("CXX", "no-such-compiler", "the compiler that CXX names, no-such-compiler, is not there"),
        ("PATH", "", "no C++ compiler was found"),
        ("REARVIEW_NATIVE", "0", "it was left out (REARVIEW_NATIVE=0)"),
    ],
)
def test_an_installation_works_without_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str
):
    monkeypatch.setenv(variable, value)
    assert build.install() == why
    assert build.NOT_BUILT.read_text() == why + "\n"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("no program at all", "the compiler {} cannot be run: Exec format error"),
        ("#!/bin/sh\nprintf 'd\\351faut' >&2\nexit 1\n", "compiling dispatch.cpp with {} failed\nd\ufffdfaut"),
    ],
)
def test_a_compiler_that_does_not_work_stops_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, program: str, why: str
):
    compiler = place / "my compiler"
    compiler.write_text(program)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert build.install() == why.format(compiler)


def test_a_compiler_that_writes_nothing_is_named(place: Path, monkeypatch: pytest.MonkeyPatch):
    compiler = place / "silent"
    compiler.write_text("#!/bin/sh\nexit 0\n")
    compiler.chmod(0o755)
    assert build.install() is None
    monkeypatch.setenv("CXX", str(compiler))
    assert build.install() == f"compiling dispatch.cpp with {compiler} reported no error and wrote nothing"
    assert not build.LIBRARY.exists()
    # A compiler that compiles and does not link.
    compiler.write_text('#!/bin/sh\ncase "$*" in *-shared*) exit 0 ;; esac\nexec c++ "$@"\n')
    why = build.install()
    assert why is not None
    assert why.startswith("linking librearview.so with ")
    assert why.endswith(" reported no error and wrote nothing")
    assert not build.LIBRARY.exists()


@pytest.mark.parametrize(
    "damaged", ["dispatch.o", "dispatch.d", "dispatch.stamp", "librearview.so", ".sha256", "linked.txt"]
)
@pytest.mark.parametrize("how", ["cut", "flipped", "removed"])
def test_what_was_damaged_is_made_again(place: Path, damaged: str, how: str):
    """Although its time says that it is fresh."""
    assert build.install() is None
    made = [path for path in place.rglob("*") if path.is_file() and path.parent.name != "include"]
    (path,) = (path for path in made if path.name.endswith(damaged))
    time, data, whole = path.stat(), path.read_bytes(), build.LIBRARY.read_bytes()
    match how:
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "flipped":
            path.write_bytes(data[:20] + bytes(byte ^ 255 for byte in data[20:40]) + data[40:])
        case "removed":
            path.unlink()
    if how != "removed":
        os.utime(path, ns=(time.st_atime_ns, time.st_mtime_ns))
    assert build.install() is None
    assert build.LIBRARY.read_bytes() == whole
    assert build.checksum_file(build.LIBRARY).read_text().split() == [
        hashlib.sha256(whole).hexdigest(),
        "librearview.so",
    ]
    assert ctypes.CDLL(str(build.LIBRARY)).rv_abi() == ABI


def test_flags_with_an_open_quote_are_named(place: Path, monkeypatch: pytest.MonkeyPatch):
    for variable in ("CXX", "CXXFLAGS", "LDFLAGS"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "c++ '-O2")
            why = build.install()
        assert why is not None
        assert why.startswith(f"{variable} cannot be read as words: No closing quotation")


def test_a_compiler_with_arguments_or_with_spaces_in_its_path(place: Path, monkeypatch: pytest.MonkeyPatch):
    (place / "my compiler").symlink_to(shutil.which("c++") or "c++")
    for named in (str(place / "my compiler"), "c++ -DARGUMENT=1"):
        monkeypatch.setenv("CXX", named)
        assert build.install() is None


def test_a_folder_with_spaces_is_not_compiled_twice(place: Path, monkeypatch: pytest.MonkeyPatch):
    (place / "a folder, é").mkdir()
    (place / "src").rename(place / "a folder, é" / "src")
    for name in ("include", "exports.map"):
        (place / name).rename(place / "a folder, é" / name)
    monkeypatch.setattr(build, "NATIVE", place / "a folder, é")
    assert build.install() is None
    before = (build.OBJECTS / "native" / "dispatch.o").stat().st_mtime_ns
    assert build.install() is None
    assert (build.OBJECTS / "native" / "dispatch.o").stat().st_mtime_ns == before


def test_a_read_only_source_tree(place: Path):
    made = place / "elsewhere"
    build.move_out(made)
    assert build.install() is None
    assert (made / "librearview.so").exists()
    assert not list((place / "package").iterdir())


def test_it_may_be_required(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("REARVIEW_NATIVE", "require")
    with pytest.raises(build.BuildFailed, match="no-such-compiler, is not there"):
        build.install()
    monkeypatch.setenv("REARVIEW_NATIVE", "yes")
    with pytest.raises(build.BuildFailed, match="REARVIEW_NATIVE: expected 0, 1 or require, got 'yes'"):
        build.install()


def test_instruction_sets_are_built_where_the_compiler_has_them(place: Path, monkeypatch: pytest.MonkeyPatch):
    for file, _, _ in build.INSTRUCTION_SETS:
        (place / "src" / file).write_text("")
    compiler = build.Compiler.find()
    sources = {source.path.name: source.flags for source in build.kernel_sources(compiler)}
    if compiler.is_x86 and compiler.takes(["-mavx512bf16"]):
        assert "-mavx512bf16" in sources["avx512_bf16.cpp"]
        macros = ("AVX2", "AVX512", "AVX512_BF16", "AMX")
        assert sources["dispatch.cpp"] == tuple(f"-DRV_WITH_{name}=1" for name in macros)
    monkeypatch.setattr(build.Compiler, "takes", lambda self, flags, linking=False: "-mavx2" in flags)
    monkeypatch.setattr(build.Compiler, "is_x86", True)
    compiler = build.Compiler.find()
    sources = {source.path.name: source.flags for source in build.kernel_sources(compiler)}
    assert sources == {"dispatch.cpp": ("-DRV_WITH_AVX2=1",), "avx2.cpp": build.AVX2}
    monkeypatch.setattr(build.Compiler, "is_x86", False)
    assert [source.path.name for source in build.kernel_sources(build.Compiler.find())] == ["dispatch.cpp"]


def test_instruction_sets_share_no_functions():
    """If several objects define a function, the linker keeps any one of them, with any instruction set."""
    compiler = build.Compiler.find()
    with build.locked():
        objects = compiler.compile(build.kernel_sources(compiler), build.OBJECTS / "native")
    shared = {path.stem: set(weak(path)) for path in objects}
    assert len(shared) >= 2
    for one, other in itertools.combinations(shared, 2):
        assert not shared[one] & shared[other], f"{one} and {other}"


def weak(path: Path) -> list[str]:
    said = subprocess.run(["nm", "-C", "--defined-only", str(path)], capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=2) for line in said.splitlines()]
    # References to the C++ runtime itself are data, the same in all.
    return [name for _, kind, name in lines if kind in "WVu" and not name.startswith("DW.ref")]
