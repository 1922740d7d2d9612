"""rearview audit: does a model only look back?

rearview audit mypackage.models:build
rearview audit ./checkpoint --config-only --contract "causal() & window(8)" --out report.html
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import typer

from rearview.cli.terminal import console, show
from rearview.errors import BadArgument
from rearview.masks import causal
from rearview.masks.parse import parse
from rearview.masks.write import target_of

ENDINGS, WITNESS_ENDINGS = (".html", ".json", ".txt"), (".npz", ".safetensors")
# From here on it takes a while, and one wants to know how long before it starts.
LARGE = 50_000_000


def audit(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION|DIR", help="A function that builds the model, or a checkpoint.")
    ],
    contract: Annotated[
        str | None, typer.Option("--contract", "-c", help="Who may be heard, as a mask. By default causal().")
    ] = None,
    full: Annotated[bool, typer.Option("--full/--quick", help="Thorough, or the default: seconds.")] = False,
    config_only: Annotated[
        bool, typer.Option("--config-only", help="Of a folder read config.json alone: random weights, made small.")
    ] = False,
    length: Annotated[int | None, typer.Option("--length", "-n", min=2, help="Positions. By default 32.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences. By default 2.")] = None,
    seed: Annotated[int, typer.Option(help="For everything that is drawn.")] = 0,
    out: Annotated[
        list[str] | None, typer.Option("--out", "-o", help=f"Also write {', '.join(ENDINGS)}; may be given again.")
    ] = None,
    witness: Annotated[
        str | None, typer.Option("--witness", "-w", help="Save the inputs that show a leak: .npz or .safetensors.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: all of the report.")] = False,
) -> None:
    """Does a model only look back? Evidence on the real kernels, a proof, and the place where it peeks.

    Exit code 0: PROVEN or HELD. 1: LEAKS. 2: an error. 3: INCONCLUSIVE.
    The function takes no arguments and returns a model, (model, inputs), or a dict
    with model and, if you like, inputs, contract, call, loss, step.

    Examples:
    rearview audit mypackage.models:build
    rearview audit mypackage.models:build --contract "causal() & window(8)" --full
    rearview audit ./checkpoint --out report.html --witness leak.npz
    rearview audit ./checkpoint --config-only --json
    """
    # Here, so that the other verbs do not wait for it.
    from rearview.audit import audit as run_audit
    from rearview.audit import estimate
    from rearview.audit.loading import load

    mask = None if contract is None else parse(contract)
    # What cannot be written is said before anything is run.
    for path in out or ():
        target_of(path, ENDINGS)
    if witness is not None:
        target_of(witness, WITNESS_ENDINGS)
    loaded = load(target, length=length, batch=batch, config_only=config_only, seed=seed)
    if mask is not None and loaded.contract is not None:
        raise BadArgument(
            "--contract", expected="one contract", came=f"{contract}, and {loaded.contract} from {target}"
        )
    mode = "full" if full else "quick"
    large = _is_large(loaded.model)
    if large:
        _aside(f"this will take {estimate(loaded.model, loaded.inputs, mode=mode)}")
    with _progress(plain=large) as progress:
        report = run_audit(
            loaded.model,
            loaded.inputs,
            next(given for given in (mask, loaded.contract, causal()) if given is not None),
            loaded.call,
            mode=mode,
            seed=seed,
            progress=progress,
            **loaded.options,
        )
    report = replace(report, conditions=(*loaded.notes, *report.conditions))
    if as_json:
        print(report.to_json(), end="")
    else:
        show(report.show())
    for path in out or ():
        report.save(path)
        _aside(f"wrote {path}")
    if witness is not None and report.witness is None:
        _aside(f"no leak, so there is no witness to write to {witness}")
    elif witness is not None and report.witness is not None:
        report.witness.save(witness)
        _aside(f"wrote {witness}")
    raise typer.Exit(report.exit_code)


def _aside(text: str) -> None:
    # Beside the report, so that JSON on the output stays JSON.
    print(f"rearview: {text}", file=sys.stderr, flush=True)


def _is_large(model: Any) -> bool:
    return hasattr(model, "parameters") and sum(p.numel() for p in model.parameters()) >= LARGE


@contextmanager
def _progress(*, plain: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A line that is written over; in a pipe one line a check, where it takes long, and else nothing."""
    if not sys.stderr.isatty():
        yield (lambda name, number, total: _aside(f"[{number + 1}/{total}] {name}")) if plain else None
        return
    paper = console()
    paper.stderr = True
    with paper.status("starting") as status:
        yield lambda name, number, total: status.update(f"[{number + 1}/{total}] {name}", spinner=None)
