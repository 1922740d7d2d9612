"""The options that `train` and `compare` share; each verb has its own defaults."""

from typing import Annotated

import typer

# The panels of the help.
TEXT, MODEL, LEARNING, OUTPUT = "Text", "Model", "Learning", "Output"

TextSource = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|FOLDER|-",
        help="What to learn from; - is the standard input. By default Python's own reference text.",
        rich_help_panel=TEXT,
    ),
]
Separator = Annotated[
    str | None, typer.Option(help="Cuts a text into documents, such as '<|endoftext|>'.", rich_help_panel=TEXT)
]
Encoding = Annotated[str, typer.Option(help="Of the text.", rich_help_panel=TEXT)]
Validation = Annotated[float, typer.Option(help="Share of the text that is held out.", rich_help_panel=TEXT)]
TokenKind = Annotated[str, typer.Option(metavar="bytes|chars|bpe", help="What a token is.", rich_help_panel=TEXT)]
VocabSize = Annotated[int | None, typer.Option(help="Tokens of bpe. By default 2048.", rich_help_panel=TEXT)]
ContextLength = Annotated[int, typer.Option("--context", help="Tokens in a row.", rich_help_panel=MODEL)]
Layers = Annotated[int, typer.Option(help="Blocks.", rich_help_panel=MODEL)]
Heads = Annotated[int, typer.Option(help="Heads of a block.", rich_help_panel=MODEL)]
Width = Annotated[int, typer.Option(help="Features.", rich_help_panel=MODEL)]
Dropout = Annotated[float, typer.Option(help="Share that is dropped.", rich_help_panel=MODEL)]
Batch = Annotated[int, typer.Option(help="Rows in a batch.", rich_help_panel=LEARNING)]
Accumulate = Annotated[int, typer.Option(help="Batches in a step.", rich_help_panel=LEARNING)]
LearningRate = Annotated[float, typer.Option(help="The highest learning rate.", rich_help_panel=LEARNING)]
WeightDecay = Annotated[float, typer.Option(help="Of AdamW, on matrices.", rich_help_panel=LEARNING)]
Clip = Annotated[float, typer.Option(help="Largest norm of the gradients; 0: any.", rich_help_panel=LEARNING)]
Seed = Annotated[int, typer.Option(help="Of everything that is drawn.", rich_help_panel=LEARNING)]
Threads = Annotated[int | None, typer.Option(help="Threads. By default torch's choice.", rich_help_panel=LEARNING)]
EvalEvery = Annotated[int, typer.Option(help="Steps between validations.", rich_help_panel=OUTPUT)]
SaveEvery = Annotated[int, typer.Option(help="Steps between checkpoints.", rich_help_panel=OUTPUT)]


def was_given(context: typer.Context, name: str) -> bool:
    """Does an option stand on the command line?"""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
