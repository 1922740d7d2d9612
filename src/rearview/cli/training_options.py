"""The options that `train` and `compare` share; each verb has its own defaults."""

from collections.abc import Mapping
from typing import Annotated

import typer

# The panels of the help.
TEXT, MODEL, TRAINING, OUTPUT, PROCESSES = "Text", "Model", "Training", "Output", "Several processes"

TextSource = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE|FOLDER|-",
        help="Text to train on, of any size; may be repeated. - reads standard input. By default Python's reference "
        "text.",
        rich_help_panel=TEXT,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(help="String that divides the text into documents, such as '<|endoftext|>'.", rich_help_panel=TEXT),
]
Encoding = Annotated[str, typer.Option(help="Text encoding.", rich_help_panel=TEXT)]
Validation = Annotated[float, typer.Option(help="Fraction of the text held out for validation.", rich_help_panel=TEXT)]
TokenKind = Annotated[str, typer.Option(metavar="bytes|chars|bpe", help="Kind of tokenizer.", rich_help_panel=TEXT)]
VocabSize = Annotated[
    int | None, typer.Option(help="Vocabulary size of a bpe tokenizer. By default 2048.", rich_help_panel=TEXT)
]
ContextLength = Annotated[int, typer.Option(help="Number of tokens per row.", rich_help_panel=MODEL)]
Layers = Annotated[int, typer.Option(help="Number of layers.", rich_help_panel=MODEL)]
Heads = Annotated[int, typer.Option(help="Number of attention heads per layer.", rich_help_panel=MODEL)]
Width = Annotated[int, typer.Option(help="Model width.", rich_help_panel=MODEL)]
Positions = Annotated[
    str, typer.Option(metavar="learned|rotary", help="Position encoding of a GPT.", rich_help_panel=MODEL)
]
Dropout = Annotated[float, typer.Option(help="Dropout probability.", rich_help_panel=MODEL)]
Steps = Annotated[int, typer.Option(help="Number of optimizer steps.", rich_help_panel=TRAINING)]
Batch = Annotated[int, typer.Option(help="Number of rows per batch.", rich_help_panel=TRAINING)]
Accumulate = Annotated[int, typer.Option(help="Number of batches per optimizer step.", rich_help_panel=TRAINING)]
LearningRate = Annotated[float, typer.Option(help="Peak learning rate.", rich_help_panel=TRAINING)]
WeightDecay = Annotated[float, typer.Option(help="Weight decay of matrices.", rich_help_panel=TRAINING)]
Clip = Annotated[float, typer.Option(help="Largest gradient norm; 0 for no clipping.", rich_help_panel=TRAINING)]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.", rich_help_panel=TRAINING)]
Precision = Annotated[
    str,
    typer.Option(
        metavar="auto|float32|bfloat16",
        help="Precision of matrix products; auto is bfloat16 where the hardware supports it.",
        rich_help_panel=TRAINING,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Number of CPU threads. By default torch's, and one for a small model.", rich_help_panel=TRAINING
    ),
]
EvalEvery = Annotated[int, typer.Option(help="Number of steps between validations.", rich_help_panel=OUTPUT)]
SaveEvery = Annotated[int, typer.Option(help="Number of steps between checkpoints.", rich_help_panel=OUTPUT)]


def with_sources(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings with one source of text as a string, several as a tuple, and none as None.

    >>> with_sources({"text": ["a.txt"]}), with_sources({"text": []})
    ({'text': 'a.txt'}, {'text': None})
    """
    found = dict(settings)
    if isinstance(text := found.get("text"), (list, tuple)):
        found["text"] = text[0] if len(text) == 1 else tuple(text) or None
    return found
