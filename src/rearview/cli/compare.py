"""rearview compare: train the same model with the mask and without it, and examine both.

rearview compare
rearview compare --text book.txt --out book
rearview compare --report book
"""

from pathlib import Path
from typing import Annotated

import typer

from rearview.cli.commands import Command, given_options, option_name
from rearview.cli.training_options import (
    OUTPUT,
    TRAINING,
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
    Positions,
    Precision,
    SaveEvery,
    Seed,
    Separator,
    Steps,
    TextSource,
    Threads,
    TokenKind,
    Validation,
    VocabSize,
    WeightDecay,
    Width,
    with_sources,
)
from rearview.errors import BadArgument

EXAM = "Exam"
# The options that are not settings of the comparison.
FOLDERS = {"out", "resume", "report"}

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def compare(
    ctx: typer.Context,
    text: TextSource = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder to write both runs and the report to.", rich_help_panel=OUTPUT)
    ] = Path("comparison"),
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Resume a comparison.", rich_help_panel=OUTPUT)
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Print the result of a comparison, and write its report again.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    validation: Validation = 0.1,
    tokenizer: TokenKind = "chars",
    vocab_size: VocabSize = None,
    context: ContextLength = 64,
    layers: Layers = 2,
    heads: Heads = 4,
    width: Width = 96,
    positions: Positions = "learned",
    dropout: Dropout = 0.0,
    steps: Steps = 1500,
    batch: Batch = 16,
    accumulate: Accumulate = 1,
    lr: LearningRate = 3e-3,
    warmup: Annotated[
        int | None,
        typer.Option(help="Number of warmup steps. By default a tenth, at most 50.", rich_help_panel=TRAINING),
    ] = None,
    weight_decay: WeightDecay = 0.1,
    clip: Clip = 1.0,
    seed: Seed = 0,
    precision: Precision = "auto",
    threads: Threads = None,
    exam_windows: Annotated[
        int, typer.Option(help="Number of rows of held-out text in the exam.", rich_help_panel=EXAM)
    ] = 64,
    prompts: Annotated[int, typer.Option(help="Number of held-out prompts to continue.", rich_help_panel=EXAM)] = 3,
    new_tokens: Annotated[
        int, typer.Option(help="Number of tokens to generate per prompt.", rich_help_panel=EXAM)
    ] = 200,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.", rich_help_panel=EXAM)] = 0.8,
    eval_every: EvalEvery = 100,
    save_every: SaveEvery = 250,
) -> None:
    """Train the same GPT with the mask and without it, and examine both.

    In the exam each next token of held-out text is predicted from its prefix
    alone, and each model generates text one token at a time. A summary is
    printed, and a report is written: one page that needs no network. Ctrl-C
    saves; --resume continues.

    Examples:
    rearview compare
    rearview compare --text book.txt --out book --steps 3000
    rearview compare --resume book
    rearview compare --report book
    """
    given = given_options(ctx)
    for name in ("report", "resume"):
        if name in given and (others := sorted(given - {name})):
            advice = "A comparison keeps its settings; start another one in another folder to change them."
            raise BadArgument(option_name(name), expected="no other option", got=option_name(others[0]), advice=advice)
    # Here, so that the help does not wait for torch.
    from rearview.cli.compare_run import check_alone, present, resume_comparison, start_comparison

    check_alone()
    if report is not None:
        present(report)
        return
    if resume is not None:
        raise typer.Exit(resume_comparison(resume))
    settings = with_sources({name: value for name, value in ctx.params.items() if name not in FOLDERS})
    raise typer.Exit(start_comparison(settings, {name: settings[name] for name in settings if name in given}, out))
