"""rearview compare: the same model with the mask and without it, put to the same exam.

rearview compare
rearview compare --text book.txt --out book
rearview compare --report book
"""

from pathlib import Path
from typing import Annotated

import typer

from rearview.cli.compare_run import command_of, finish, prepare, present
from rearview.cli.learning import (
    LEARNING,
    MODEL,
    OUTPUT,
    Accumulate,
    Batch,
    Clip,
    ContextLength,
    Dropout,
    Encoding,
    EvalEvery,
    Heads,
    Layers,
    LearningRate,
    SaveEvery,
    Seed,
    Separator,
    TextSource,
    Threads,
    TokenKind,
    Validation,
    VocabSize,
    WeightDecay,
    Width,
    was_given,
)
from rearview.errors import BadArgument
from rearview.training.comparison.folder import FOUND, check_free, load, read_asked

EXAM = "Exam"
# What says where, not what.
PLACES = {"out", "resume", "report"}


def compare(
    context: typer.Context,
    text: TextSource = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder for both runs and the report.", rich_help_panel=OUTPUT)
    ] = Path("comparison"),
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with a comparison.", rich_help_panel=OUTPUT)
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Only print and write again what was found before.", rich_help_panel=OUTPUT
        ),
    ] = None,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    validation: Validation = 0.1,
    tokenizer: TokenKind = "chars",
    vocab_size: VocabSize = None,
    context_length: ContextLength = 64,
    layers: Layers = 2,
    heads: Heads = 4,
    width: Width = 96,
    positions: Annotated[
        str, typer.Option(metavar="learned|rotary", help="Of both models.", rich_help_panel=MODEL)
    ] = "learned",
    dropout: Dropout = 0.0,
    steps: Annotated[int, typer.Option(help="Of each model.", rich_help_panel=LEARNING)] = 1500,
    batch: Batch = 16,
    accumulate: Accumulate = 1,
    lr: LearningRate = 3e-3,
    warmup: Annotated[
        int | None,
        typer.Option(help="Steps until it is reached. By default a tenth, at most 50.", rich_help_panel=LEARNING),
    ] = None,
    weight_decay: WeightDecay = 0.1,
    clip: Clip = 1.0,
    seed: Seed = 0,
    precision: Annotated[
        str,
        typer.Option(
            metavar="auto|float32|bfloat16",
            help="Of products in training; the exam is in float32.",
            rich_help_panel=LEARNING,
        ),
    ] = "auto",
    threads: Threads = None,
    exam_windows: Annotated[int, typer.Option(help="Rows of held-out text in the exam.", rich_help_panel=EXAM)] = 64,
    prompts: Annotated[int, typer.Option(help="Held-out beginnings to go on from.", rich_help_panel=EXAM)] = 3,
    new_tokens: Annotated[int, typer.Option(help="Tokens that are written for each.", rich_help_panel=EXAM)] = 200,
    temperature: Annotated[float, typer.Option(help="Of what is written; 0: greedy.", rich_help_panel=EXAM)] = 0.8,
    eval_every: EvalEvery = 100,
    save_every: SaveEvery = 250,
) -> None:
    """Train the same GPT with the mask and without it, then examine both where the future does not exist.

    The exam: each next token of held-out text predicted from its prefix alone, and text written one token at a time.
    A summary is printed and a report written, one page that needs no network. Ctrl-C saves; --resume goes on.

    Examples:
    rearview compare
    rearview compare --text book.txt --out book --steps 3000
    rearview compare --resume book
    rearview compare --report book
    """
    given = {name for name in context.params if was_given(context, name)}
    if report is not None:
        if others := sorted(given - {"report"}):
            raise BadArgument("--report", expected="no other option: nothing is trained", came=_option(others[0]))
        present(load(report), report)
        return
    if resume is not None:
        if others := sorted(given - {"resume"}):
            advice = "A comparison keeps what it is; start another with another --out."
            raise BadArgument("--resume", expected="no other option", came=_option(others[0]), advice=advice)
        asked, out = read_asked(resume), resume
        if (out / FOUND).exists():
            print(f"The comparison in {out} is finished; this is what it found.")
            present(load(out), out)
            return
    else:
        check_free(out)
        asked = {name: value for name, value in context.params.items() if name not in PLACES}
        asked["context"] = asked.pop("context_length")
        if warmup is None:
            asked["warmup"] = min(50, steps // 10)
        said = {name.replace("context_length", "context"): context.params[name] for name in given - PLACES}
        asked["command"] = command_of(said)
    raise typer.Exit(finish(prepare(asked, command=asked["command"], out=out), out))


def _option(name: str) -> str:
    return "--" + name.removesuffix("_length").replace("_", "-")
