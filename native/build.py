"""Compile the CPU kernel into one shared library, with nothing but Python and a C++17 compiler.

    python native/build.py                      # into the package, only what changed
    python native/build.py --kernel reference   # the naive definition behind the same interface, to test the binding

The build of the package (hatch_build.py), `make native` and the tests use this module. The library has a plain C
interface: it is built once per platform and depends neither on Python nor on torch. Environment: CXX names the
compiler, CXXFLAGS and LDFLAGS are added.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
OBJECTS = NATIVE.parent / "build" / "native"
PACKAGE = NATIVE.parent / "src" / "rearview" / "attention" / "engines" / "native"
# In a separate folder: next to Python files it would be taken for a module.
LIBRARY = PACKAGE / "lib" / "librearview.so"
# If there is no library, this file in its place has the reason, one sentence, for the messages of the engine.
NOT_BUILT = PACKAGE / "lib" / "not_built.txt"

FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-pthread"),
    *("-Wall", "-Wextra"),
    # GCC warns about its own intrinsics and std::sort; clang does not know all of these options.
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-array-bounds", "-Wno-unknown-warning-option"),
)
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c")
# One file per instruction set: (file, macro that tells that it was compiled, flags).
INSTRUCTION_SETS = (
    ("avx2.cpp", "RV_WITH_AVX2", AVX2),
    ("avx512.cpp", "RV_WITH_AVX512", AVX512),
    ("avx512_bf16.cpp", "RV_WITH_AVX512_BF16", (*AVX512, "-mavx512bf16")),
    ("amx.cpp", "RV_WITH_AMX", (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16")),
)


class BuildFailed(Exception):
    """Why the build failed, in one sentence, followed by the output of the compiler."""

    def __init__(self, why: str, said: str = ""):
        self.why, self.said = why, said
        super().__init__(why + (f"\n{said}" if said else ""))


@dataclass(frozen=True)
class Source:
    """One translation unit with its flags."""

    path: Path
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]

    @classmethod
    def find(cls) -> Compiler:
        named = os.environ.get("CXX")
        for name in [named] if named else ["c++", "g++", "clang++"]:
            # CXX is the path of a program, which may contain spaces, or a program with arguments.
            command = (name,) if shutil.which(name) else _words("CXX", name)
            if command and shutil.which(command[0]):
                return cls(command)
        raise BuildFailed(
            f"the compiler that CXX names, {named}, is not there" if named else "no C++ compiler was found"
        )

    @cached_property
    def is_x86(self) -> bool:
        return self._call(["-dumpmachine"]).stdout.startswith(("x86_64", "amd64"))

    @cached_property
    def version(self) -> str:
        said = self._call(["--version"]).stdout
        return said.splitlines()[0] if said else ""

    def takes(self, flags: Sequence[str], *, linking: bool = False) -> bool:
        """Whether the compiler accepts these flags for an empty program."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "empty.out"
            mode = ["-shared", "-fPIC"] if linking else ["-c"]
            return self._call([*flags, *mode, "-x", "c++", "-", "-o", str(target)]).returncode == 0

    def compile(self, sources: Sequence[Source], folder: Path) -> list[Path]:
        """The objects of the sources. Objects that are up to date are not compiled again."""
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            return list(pool.map(lambda source: self._object(source, folder), sources))

    def link(self, objects: Iterable[Path], target: Path, flags: Sequence[str]) -> None:
        # Written next to the target and renamed, so that processes which have the old library loaded keep it.
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        extra = _words("LDFLAGS", os.environ.get("LDFLAGS", ""))
        try:
            call = [*map(str, objects), *flags, "-pthread", *extra, "-o", str(temporary)]
            self._run(call, f"linking {target.name}", temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)

    def _object(self, source: Source, folder: Path) -> Path:
        target, needs = folder / f"{source.path.stem}.o", folder / f"{source.path.stem}.d"
        flags = [*FLAGS, *source.flags, f"-I{NATIVE / 'include'}", *_words("CXXFLAGS", os.environ.get("CXXFLAGS", ""))]
        stamp = folder / f"{source.path.stem}.stamp"
        made_by = _hash_of(repr((self.command, self.version, flags)).encode())
        if _is_fresh(target, needs, stamp, made_by):
            return target
        stamp.unlink(missing_ok=True)
        call = [*flags, "-MMD", "-MF", str(needs), "-c", str(source.path), "-o", str(target)]
        self._run(call, f"compiling {source.path.name}", target, needs)
        stamp.write_text(_stamp_of(made_by, target, needs))
        return target

    def _run(self, words: list[str], what: str, *made: Path) -> None:
        """Run the compiler, which must write these files."""
        for path in made:
            path.unlink(missing_ok=True)
        done = self._call(words)
        if done.returncode:
            raise BuildFailed(f"{what} with {self.version or self.command[0]} failed", done.stderr.strip())
        if done.stderr.strip():
            print(done.stderr.strip(), file=sys.stderr)
        for path in made:
            if not path.is_file() or not path.stat().st_size:
                raise BuildFailed(f"{what} with {self.version or self.command[0]} reported no error and wrote nothing")

    def _call(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            # The output may be in any encoding.
            return subprocess.run(
                [*self.command, *words], input="", capture_output=True, text=True, errors="replace", check=False
            )
        except OSError as error:
            raise BuildFailed(f"the compiler {self.command[0]} cannot be run: {error.strerror}") from error


def _words(variable: str, value: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise BuildFailed(f"{variable} cannot be read as words: {error}: {value!r}") from error


def _hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _stamp_of(made_by: str, *files: Path) -> str:
    """What was made, and how: a file that was damaged or replaced since then has another hash."""
    return " ".join([made_by, *(_hash_of(file.read_bytes()) for file in files)])


def _read(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.exists() else ""


def _is_fresh(target: Path, needs: Path, stamp: Path, made_by: str) -> bool:
    if not (target.exists() and needs.exists()) or _read(stamp) != _stamp_of(made_by, target, needs):
        return False
    made = target.stat().st_mtime_ns
    # A rule of make: after a colon, with spaces in names escaped.
    rule = needs.read_text().replace("\\\n", " ").split(": ", 1)[1]
    files = [file.replace("\\ ", " ") for file in re.split(r"(?<!\\)\s+", rule.strip())]
    return all(Path(file).exists() and Path(file).stat().st_mtime_ns <= made for file in files)


@contextlib.contextmanager
def locked(kernel: str = "native") -> Iterator[None]:
    """Allow one build of a kernel at a time: tests in several processes share the objects."""
    import fcntl  # Not available on Windows, where nothing is built.

    OBJECTS.mkdir(parents=True, exist_ok=True)
    with (OBJECTS / f"{kernel}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kernel_sources(compiler: Compiler, extra: Sequence[str] = (), *, only: str | None = None) -> list[Source]:
    """The sources of the kernel: the portable part, and instruction sets (or `only` one) that the compiler supports."""
    folder, flags = NATIVE / "src", tuple(extra)
    sets, macros = [], []
    if compiler.is_x86:
        for file, macro, own in INSTRUCTION_SETS:
            if only in (None, file) and (folder / file).exists() and compiler.takes(own):
                sets.append(Source(folder / file, (*flags, *own)))
                macros.append(f"-D{macro}=1")
    others = sorted(path for path in folder.glob("*.cpp") if path.name not in {file for file, _, _ in INSTRUCTION_SETS})
    # The sources that choose between instruction sets are told which ones were compiled.
    return [*(Source(path, (*flags, *macros)) for path in others), *sets]


# The definition, and the file that gives it the interface of the kernel.
REFERENCE = ("reference.cpp", "reference_statistics.cpp", "reference_library.cpp")


def reference_sources(extra: Sequence[str] = ()) -> list[Source]:
    """The definition in double precision, behind the same interface."""
    folder = NATIVE / "tests"
    return [Source(folder / name, tuple(extra)) for name in REFERENCE]


def build(target: Path, *, kernel: str = "native") -> None:
    """The library, or BuildFailed."""
    if sys.platform == "win32":
        raise BuildFailed("it is not built on Windows")
    compiler = Compiler.find()
    sources = kernel_sources(compiler) if kernel == "native" else reference_sources()
    if not sources:
        raise BuildFailed(f"there are no sources in {NATIVE / 'src'}")
    with locked():
        objects = compiler.compile(sources, OBJECTS / kernel)
        # Not the C++ runtime: torch has loaded it anyway, and a copy of this system's would need this system's glibc.
        exports = f"-Wl,--version-script={NATIVE / 'exports.map'}"
        flags = ["-shared", *([exports] if compiler.takes([exports], linking=True) else [])]
        stamp = OBJECTS / "linked.txt"
        stamps = [_read(each.with_suffix(".stamp")) for each in objects]
        made_by = _hash_of(repr((str(target), flags, os.environ.get("LDFLAGS"), stamps)).encode())
        checksum = checksum_file(target)
        if target.exists() and _read(stamp) == _stamp_of(made_by, target) and _read(checksum) == _checksum_of(target):
            return
        compiler.link(objects, target, flags)
        checksum.write_text(_checksum_of(target))
        stamp.write_text(_stamp_of(made_by, target))


def checksum_file(library: Path) -> Path:
    """The file beside a library with its SHA-256, by which a damaged one is recognized without loading it."""
    return library.with_name(f"{library.name}.sha256")


def _checksum_of(library: Path) -> str:
    # As sha256sum writes and checks it.
    return f"{_hash_of(library.read_bytes())}  {library.name}\n"


def move_out(folder: Path) -> None:
    """Build into this folder, because the source tree cannot be written to."""
    global OBJECTS, LIBRARY, NOT_BUILT
    OBJECTS, LIBRARY, NOT_BUILT = folder / "objects", folder / LIBRARY.name, folder / NOT_BUILT.name


def install(*, kernel: str = "native") -> str | None:
    """Build into the package as REARVIEW_NATIVE says. Returns None, or why there is no library; `require` raises."""
    wanted = os.environ.get("REARVIEW_NATIVE", "1")
    if wanted not in ("0", "1", "require"):
        raise BuildFailed(f"REARVIEW_NATIVE: expected 0, 1 or require, got {wanted!r}")
    try:
        if wanted == "0":
            raise BuildFailed("it was left out (REARVIEW_NATIVE=0)")
        build(LIBRARY, kernel=kernel)
    except BuildFailed as failure:
        # An older library must not be taken for the new one.
        LIBRARY.unlink(missing_ok=True)
        checksum_file(LIBRARY).unlink(missing_ok=True)
        if wanted == "require":
            raise
        NOT_BUILT.parent.mkdir(parents=True, exist_ok=True)
        NOT_BUILT.write_text(f"{failure.why}\n", encoding="utf-8", errors="replace")
        return str(failure)
    NOT_BUILT.unlink(missing_ok=True)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernel", choices=("native", "reference"), default="native", help="what to build (native)")
    parser.add_argument(
        "--optional", action="store_true", help="print nothing on success, and succeed without a library"
    )
    args = parser.parse_args()
    try:
        failure = install(kernel=args.kernel)
    except BuildFailed as error:
        print(f"rearview: the CPU kernel: {error}", file=sys.stderr)
        return 1
    if failure:
        print(f"rearview: there is no CPU kernel (engine 'native'): {failure}", file=sys.stderr)
    elif not args.optional:
        print(f"built {LIBRARY.relative_to(NATIVE.parent)} ({args.kernel})")
    return int(bool(failure) and not args.optional)


if __name__ == "__main__":
    sys.exit(main())
