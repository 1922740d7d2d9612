"""rearview train: a small model from a text, on a laptop.

rearview train --text book.txt --out book
rearview train --resume book
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from rearview.cli.interrupt import Interrupt
from rearview.cli.progress import shown
from rearview.cli.train_run import Options, finished, prepare, stopped
from rearview.training import Stopped
from rearview.training import train as events_of
from rearview.training.board import to_tensorboard

TEXT, MODEL, LEARNING, OUTPUT = "Text", "Model", "Learning", "Output"


def train(
    context: typer.Context,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|FOLDER|-",
            help="What to learn from; - is the standard input. By default Python's own reference text.",
            rich_help_panel=TEXT,
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the run.", rich_help_panel=OUTPUT)] = Path(
        "run"
    ),
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Go on with a run: its folder, or one checkpoint in it.", rich_help_panel=OUTPUT
        ),
    ] = None,
    separator: Annotated[
        str | None, typer.Option(help="Cuts a text into documents, such as '<|endoftext|>'.", rich_help_panel=TEXT)
    ] = None,
    encoding: Annotated[str, typer.Option(help="Of the text.", rich_help_panel=TEXT)] = "utf-8",
    validation: Annotated[float, typer.Option(help="Share of the text that is held out.", rich_help_panel=TEXT)] = 0.1,
    tokenizer: Annotated[
        str, typer.Option(metavar="bytes|chars|bpe", help="What a token is.", rich_help_panel=TEXT)
    ] = "bytes",
    vocab_size: Annotated[
        int | None, typer.Option(help="Tokens of bpe. By default 2048.", rich_help_panel=TEXT)
    ] = None,
    model: Annotated[str, typer.Option(metavar="gpt|bert|t5", help="The kind.", rich_help_panel=MODEL)] = "gpt",
    context_length: Annotated[int, typer.Option("--context", help="Tokens in a row.", rich_help_panel=MODEL)] = 128,
    layers: Annotated[int, typer.Option(help="Blocks.", rich_help_panel=MODEL)] = 4,
    heads: Annotated[int, typer.Option(help="Heads of a block.", rich_help_panel=MODEL)] = 4,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key and value heads, where fewer (GPT).", rich_help_panel=MODEL)
    ] = None,
    width: Annotated[int, typer.Option(help="Features.", rich_help_panel=MODEL)] = 128,
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
    dropout: Annotated[float, typer.Option(help="Share that is dropped.", rich_help_panel=MODEL)] = 0.0,
    steps: Annotated[int, typer.Option(help="How often the weights are moved.", rich_help_panel=LEARNING)] = 2000,
    batch: Annotated[int, typer.Option(help="Rows in a batch.", rich_help_panel=LEARNING)] = 12,
    accumulate: Annotated[int, typer.Option(help="Batches in a step.", rich_help_panel=LEARNING)] = 1,
    lr: Annotated[float, typer.Option(help="The highest learning rate.", rich_help_panel=LEARNING)] = 2e-3,
    warmup: Annotated[
        int | None,
        typer.Option(help="Steps until it is reached. By default a tenth, at most 100.", rich_help_panel=LEARNING),
    ] = None,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW, on matrices.", rich_help_panel=LEARNING)] = 0.1,
    clip: Annotated[float, typer.Option(help="Largest norm of the gradients; 0: any.", rich_help_panel=LEARNING)] = 1.0,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.", rich_help_panel=LEARNING)] = 0,
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
    threads: Annotated[
        int | None, typer.Option(help="Threads. By default torch's choice.", rich_help_panel=LEARNING)
    ] = None,
    eval_every: Annotated[int, typer.Option(help="Steps between validations.", rich_help_panel=OUTPUT)] = 250,
    sample_every: Annotated[int, typer.Option(help="Steps between samples; 0: none.", rich_help_panel=OUTPUT)] = 500,
    sample_prompt: Annotated[str, typer.Option(help="What samples begin with.", rich_help_panel=OUTPUT)] = "",
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.", rich_help_panel=OUTPUT)] = 250,
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
    given = {name for name in values if _was_given(context, "context_length" if name == "context" else name)}
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


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
