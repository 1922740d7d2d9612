"""rearview observe: show the attention of a model, at any length.

rearview observe DIR --text FILE --out seen.html
rearview observe seen.npz --show 2.1
"""

from typing import Annotated

import typer

from rearview.cli.commands import Command, given_options

ENDINGS = (".html", ".npz", ".png", ".svg", ".pdf", ".txt")
MODEL, VIEW, OUTPUT = "Model", "View", "Output"

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def observe(
    ctx: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="DIR|FILE.npz", help="Folder with a model, or a file that an earlier run saved.")
    ],
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            "-t",
            metavar="FILE|-",
            help="Text file that the model reads; - reads standard input.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Text that the model reads.", rich_help_panel=MODEL)
    ] = None,
    length: Annotated[
        int | None,
        typer.Option("--length", "-n", min=1, help="Largest number of tokens to read.", rich_help_panel=MODEL),
    ] = None,
    generate: Annotated[
        int, typer.Option(min=0, help="Number of tokens to generate after the text.", rich_help_panel=MODEL)
    ] = 0,
    layers: Annotated[
        str | None, typer.Option(metavar="0,3-5", help="Layers to observe. By default all.", rich_help_panel=MODEL)
    ] = None,
    heads: Annotated[
        str | None, typer.Option(metavar="0,3-5", help="Heads to observe. By default all.", rich_help_panel=MODEL)
    ] = None,
    map_size: Annotated[
        int, typer.Option(min=1, help="Largest number of bins per side of a map.", rich_help_panel=MODEL)
    ] = 64,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|FILE.npz", help="Another model or saved run, to show the difference.", rich_help_panel=VIEW
        ),
    ] = None,
    mask: Annotated[
        str | None,
        typer.Option(
            "--mask", "-m", help="Mask expression, to show the difference that it makes.", rich_help_panel=VIEW
        ),
    ] = None,
    which: Annotated[
        str | None,
        typer.Option(
            "--show",
            "-s",
            metavar="LAYER[.HEAD]",
            help="Layer or head to draw, such as 2 or 2.1.",
            rich_help_panel=VIEW,
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="log|linear|without_first|expected", help="Colour scale of the maps.", rich_help_panel=VIEW
        ),
    ] = "log",
    item: Annotated[int, typer.Option(min=0, help="Batch item to show.", rich_help_panel=VIEW)] = 0,
    out: Annotated[
        list[str] | None,
        typer.Option(
            "--out", "-o", help=f"Also write a file: {', '.join(ENDINGS)}. May be repeated.", rich_help_panel=OUTPUT
        ),
    ] = None,
) -> None:
    """Show the attention of a model, for every layer and head, at any length.

    The model runs with its own kernels. Printed are the heads that attend most
    to the first key, how widely each head attends, and the strongest links. A
    page (--out seen.html) has every map, with zoom; a .npz file can be opened
    again.

    Examples:
    rearview observe DIR --text book.txt --out seen.html
    rearview observe DIR --prompt "To be or not to be" --show 0.1 --scale expected
    rearview observe DIR --text book.txt --length 4096 --layers 0,3-5 --out seen.npz
    rearview observe seen.npz --out head.pdf --show 3.2
    rearview observe DIR --text book.txt --against OTHER --out changed.html
    """
    # Here, so that the help does not wait for torch.
    from rearview.cli.observe_run import run_observe

    run_observe(
        what, given_options(ctx), text=text, prompt=prompt, length=length, generate=generate, layers=layers,
        heads=heads, map_size=map_size, against=against, mask=mask, which=which, scale=scale, item=item, out=out or [],
    )  # fmt: skip
