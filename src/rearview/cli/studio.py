"""rearview studio: one local page on which a model reads, writes, and is asked why.

rearview studio
rearview studio DIR --text book.txt
"""

from pathlib import Path
from typing import Annotated

import typer

from rearview.cli.commands import Command

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def studio(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL_DIR",
            help="Folders with models, or training runs. By default a small model, trained on first use.",
        ),
    ] = None,
    text: Annotated[
        Path | None, typer.Option("--text", "-t", help="File with the text that the page starts with.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on. By default a free one.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Others than this machine's own are reachable from the network.")
    ] = "127.0.0.1",
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address instead of opening a browser.")
    ] = False,
) -> None:
    """Open a local page to see a model attend, ask why, change its mask, and watch it write.

    The page runs on this machine only and needs no network. Stop it with Ctrl-C.

    Examples:
    rearview studio
    rearview studio run --text book.txt
    rearview studio gpt2/ my-model/ --port 8000 --no-browser
    """
    # Here, so that the help does not wait for torch.
    from rearview.cli.studio_run import run_studio

    run_studio(models or [], text=text, host=host, port=port, no_browser=no_browser)
