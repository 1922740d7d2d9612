"""What `rearview audit` does: load a model, audit it with progress, and print and write the report."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torch import nn

from rearview.auditing import Report, audit, compare_reports, estimate
from rearview.auditing.loading import load
from rearview.auditing.reporting.serial import from_json
from rearview.cli.audit import ENDINGS
from rearview.cli.terminal import columns, console, note, show
from rearview.codec import read_bytes
from rearview.errors import BadArgument, RearviewError
from rearview.files import target_of
from rearview.masks import causal
from rearview.masks.parser import parse

WITNESS_ENDINGS = (".npz", ".safetensors")
# From this many parameters on an audit takes a while, and an estimate is printed first.
LARGE = 50_000_000
LARGEST_REPORT = 2**28


class AuditStopped(RearviewError):
    """The command stopped at something other than a verdict."""


def run_audit(
    target: str | None,
    *,
    contract: str | None,
    full: bool,
    must_prove: bool,
    gate: bool,
    budget: float | None,
    config_only: bool,
    length: int | None,
    batch: int | None,
    seed: int,
    out: Sequence[str],
    witness: str | None,
    as_json: bool,
    annotate: bool,
) -> int:
    """Audit the model of a function or a folder; the exit code."""
    if target is None:
        raise BadArgument(
            "MODULE:FUNCTION|DIR",
            expected="package.module:function, or a folder",
            got="nothing",
            advice="For example mypackage.models:build, or ./checkpoint.",
        )
    with _without_traceback():
        # Names that cannot be written to are refused before anything is run.
        for path in out:
            target_of(path, ENDINGS)
        if witness is not None:
            target_of(witness, WITNESS_ENDINGS)
        sizes = {"length": length, "batch": batch, "config_only": config_only, "seed": seed}
        report = replace(_audited(target, contract, full=full, budget=budget, **sizes), must_prove=must_prove)
        _print(report, as_json=as_json, gate=gate)
        if annotate or (gate and os.environ.get("GITHUB_ACTIONS") == "true"):
            print(*report.annotations, sep="\n", end="\n" if report.annotations else "")
        _write(report, out, witness)
        sys.stdout.flush()
        return report.exit_code


def run_diff(before: str, after: str, *, target: str | None) -> int:
    """Compare two saved reports; the exit code."""
    if target is not None:
        raise BadArgument("MODULE:FUNCTION|DIR", expected="nothing beside --diff", got=repr(target))
    with _without_traceback():
        found = compare_reports(*map(_read, (before, after)))
        print(found)
        sys.stdout.flush()
        return 1 if found.is_worse else 0


def _read(path: str) -> Report:
    return from_json(read_bytes(Path(path), most=LARGEST_REPORT), path)


def _audited(
    target: str,
    contract: str | None,
    *,
    full: bool,
    budget: float | None,
    length: int | None,
    batch: int | None,
    config_only: bool,
    seed: int,
) -> Report:
    mask = None if contract is None else parse(contract)
    loaded = load(target, length=length, batch=batch, config_only=config_only, seed=seed)
    if mask is not None and loaded.contract is not None:
        raise BadArgument("--contract", expected="one contract", got=f"{contract}, and {loaded.contract} from {target}")
    mode = "full" if full else "quick"
    model = loaded.model
    is_large = isinstance(model, nn.Module) and sum(each.numel() for each in model.parameters()) >= LARGE
    if is_large:
        note(f"this will take {estimate(model, loaded.inputs, mode=mode)}")
    with _progress(in_pipe=is_large) as progress:
        report = audit(
            model,
            loaded.inputs,
            next(given for given in (mask, loaded.contract, causal()) if given is not None),
            loaded.call,
            mode=mode,
            budget=budget,
            seed=seed,
            progress=progress,
            **loaded.options,
        )
    return replace(report, conditions=(*loaded.notes, *report.conditions))


def _print(report: Report, *, as_json: bool, gate: bool) -> None:
    if as_json:
        print(report.to_json(), end="")
    elif gate:
        print(report.line)
    else:
        show(report.show(width=columns()))


def _write(report: Report, out: Sequence[str], witness: str | None) -> None:
    for path in out:
        report.save(path)
        note(f"wrote {path}")
    if witness is not None and report.witness is None:
        note(f"no leak, so there is no witness to write to {witness}")
    elif witness is not None and report.witness is not None:
        report.witness.save(witness)
        note(f"wrote {witness}")


@contextmanager
def _without_traceback() -> Iterator[None]:
    """End in one message and the exit code 2, whatever goes wrong: 1 is the code for a leak."""
    try:
        yield
    except RearviewError:
        raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise AuditStopped(f"{error.strerror or error}{where}. The report was not written.") from error
    except SystemExit as error:
        # Its code would be taken for a verdict, and 0 for a pass.
        raise AuditStopped(f"the model, or the function that builds it, called sys.exit({error.code!r})") from error
    except Exception as error:
        # The code of the model may raise anything, also while its result is loaded, hashed or drawn.
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:300]
        raise AuditStopped(
            f"the audit stopped with {type(error).__name__}: {text} ({at.filename}:{at.lineno})"
        ) from error


@contextmanager
def _progress(*, in_pipe: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A line that is overwritten; in a pipe one line per check if `in_pipe`, otherwise nothing."""
    if not sys.stderr.isatty():
        yield (lambda name, number, total: note(f"[{number + 1}/{total}] {name}")) if in_pipe else None
        return
    with console(stderr=True).status("starting") as status:
        yield lambda name, number, total: status.update(f"[{number + 1}/{total}] {name}", spinner=None)
