"""What `rearview doctor` finds out: versions, the kernel, the engines and the extras."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from rearview import __version__, plan
from rearview.attention.engines import ENGINES, native
from rearview.drawing.cells import counted
from rearview.errors import RearviewError

# The packages of each extra, and what they are for.
EXTRAS = {
    "terminal": (("rich", "typer"), "the rearview command"),
    "pictures": (("matplotlib", "numpy"), "pictures and .npz files"),
    "models": (("safetensors", "tokenizers"), "models in folders, and subword tokenizers"),
    "transformers": (("transformers",), "models of transformers"),
    "tensorboard": (("tensorboard",), "rearview train --tensorboard"),
}


def lines() -> list[str]:
    """The report, one line per fact."""
    found = [
        f"rearview {__version__}",
        f"  Python {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"  torch {torch.__version__}, {counted(torch.get_num_threads(), 'thread', 'threads')}, {_gpus()}",
        f"  CPU kernel: {_kernel()}",
        "",
        "Engines",
    ]
    x = torch.zeros(1, 1, 2, 8)
    for name, engine in ENGINES.items():
        found.append(f"  {name:<10} {_engine(name, x):<8} {engine.summary} ({engine.where})")
    chosen = plan(x, x, x).engine
    found += [f'  engine="auto" takes {chosen} for a small causal call on this CPU', "", "Extras"]
    missing: list[str] = []
    for extra, (packages, purpose) in EXTRAS.items():
        versions = {package: _version(package) for package in packages}
        absent = [package for package, got in versions.items() if got is None]
        missing += absent
        state = f"needs {', '.join(absent)}" if absent else ", ".join(f"{p} {v}" for p, v in versions.items())
        found.append(f"  {extra:<12} {state} ({purpose})")
    found += ["", f"To get what is missing: pip install {' '.join(missing)}" if missing else "Nothing is missing."]
    return found


def _kernel() -> str:
    if native.library.MISSING is not None:
        return f"none: {native.library.MISSING}"
    if native.library.WRONG_ENVIRONMENT:
        try:
            native.library.check_environment()
        except RearviewError as error:
            return f"found; {error}"
    return f"{native.isa()} in use, of {', '.join(native.isas())}"


def _gpus() -> str:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return counted(count, "CUDA GPU", "CUDA GPUs") if count else "no CUDA GPU"


def _engine(name: str, x: torch.Tensor) -> str:
    try:
        plan(x, x, x, engine=name)
    except RearviewError:
        return "not here"
    return "works"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
