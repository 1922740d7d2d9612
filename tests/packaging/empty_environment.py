"""An environment in which nothing is installed but torch: no compiler on PATH, another home, no network.

torch is too large to be installed for a test, so the one of this environment is made visible, with what it needs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

NO_NETWORK = """
import sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        raise RuntimeError(f"the network was asked for: {arguments}")
sys.addaudithook(refuse)
"""
OFFLINE = ("--verbose", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile", "--no-cache-dir")


class EmptyEnvironment:
    def __init__(self, folder: Path):
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True, timeout=120)
        self.bin = folder / "env" / "bin"
        self.home = folder / "home"
        self.home.mkdir()
        self.packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder / "env")}))
        (self.packages / "no_network.py").write_text(NO_NETWORK)
        (self.packages / "no_network.pth").write_text("import no_network\n")
        (self.packages / "torch.pth").write_text(f"{visible(folder / 'with_torch', 'torch')}\n")

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment in an empty folder, with nothing from the environment of the tests."""
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.home,
            env={"PATH": str(self.bin), "HOME": str(self.home), "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    def install(self, file: Path, *, programs: str = "", **environment: str) -> str:
        """Install a wheel or an sdist as pip does without an index, and return what pip says.

        `programs` is a PATH on which a compiler may be found.
        """
        # hatchling is there while an sdist is built, as in an isolated build.
        builder = visible(self.folder / "with_hatchling", "hatchling")
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", *OFFLINE, str(file)],
            cwd=self.home,
            env={
                "PATH": os.pathsep.join(filter(None, [str(self.bin), programs])),
                "HOME": str(self.home),
                "PYTHONPATH": str(builder),
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        # What the build says is on stderr.
        return done.stdout + done.stderr


def visible(folder: Path, package: str) -> Path:
    """A folder with links to an installed package and to everything that it requires, and to nothing else."""
    if folder.exists():
        return folder
    folder.mkdir()
    names, seen = [package], set[str]()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        for top in {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}:
            (folder / top).symlink_to(Path(str(found.locate_file(top))))
        # Requirements of extras, of other systems and of other versions of Python have conditions.
        required = [line for line in found.requires or () if ";" not in line]
        names += [match[0] for line in required if (match := re.match(r"[\w.-]+", line))]
    return folder
