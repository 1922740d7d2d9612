"""Build and run the kernel's own tests: plain, with sanitizers, and under valgrind.

    python native/tests/run.py              # everything, takes minutes
    python native/tests/run.py --short      # what continuous integration runs
    python native/tests/run.py plain --cases 1 --seed 77     # one way, followed by arguments of the program

Ways: `plain` (guard pages around every buffer), `emulated` (the same for the kernel in matrix tiles, whose instructions
are emulated, on any processor with AVX-512 and its bfloat16 products), `sanitized` (-fsanitize=address,undefined),
`valgrind` (which does not support AVX-512, so other instruction sets are forced).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from native import build

FOLDER = Path(__file__).resolve().parent
SANITIZERS = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
# The number of cases of a long and of a short run. Valgrind takes thirty times as long, so its calls are small.
CASES = {"plain": (3000, 200), "emulated": (1000, 100), "sanitized": (400, 40), "valgrind": (40, 4)}
SMALL = ("--most", "30000")
TESTS = ("reference.cpp", "reference_statistics.cpp", "check.cpp")
EMULATED = ("-DRV_EMULATE_TILES=1",)
# GCC 13 and later leave some products of sums unfused. The bits of a row must not depend on that.
UNFUSED = ("--param=avoid-fma-max-bits=512",)
# Sanitized code takes long to compile, so only the most portable and the widest instruction set are built.
ONLY = {"sanitized": "avx512_bf16.cpp", "emulated": "amx.cpp"}


def program(way: str) -> Path:
    """The path of the test program, compiled if necessary."""
    compiler = build.Compiler.find()
    flags = {"sanitized": SANITIZERS, "emulated": EMULATED}.get(way, ())
    if way == "emulated" and compiler.takes(UNFUSED):
        flags = (*flags, *UNFUSED)
    # The plain program is linked from the objects of the library.
    kernel = build.OBJECTS / (way if way in ONLY else "native")
    folder = kernel / "tests"
    with build.locked(kernel.name):
        objects = compiler.compile(build.kernel_sources(compiler, flags, only=ONLY.get(way)), kernel)
        tests = [build.Source(FOLDER / name, flags) for name in TESTS]
        objects += compiler.compile(tests, folder)
        compiler.link(objects, folder / "check", [flag for flag in flags if flag.startswith("-fsanitize")])
    return folder / "check"


def run(way: str, words: list[str]) -> int:
    command = [str(program(way)), *words]
    if way == "valgrind":
        valgrind = shutil.which("valgrind")
        if not valgrind:
            print("valgrind is not installed, so it is left out")
            return 0
        options = [
            "--error-exitcode=9",
            "--quiet",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
            "--child-silent-after-fork=yes",
        ]
        codes = []
        for isa in ("portable", "avx2"):
            print(f"valgrind, {isa}:", flush=True)
            codes.append(subprocess.run([valgrind, *options, *command, "--isa", isa], check=False).returncode)
        return max(codes)
    if way == "emulated" and "--isa" not in words:
        command += ["--isa", "amx"]
    print(f"{way}:", flush=True)
    return subprocess.run(command, check=False).returncode


def main() -> int:
    words = sys.argv[1:]
    short = "--short" in words
    words = [word for word in words if word != "--short"]
    ways = [words.pop(0)] if words and words[0] in CASES else list(CASES)
    failed = []
    for way in ways:
        given = [*(SMALL if way == "valgrind" else ()), *words]
        if "--cases" not in words:
            given += ["--cases", str(CASES[way][short])]
        try:
            code = run(way, given)
        except build.BuildFailed as failure:
            print(f"rearview: {failure}", file=sys.stderr)
            code = 1
        failed += [way] * (code != 0)
    print(f"FAILED: {', '.join(failed)}" if failed else "passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
