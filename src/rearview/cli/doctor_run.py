"""What `rearview doctor` finds out: versions, the kernel, the engines and the extras; and what is missing.

It needs none of the extras, not even the one of the command line, and survives a torch that cannot be imported.

>>> found = examine()
>>> found.engines["reference"] is None    # no reason against it
True
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

import rearview
from rearview.drawing.cells import counted
from rearview.errors import RearviewError, Unsupported

if TYPE_CHECKING:
    from torch import Tensor

# What the extras are for. Their packages are those of pyproject.toml, as the installation recorded them.
PURPOSES = {
    "terminal": "the rearview command",
    "pictures": "pictures and .npz files",
    "models": "models in folders, and subword tokenizers",
    "studio": "rearview studio",
    "transformers": "models of transformers",
    "tensorboard": "rearview train --tensorboard",
}
REQUIREMENT = re.compile(r"""([\w.-]+)\s*([^;\s]*)\s*(?:;.*extra == ['"](\w+)['"])?""")
IN_CHECKOUT = Path(rearview.__file__).parents[2] / "native" / "build.py"
COMPILER = "a C++17 compiler (on Debian and Ubuntu: apt install g++)"


@dataclass(frozen=True)
class Extra:
    """`packages` are the installed ones with their versions; `missing` are requirements, as pip takes them."""

    purpose: str
    packages: Mapping[str, str]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Findings:
    """What works here. An engine has None, or the reason why it cannot be used; so have the kernel and torch."""

    rearview: str
    python: str
    system: str
    torch: str | None
    torch_problem: str | None = None
    threads: int = 0
    gpus: int = 0
    kernel: str | None = None
    instruction_sets: tuple[str, ...] = ()
    kernel_problem: str | None = None
    engines: Mapping[str, str | None] = field(default_factory=dict)
    summaries: Mapping[str, str] = field(default_factory=dict)
    auto: str | None = None
    extras: Mapping[str, Extra] = field(default_factory=dict)

    @property
    def advice(self) -> list[str]:
        """How to get what is missing: a sentence for each."""
        found = []
        if self.torch_problem:
            found.append(f"torch: {self.torch_problem}. Install it again: pip install --force-reinstall torch")
        if self.kernel_problem and not self.instruction_sets:
            found.append(f"the CPU kernel: {_how_to_get_the_kernel(self.kernel_problem)}")
        elif self.kernel_problem:
            found.append(f"the CPU kernel: {self.kernel_problem}")
        missing = {each: None for extra in self.extras.values() for each in extra.missing}
        if missing:
            found.append("the extras: pip install " + " ".join(f"'{each}'" for each in missing))
        return found


def examine() -> Findings:
    """Look at this installation and this machine. Nothing is compiled, run or changed."""
    basics = Findings(
        rearview=rearview.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=_version("torch"),
        extras=_extras(),
    )
    try:
        import torch
    except (ImportError, OSError) as error:
        # OSError: one of its libraries cannot be loaded.
        return replace(basics, torch_problem=f"it cannot be imported: {error}")
    from rearview.attention.engines import ENGINES, native

    tensors = [torch.zeros(1, 1, 2, 8)]
    if torch.cuda.is_available():
        tensors.append(torch.zeros(1, 1, 2, 64, device="cuda", dtype=torch.bfloat16))
    engines = {name: _why_not(name, tensors) for name in ENGINES}
    return replace(
        basics,
        torch=torch.__version__,
        torch_problem=_too_old("torch", torch.__version__),
        threads=torch.get_num_threads(),
        gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        kernel=native.isa(),
        instruction_sets=tuple(native.isas()),
        kernel_problem=_kernel_problem(),
        engines=engines,
        summaries={name: f"{engine.summary} ({engine.where})" for name, engine in ENGINES.items()},
        auto=_taken(tensors[0]),
    )


def lines(found: Findings) -> Iterator[str]:
    """The report, one line per fact."""
    yield f"rearview {found.rearview}"
    yield f"  Python {found.python} on {found.system}"
    if found.torch_problem and not found.engines:
        yield f"  torch {found.torch or 'is not installed'}: {found.torch_problem}"
    else:
        gpus = counted(found.gpus, "CUDA GPU", "CUDA GPUs") if found.gpus else "no CUDA GPU"
        yield f"  torch {found.torch}, {counted(found.threads, 'thread', 'threads')}, {gpus}"
        yield f"  CPU kernel: {kernel_line(found)}"
        yield from ("", "Engines")
        for name, reason in found.engines.items():
            state = f"works    {found.summaries[name]}" if reason is None else f"not here: {reason}"
            yield f"  {name:<10} {state}"
        if found.auto:
            yield f'  engine="auto" takes {found.auto} for a small causal call on this CPU'
    yield from ("", "Extras")
    for name, extra in found.extras.items():
        have = ", ".join(f"{package} {number}" for package, number in extra.packages.items())
        state = f"needs {', '.join(extra.missing)}" if extra.missing else have
        yield f"  {name:<12}  {state} ({extra.purpose})"
    if not found.extras:
        yield "  unknown: this rearview is imported from a folder and was not installed"
    yield ""
    if found.advice:
        yield "To get what is missing"
        yield from (f"  {each}" for each in found.advice)
    else:
        yield "Nothing is missing."


def version_lines(found: Findings) -> Iterator[str]:
    """What `rearview --version` prints after the version."""
    yield f"Python {found.python}, torch {found.torch or 'not installed'}, {found.system}"
    yield f"CPU kernel: {kernel_line(found)}"
    working = [name for name, reason in found.engines.items() if reason is None]
    yield f"engines: {', '.join(working) or 'none'}; rearview doctor says what is missing"


def kernel_line(found: Findings) -> str:
    """The kernel in a few words."""
    if not found.engines:
        return "unknown without torch"
    if found.kernel_problem:
        return f"found; {found.kernel_problem}" if found.instruction_sets else f"none: {found.kernel_problem}"
    return f"{found.kernel} in use, of {', '.join(found.instruction_sets)}"


def _kernel_problem() -> str | None:
    from rearview.attention.engines.native import library

    if library.MISSING is not None:
        return library.MISSING
    if library.WRONG_ENVIRONMENT:
        try:
            library.check_environment()
        except RearviewError as error:
            return str(error)
    return None


def _how_to_get_the_kernel(problem: str) -> str:
    if IN_CHECKOUT.exists():
        return f"make native, with {COMPILER}"
    again = "pip install --force-reinstall --no-deps --no-cache-dir"
    # A damaged file was there and will be again; one that was never there may need to be compiled.
    if "damaged" in problem:
        return f"{again} rearview"
    return f"{again} rearview, which needs no compiler where there is a wheel for this platform; else first {COMPILER}"


def _why_not(engine: str, tensors: list[Tensor]) -> str | None:
    """None if the engine can compute a plain causal call on any of the devices, otherwise its reason."""
    reason = None
    for x in tensors:
        try:
            rearview.plan(x, x, x, engine=engine)
        except Unsupported as error:
            reason = "; ".join(error.reasons)
        except RearviewError as error:
            reason = str(error)
        else:
            return None
    return reason


def _taken(x: Tensor) -> str | None:
    """The engine for a small call, or None if the environment names an instruction set that is not here."""
    try:
        return rearview.plan(x, x, x).engine
    except RearviewError:
        return None


def _extras() -> dict[str, Extra]:
    needed: dict[str, dict[str, str]] = {name: {} for name in PURPOSES}
    for package, condition, extra in _requirements():
        # An extra that consists of others names this package.
        if extra in needed and package != "rearview":
            needed[extra][package] = condition
    if not any(needed.values()):
        return {}
    return {name: _extra(PURPOSES[name], packages) for name, packages in needed.items()}


def _extra(purpose: str, packages: Mapping[str, str]) -> Extra:
    versions = {package: _version(package) for package in packages}
    missing = [
        package + condition
        for package, condition in packages.items()
        if (number := versions[package]) is None or _is_below(number, condition)
    ]
    return Extra(purpose, {package: number for package, number in versions.items() if number}, tuple(missing))


def _requirements() -> Iterator[tuple[str, str, str | None]]:
    """The requirements of this package: name, condition, and the extra that they belong to."""
    try:
        found = requires("rearview") or []
    except PackageNotFoundError:
        found = []
    for line in found:
        if match := REQUIREMENT.match(line):
            yield match[1], match[2], match[3]


def _too_old(package: str, number: str) -> str | None:
    for name, condition, extra in _requirements():
        if name == package and extra is None and _is_below(number, condition):
            return f"version {number} is too old, {name}{condition} is needed"
    return None


def _is_below(number: str, condition: str) -> bool:
    """Whether a version is below the minimum that a condition states.

    >>> _is_below("5.10.1", ">=5.9"), _is_below("2.9.0+cpu", ">=2.11"), _is_below("3", "")
    (False, True, False)
    """
    minimum = re.search(r">=\s*([\d.]+)", condition)
    return minimum is not None and _numbers(number) < _numbers(minimum[1])


def _numbers(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
