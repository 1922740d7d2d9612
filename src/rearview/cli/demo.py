"""rearview demo: masked attention step by step, then a comparison of training with and without the mask.

rearview demo
rearview demo --quick
"""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from rearview.cli.commands import Command
from rearview.cli.terminal import console, show

# A few seconds instead of a minute or two; too short to generate good text.
QUICK = {
    "context": 16, "layers": 1, "heads": 2, "width": 32, "positions": "rotary", "steps": 150, "lr": 1e-2, "warmup": 15,
    "eval_every": 50, "exam_windows": 32, "prompts": 1, "new_tokens": 60,
}  # fmt: skip

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help="Take a few seconds: a smaller model and fewer steps.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="New folder to write the comparison to. By default a temporary folder, which is kept."
        ),
    ] = None,
) -> None:
    """Show masked attention step by step, then train a model with and without the mask.

    It ends with a report and takes about two minutes on two cores. No existing
    file is overwritten.
    """
    from rearview.comparison.folder import check_free

    if out is not None:
        check_free(out)
    _worked_example()
    _comparison(out, quick=quick)


def _worked_example() -> None:
    from rearview.explanation.examples import FOUR_SPEAKERS
    from rearview.masks import causal

    paper = console()
    paper.print(Text("1. Masked attention: only look back", style="bold"))
    paper.print("Each speaker may hear those who spoke before, and themselves.\n")
    show(FOUR_SPEAKERS.trace().show())
    paper.print(Text("\nThe same rule over words", style="bold"))
    paper.print("To predict the word after love, a model may use I and love, but not the answer.\n")
    show(causal().show("I love ___"))


def _comparison(out: Path | None, *, quick: bool) -> None:
    from rearview.cli.compare_run import start_comparison

    paper = console()
    paper.print(Text("\n2. Training with the mask and without it", style="bold"))
    paper.print(
        "Does a model learn to predict if it can see the answer? Two models are trained, and both are examined.\n"
    )
    given = QUICK if quick else {}
    folder = Path(tempfile.mkdtemp(prefix="rearview-demo-")) if out is None else out
    raise typer.Exit(start_comparison(given, given, folder, before_report=_next))


def _next() -> None:
    paper = console()
    paper.print(Text("\nNext", style="bold"))
    paper.print("  rearview studio                                      all of it live in your browser, on any text")
    paper.print("  rearview explain restaurant --out restaurant.html    the first part as a page")
    paper.print("  rearview compare --text book.txt --out book          the second part with your own text")
    paper.print('  rearview mask "causal() & window(3)" --tokens "I love sushi very much"\n')
