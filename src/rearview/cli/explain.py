"""rearview explain: explain one attention step by step.

rearview explain restaurant
rearview explain my.json --mask "causal() & window(3)" --out my.html
rearview explain --model DIR --text "I love sushi" --layer 1
"""

from typing import Annotated

import typer

from rearview.cli.commands import Command

# As in `Trace.save`, which is not imported for the help.
ENDINGS = (".html", ".json", ".csv", ".tex", ".svg", ".png", ".pdf")

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def explain(
    what: Annotated[
        str | None, typer.Argument(metavar="EXAMPLE|FILE", help="Name of an example, or a .json or .npz file.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Folder with a GPT or BERT, to explain a layer of it on --text.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", "-t", help="Text that the model reads.")] = None,
    layer: Annotated[int, typer.Option(help="Layer of the model, from 0; -1 is the last.")] = 0,
    mask: Annotated[
        str | None, typer.Option("--mask", "-m", help="Mask expression, instead of the mask of the input.")
    ] = None,
    head: Annotated[int | None, typer.Option(help="Head to show, from 0. By default the first.")] = None,
    no_mask: Annotated[
        bool, typer.Option("--no-mask", help="Print the attention as it would be without the mask.")
    ] = False,
    stage: Annotated[
        list[str] | None,
        typer.Option("--stage", "-s", help="Print only this stage, such as weights. May be repeated."),
    ] = None,
    out: Annotated[
        list[str] | None,
        typer.Option("--out", "-o", help=f"Also write a file: {', '.join(ENDINGS)}. May be repeated."),
    ] = None,
    decimals: Annotated[int, typer.Option(help="Number of decimals to print.")] = 3,
    latex: Annotated[
        bool, typer.Option("--latex", help="Print LaTeX to paste into a document that uses amsmath.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every stage and head as JSON.")] = False,
) -> None:
    """Explain one attention step by step: scores, mask, weights and output.

    The attention is computed with the mask and without it, and the weights are
    also put into words. Without arguments the built-in examples are listed. A
    file holds x, w_q, w_k and w_v, or query, key and value.

    Examples:
    rearview explain restaurant
    rearview explain restaurant --mask "causal() & window(2)" --stage weights
    rearview explain love --out love.html --out love.svg
    rearview explain love --latex --stage weights --decimals 2
    rearview explain my.json --head 1
    rearview explain five-tokens --json
    rearview explain --model DIR --text "I love sushi" --layer 1 --head 2
    """
    # Here, so that the help does not wait for torch.
    from rearview.cli.explain_run import run_explain

    run_explain(
        what, model=model, text=text, layer=layer, mask=mask, head=head, no_mask=no_mask, stages=stage or [],
        out=out or [], decimals=decimals, latex=latex, as_json=as_json,
    )  # fmt: skip
