"""rearview audit: does a model only look back?

rearview audit mypackage.models:build
rearview audit ./checkpoint --config-only --contract "causal() & window(8)" --out report.html
rearview audit mypackage.models:build --gate --must-prove --budget 60 --out audit.json
rearview audit --diff before.json after.json
"""

from typing import Annotated

import typer

from rearview.cli.commands import Command

ENDINGS = (".html", ".json", ".txt")

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def audit(
    target: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:FUNCTION|DIR", help="Function that builds the model, or a checkpoint."),
    ] = None,
    contract: Annotated[
        str | None,
        typer.Option("--contract", "-c", help="Mask expression that the model must obey. By default causal()."),
    ] = None,
    full: Annotated[bool, typer.Option("--full/--quick", help="Thorough checks, or checks that take seconds.")] = False,
    must_prove: Annotated[
        bool, typer.Option("--must-prove", help="Pass only if the verdict is PROVEN; HELD exits with 3.")
    ] = False,
    gate: Annotated[
        bool, typer.Option("--gate", help="Print one line only, and on GitHub annotate the line that leaks.")
    ] = False,
    budget: Annotated[float | None, typer.Option("--budget", help="Number of seconds that the audit may take.")] = None,
    config_only: Annotated[
        bool,
        typer.Option(
            "--config-only", help="Read only config.json of a folder, and audit a small model with random weights."
        ),
    ] = False,
    length: Annotated[
        int | None, typer.Option("--length", "-n", min=2, help="Number of positions. By default 32.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Number of sequences. By default 2.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    out: Annotated[
        list[str] | None, typer.Option("--out", "-o", help=f"Also write a file: {', '.join(ENDINGS)}. May be repeated.")
    ] = None,
    witness: Annotated[
        str | None,
        typer.Option("--witness", "-w", help="Save the inputs that show a leak to this file: .npz or .safetensors."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
    annotate: Annotated[
        bool, typer.Option("--annotate", help="Print annotations for GitHub, as --gate does in a workflow.")
    ] = False,
    diff: Annotated[
        tuple[str, str], typer.Option("--diff", metavar="A.json B.json", help="Compare two reports instead.")
    ] = ("", ""),
) -> None:
    """Check that a model only looks back: evidence, a proof, and the line that leaks.

    Exit codes: 0 for PROVEN or HELD, 1 for LEAKS, 2 if something failed, 3 for
    INCONCLUSIVE, and with --must-prove for HELD as well. --diff exits with 1 if
    the verdict of the second report is worse.
    The function takes no arguments and returns a model, (model, inputs), or a
    dict with the key model and, optionally, inputs, contract, call, vary, cache,
    loss and step.

    Examples:
    rearview audit mypackage.models:build
    rearview audit mypackage.models:build --contract "causal() & window(8)" --full
    rearview audit mypackage.models:build --gate --must-prove --budget 60
    rearview audit ./checkpoint --out report.html --witness leak.npz
    rearview audit ./checkpoint --config-only --json
    rearview audit --diff before.json after.json
    """
    # Here, so that the help does not wait for torch.
    from rearview.cli.audit_run import run_audit, run_diff

    if any(diff):
        raise typer.Exit(run_diff(*diff, target=target))
    code = run_audit(
        target, contract=contract, full=full, must_prove=must_prove, gate=gate, budget=budget, config_only=config_only,
        length=length, batch=batch, seed=seed, out=out or [], witness=witness, as_json=as_json, annotate=annotate,
    )  # fmt: skip
    raise typer.Exit(code)
