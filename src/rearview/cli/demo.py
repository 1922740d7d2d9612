"""rearview demo: masked attention step by step, then what the mask is worth, computed as you watch.

rearview demo
rearview demo --quick
"""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from rearview.cli.terminal import console, show
from rearview.explain.examples import FOUR_SPEAKERS
from rearview.masks import causal

# A few seconds instead of a minute or two; too little for good text.
QUICK = {
    "context": 16, "layers": 1, "heads": 2, "width": 32, "positions": "rotary", "steps": 150, "lr": 1e-2, "warmup": 15,
    "eval_every": 50, "eval_tokens": 2048, "exam_windows": 32, "prompts": 1, "new_tokens": 60,
}  # fmt: skip


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds: a smaller model, fewer steps.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A new folder for the comparison. By default a temporary one, which stays."),
    ] = None,
) -> None:
    """Masked attention step by step; then the same model trained with the mask and without it, and a report.

    About two minutes on two cores. Nothing that exists is written over.
    """
    if out is not None:
        from rearview.training.comparison.folder import check_free

        check_free(out)
    _worked_example()
    _comparison(out, quick=quick)


def _worked_example() -> None:
    paper = console()
    paper.print(Text("1. Masked attention: only look back", style="bold"))
    paper.print("Each may draw on those who spoke before, and on themselves.\n")
    show(FOUR_SPEAKERS.trace().show())
    paper.print(Text("\nThe same rule over words", style="bold"))
    paper.print("To predict the word after love, a model may use I and love; the answer is not there to be read.\n")
    show(causal().show("I love ___"))


def _comparison(out: Path | None, *, quick: bool) -> None:
    from rearview.cli.compare_run import command_of, finish, prepare

    paper = console()
    paper.print(Text("\n2. What the mask is worth", style="bold"))
    paper.print("If the answer is there to be read, does a model still learn? One is trained each way and examined.\n")
    given = QUICK if quick else {}
    folder = Path(tempfile.mkdtemp(prefix="rearview-demo-")) if out is None else out
    prepared = prepare(given, command=command_of(given), out=folder)
    raise typer.Exit(finish(prepared, folder, before_report=_next))


def _next() -> None:
    paper = console()
    paper.print(Text("\nNext", style="bold"))
    paper.print("  rearview explain restaurant --out restaurant.html    the first part as a page to step through")
    paper.print("  rearview compare --text book.txt --out book          the second part on a text of yours")
    paper.print('  rearview mask "causal() & window(3)" --tokens "I love sushi very much"')
