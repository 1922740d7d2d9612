"""rearview train: train a small model on a text.

rearview train --text book.txt --out book
rearview train --resume book
"""

from pathlib import Path
from typing import Annotated

import typer

from rearview.cli.commands import Command, given_options, words_of
from rearview.cli.training_options import (
    MODEL,
    OUTPUT,
    PROCESSES,
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

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def train(
    ctx: typer.Context,
    text: TextSource = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder to write the run to.", rich_help_panel=OUTPUT)
    ] = Path("run"),
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Resume a run: its folder, or one of its checkpoints.", rich_help_panel=OUTPUT
        ),
    ] = None,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    validation: Validation = 0.1,
    tokenizer: TokenKind = "bytes",
    vocab_size: VocabSize = None,
    model: Annotated[str, typer.Option(metavar="gpt|bert|t5", help="Kind of model.", rich_help_panel=MODEL)] = "gpt",
    context: ContextLength = 128,
    layers: Layers = 4,
    heads: Heads = 4,
    kv_heads: Annotated[
        int | None,
        typer.Option(
            help="Number of key and value heads of a GPT. By default as many as heads.", rich_help_panel=MODEL
        ),
    ] = None,
    width: Width = 128,
    positions: Positions = "learned",
    mask: Annotated[
        str, typer.Option(help='Mask of a GPT, such as "causal() & window(32)", or none.', rich_help_panel=MODEL)
    ] = "causal()",
    dropout: Dropout = 0.0,
    steps: Steps = 2000,
    batch: Batch = 12,
    accumulate: Accumulate = 1,
    lr: LearningRate = 2e-3,
    warmup: Annotated[
        int | None,
        typer.Option(help="Number of warmup steps. By default a tenth, at most 100.", rich_help_panel=TRAINING),
    ] = None,
    weight_decay: WeightDecay = 0.1,
    clip: Clip = 1.0,
    seed: Seed = 0,
    precision: Precision = "auto",
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the model with torch.compile.", rich_help_panel=TRAINING)
    ] = False,
    checkpointing: Annotated[
        bool,
        typer.Option(
            "--checkpointing",
            help="Recompute activations in the backward pass: less memory, more time.",
            rich_help_panel=TRAINING,
        ),
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Number of processes on this machine. For several machines, use torchrun.", rich_help_panel=PROCESSES
        ),
    ] = None,
    shard: Annotated[
        bool,
        typer.Option(
            "--shard/--no-shard",
            help="Divide the parameters and the optimizer between the processes (FSDP2).",
            rich_help_panel=PROCESSES,
        ),
    ] = False,
    context_parallel: Annotated[
        int, typer.Option(help="Number of processes that share each sequence.", rich_help_panel=PROCESSES)
    ] = 1,
    device: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cuda", help="Device to train on; auto is a GPU if there is one.", rich_help_panel=TRAINING
        ),
    ] = "auto",
    threads: Threads = None,
    eval_every: EvalEvery = 250,
    sample_every: Annotated[
        int, typer.Option(help="Number of steps between samples; 0 for none.", rich_help_panel=OUTPUT)
    ] = 500,
    sample_prompt: Annotated[str, typer.Option(help="Prompt of the samples.", rich_help_panel=OUTPUT)] = "",
    save_every: SaveEvery = 250,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write event files for TensorBoard.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Train a small GPT, BERT or T5 on a text.

    Progress and samples are printed, and checkpoints are written. Ctrl-C
    finishes the current step and saves. A run that was stopped or killed
    continues with --resume; its results are bit-identical to those of an
    uninterrupted run.

    In several processes (--processes N, or torchrun) each has a part of every
    batch. The batches, and up to rounding the losses, are those of one process.

    Examples:
    rearview train
    rearview train --text book.txt --out book
    rearview train --text book.txt --tokenizer bpe --mask "causal() & window(32)" --positions rotary --out windowed
    cat *.md | rearview train --text - --out notes
    rearview train --resume book
    rearview train --text book.txt --processes 4 --shard --out large
    torchrun --nproc-per-node 8 -m rearview train --text book.txt --out large
    """
    # Here, so that the help does not wait for torch.
    from rearview.cli.train_run import run_training, start_processes

    settings = with_sources(
        {name: value for name, value in ctx.params.items() if name not in ("out", "resume", "processes")}
    )
    given = given_options(ctx) - {"processes"}
    if processes is not None:
        arguments = words_of({name: ctx.params[name] for name in ctx.params if name in given})
        folder = out if resume is None else resume
        raise typer.Exit(start_processes(processes, arguments, device=device, folder=folder))
    raise typer.Exit(run_training(settings, given, out=out, resume=resume))
