"""The machine and the dated file of results, without names of hosts or users."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Machine:
    processor: str
    cores: int
    memory: str
    system: str
    gpu: str = ""

    @classmethod
    def here(cls, device: torch.device) -> Machine:
        gpu = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}" if device.type == "cuda" else ""
        return cls(_processor(), _cores(), _memory(), _system(), gpu)

    @property
    def slug(self) -> str:
        name = self.gpu.split(",")[0] or self.processor
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"

    def lines(self, threads: int) -> list[str]:
        found = [
            f"processor: {self.processor}, {self.cores} cores, {threads} threads used",
            f"memory: {self.memory}",
            f"system: {self.system}",
            f"Python {platform.python_version()}, torch {torch.__version__}",
        ]
        return [f"GPU: {self.gpu}", *found] if self.gpu else found


def file_name(machine: Machine, *, today: date, suffix: str = "") -> str:
    """One file per day, machine and version of torch.

    >>> machine = Machine("AMD EPYC 9R14 (x2)", 2, "16 GiB", "Linux")
    >>> file_name(machine, today=date(2030, 1, 2)).split("-torch")[0]
    '2030-01-02-amd-epyc-9r14-x2'
    """
    version = torch.__version__.split("+")[0]
    return f"{today.isoformat()}-{machine.slug}-torch{version}{suffix}.md"


def write(path: Path, text: str) -> None:
    """Write the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):
        return "unknown"


def _system() -> str:
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.system()} {platform.machine()}"
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()} {platform.machine()}"
