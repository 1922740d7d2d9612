"""A damaged library of the CPU kernel is told from a whole one before it is loaded."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rearview
from rearview.attention.engines import native
from rearview.attention.engines.native import library
from rearview.attention.engines.native.checksum import damage
from tests.native_kernel import needs_native

NOT_WHAT_WAS_BUILT = "the file is not the one that was built"

PROGRAM = """
import torch
from rearview import attend
from rearview.attention.engines import native
x = torch.ones(1, 1, 4, 8)
assert torch.equal(attend(x, x, x), x)
print(native.isa(), native.library.MISSING)
"""


def flipped(at: float) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        byte = int(at * (len(data) - 1))
        return data[:byte] + bytes([data[byte] ^ 16]) + data[byte + 1 :]

    return flip


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "64 bytes": lambda data: data[:64],
    "a third": lambda data: data[: len(data) // 3],
    "all but one byte": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\0",
    "zeros at the end": lambda data: data[:-4096] + bytes(4096),
    **{f"a bit at {at}": flipped(at) for at in (0, 0.00002, 0.0001, 0.3, 0.7, 0.999, 1)},
}


@needs_native
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_library_is_recognized(how: str, tmp_path: Path):
    copy = copied(tmp_path)
    assert damage(copy) is None
    copy.write_bytes(DAMAGES[how](copy.read_bytes()))
    assert damage(copy) == NOT_WHAT_WAS_BUILT


def copied(folder: Path) -> Path:
    for path in (library.PATH, library.PATH.with_name("librearview.so.sha256")):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder / library.PATH.name


@needs_native
def test_a_checksum_that_is_missing_or_unreadable_counts_as_damage(tmp_path: Path):
    copy = copied(tmp_path)
    checksum = tmp_path / "librearview.so.sha256"
    checksum.write_bytes(b"\xff\xfe")
    assert damage(copy) == NOT_WHAT_WAS_BUILT
    checksum.unlink()
    assert damage(copy) == "its checksum, librearview.so.sha256, is missing"


@needs_native
def test_a_damaged_library_is_not_loaded_and_everything_else_works(tmp_path: Path):
    package = Path(rearview.__file__).parent
    shutil.copytree(package, tmp_path / "rearview", ignore=shutil.ignore_patterns("__pycache__"))
    copy = tmp_path / "rearview" / library.PATH.relative_to(package)
    whole = copy.read_bytes()
    environment = {name: value for name, value in os.environ.items() if name != "REARVIEW_NATIVE_ISA"}
    said = []
    for data in (whole[:100_000], whole):
        copy.write_bytes(data)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            env=environment | {"PYTHONPATH": str(tmp_path)},
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == f"None its library is damaged: {NOT_WHAT_WAS_BUILT}; install rearview again\n"
    assert said[1] in {f"{isa} None\n" for isa in native.isas()}
