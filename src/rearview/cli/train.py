"""rearview train: a small model from a text, on a laptop.

rearview train --text book.txt --out book
rearview train --resume book
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from rearview.cli.interrupt import Interrupt
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
from rearview.cli.progress import shown
from rearview.cli.train_run import Options, finished, prepare, stopped
from rearview.training import Stopped
from rearview.training import train as events_of
from rearview.training.board import to_tensorboard


def train(
    context: typer.Context,
    text: TextSource = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the run.", rich_help_panel=OUTPUT)] = Path(
        "run"
    ),
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Go on with a run: its folder, or one checkpoint in it.", rich_help_panel=OUTPUT
        ),
    ] = None,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    validation: Validation = 0.1,
    tokenizer: TokenKind = "bytes",
    vocab_size: VocabSize = None,
    model: Annotated[str, typer.Option(metavar="gpt|bert|t5", help="The kind.", rich_help_panel=MODEL)] = "gpt",
    context_length: ContextLength = 128,
    layers: Layers = 4,
    heads: Heads = 4,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key and value heads, where fewer (GPT).", rich_help_panel=MODEL)
    ] = None,
    width: Width = 128,
    positions: Annotated[
        str, typer.Option(metavar="learned|rotary", help="Of a GPT.", rich_help_panel=MODEL)
    ] = "learned",
    mask: Annotated[
        str | None,
        typer.Option(
            help='Who a GPT may hear: "causal() & window(32)"; none for everyone. By default causal().',
            rich_help_panel=MODEL,
        ),
    ] = None,
    dropout: Dropout = 0.0,
    steps: Annotated[int, typer.Option(help="How often the weights are moved.", rich_help_panel=LEARNING)] = 2000,
    batch: Batch = 12,
    accumulate: Accumulate = 1,
    lr: LearningRate = 2e-3,
    warmup: Annotated[
        int | None,
        typer.Option(help="Steps until it is reached. By default a tenth, at most 100.", rich_help_panel=LEARNING),
    ] = None,
    weight_decay: WeightDecay = 0.1,
    clip: Clip = 1.0,
    seed: Seed = 0,
    precision: Annotated[
        str,
        typer.Option(
            metavar="auto|float32|bfloat16",
            help="Of products. auto: bfloat16 where the hardware has it.",
            rich_help_panel=LEARNING,
        ),
    ] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Compile the model.", rich_help_panel=LEARNING)] = False,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Less memory, more time.", rich_help_panel=LEARNING)
    ] = False,
    device: Annotated[
        str,
        typer.Option(metavar="auto|cpu|cuda", help="auto: a GPU where torch sees one.", rich_help_panel=LEARNING),
    ] = "auto",
    threads: Threads = None,
    eval_every: EvalEvery = 250,
    sample_every: Annotated[int, typer.Option(help="Steps between samples; 0: none.", rich_help_panel=OUTPUT)] = 500,
    sample_prompt: Annotated[str, typer.Option(help="What samples begin with.", rich_help_panel=OUTPUT)] = "",
    save_every: SaveEvery = 250,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write for TensorBoard.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Train a small GPT, BERT or T5 on a text: progress, samples as it learns, checkpoints that survive a kill.

    Ctrl-C finishes the step and saves. A run that stopped, or was killed, goes on with --resume, to the last bit as if
    it had not.

    Examples:
    rearview train
    rearview train --text book.txt --out book
    rearview train --text book.txt --tokenizer bpe --mask "causal() & window(32)" --positions rotary --out windowed
    cat *.md | rearview train --text - --out notes
    rearview train --resume book
    """
    values: dict[str, Any] = {**context.params, "context": context_length, "out": out, "resume": resume}
    if warmup is None:
        values["warmup"] = min(100, steps // 10)
    given = {name for name in values if was_given(context, "context_length" if name == "context" else name)}
    options = Options(values, given - {"context_length"})
    prepared = prepare(options)
    config, folder = prepared.config, prepared.out
    with Interrupt("Finishing the step and saving") as asked:
        events = events_of(prepared.model, prepared.data, config, out=folder, resume=prepared.resume, stop=asked)
        if options["tensorboard"]:
            events = to_tensorboard(events, folder / "tensorboard")
        *_, last = shown(events, tokens_a_step=config.rows * (config.context or 1))
    if isinstance(last, Stopped):
        stopped(prepared, last.step)
        raise typer.Exit(128 + (asked.signal or 2))
    finished(prepared)
