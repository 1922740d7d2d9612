"""rearview observe: what attention does in a model, at any length.

rearview observe DIR --text FILE --out seen.html
rearview observe seen.npz --show 2.1
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rearview.errors import BadArgument
from rearview.masks.parse import parse
from rearview.masks.write import target_of, write_whole

ENDINGS = (".html", ".npz", ".png", ".svg", ".pdf", ".txt")
RUN, LOOK, OUTPUT = "Running the model", "Looking", "Output"


def observe(
    context: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="DIR|FILE.npz", help="A folder with a model, or what an earlier run saved.")
    ],
    text: Annotated[
        str | None,
        typer.Option(
            "--text", "-t", metavar="FILE|-", help="What the model reads; - is the standard input.", rich_help_panel=RUN
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="What the model reads, written here.", rich_help_panel=RUN)
    ] = None,
    length: Annotated[
        int | None, typer.Option("--length", "-n", min=1, help="Only so many tokens of it.", rich_help_panel=RUN)
    ] = None,
    generate: Annotated[
        int, typer.Option(min=0, help="Let the model write so many tokens, and watch that too.", rich_help_panel=RUN)
    ] = 0,
    layers: Annotated[
        str | None, typer.Option(metavar="0,3-5", help="Layers to watch. By default all.", rich_help_panel=RUN)
    ] = None,
    heads: Annotated[
        str | None, typer.Option(metavar="0,3-5", help="Heads to watch. By default all.", rich_help_panel=RUN)
    ] = None,
    map_size: Annotated[int, typer.Option(min=1, help="Bins of a map, a side, at most.", rich_help_panel=RUN)] = 64,
    against: Annotated[
        str | None,
        typer.Option(metavar="DIR|FILE.npz", help="Another model, or run: show what changes.", rich_help_panel=LOOK),
    ] = None,
    mask: Annotated[
        str | None,
        typer.Option(
            "--mask", "-m", help="Show what changes when the model hears no more than this mask.", rich_help_panel=LOOK
        ),
    ] = None,
    which: Annotated[
        str | None,
        typer.Option(
            "--show", "-s", metavar="LAYER[.HEAD]", help="Draw one layer, or one head: 2 or 2.1.", rich_help_panel=LOOK
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(metavar="log|linear|without_first|expected", help="Of the maps.", rich_help_panel=LOOK),
    ] = "log",
    item: Annotated[int, typer.Option(min=0, help="The item of a batch.", rich_help_panel=LOOK)] = 0,
    out: Annotated[
        list[str] | None,
        typer.Option(
            "--out", "-o", help=f"Also write {', '.join(ENDINGS)}; may be given again.", rich_help_panel=OUTPUT
        ),
    ] = None,
) -> None:
    """What attention does in a model: every layer and head, with the model's own kernels, at any length.

    Prints which heads lean on the first key, how widely each listens, the strongest links. A page (--out seen.html)
    has every map, with zoom; .npz keeps the run, to be opened again.

    Examples:
    rearview observe DIR --text book.txt --out seen.html
    rearview observe DIR --prompt "To be or not to be" --show 0.1 --scale expected
    rearview observe DIR --text book.txt --length 4096 --layers 0,3-5 --out seen.npz
    rearview observe seen.npz --out head.pdf --show 3.2
    rearview observe DIR --text book.txt --against OTHER --out changed.html
    """
    # Here, so that the other verbs do not wait for it.
    from rearview.observe import terminal
    from rearview.observe.colour import depth_of
    from rearview.observe.scales import CHANGE_SCALES, SCALES, check_scale

    is_change = against is not None or mask is not None
    check_scale(scale, CHANGE_SCALES if is_change else SCALES)
    place = _place(which)
    narrower = None if mask is None else parse(mask)
    if against is not None and mask is not None:
        raise BadArgument("--against, --mask", expected="one of them", came="both")
    # What cannot be written is said before anything is run.
    for path in out or ():
        ending = target_of(path, ENDINGS).suffix.lower()
        if ending == ".npz" and is_change:
            advice = "Save each run, and open one --against the other."
            raise BadArgument("--out", expected="a run to save", came=f"{path} of a difference", advice=advice)
        if ending in (".png", ".svg", ".pdf"):
            _needs_matplotlib()
    if os.path.isdir(what):
        seen: Any = _run(what, _text(text, prompt), against, narrower, length=length, generate=generate,
                         layers=layers, heads=heads, map_size=map_size)  # fmt: skip
    else:
        _check_saved(what)
        _refuse_running(context)
        seen = _opened(what) if against is None else _opened(what).diff(_opened(against), item=item)
    drawing = terminal.show(seen, *place, scale=scale, item=item)
    # Before anything is printed: a reader that leaves early (| head) must not cost the files.
    for path in out or ():
        _write(seen, drawing, Path(path), place, scale, item)
        print(f"rearview: wrote {path}", file=sys.stderr, flush=True)
    print(drawing.painted(depth_of(sys.stdout)))


def _run(
    folder: str,
    text: str,
    against: str | None,
    narrower: Any,
    *,
    length: int | None,
    generate: int,
    layers: str | None,
    heads: str | None,
    map_size: int,
) -> Any:
    from rearview.cli.observe_run import aside, numbers, tokens_of, watched

    options: dict[str, Any] = {"map_size": map_size}
    if layers is not None:
        options["layers"] = numbers(layers, "--layers")
    if heads is not None:
        options["heads"] = numbers(heads, "--heads")
    if against is not None and not os.path.isdir(against):
        raise BadArgument("--against", expected="a folder with a model, as the first is one", came=against)
    model = watched(folder, generate=generate, options=options)
    ids, said = tokens_of(model, text, length)
    if said:
        aside(said)
    seen = model.over(ids)
    if narrower is not None:
        return seen.diff(model.over(ids, mask=narrower))
    if against is None:
        return seen
    other = watched(against, generate=generate, options=options)
    if other.tokenizer.encode(text, specials=True)[: len(ids)] != ids:
        advice = "Position by position they must read the same."
        raise BadArgument("--against", expected="a model with the same tokens", came=against, advice=advice)
    return seen.diff(other.over(ids))


def _text(text: str | None, prompt: str | None) -> str:
    if (text is None) == (prompt is None):
        came = "neither" if text is None else "both"
        raise BadArgument("--text, --prompt", expected="one of them: what the model reads", came=came)
    if prompt is not None:
        return prompt
    assert text is not None
    if text == "-":
        return sys.stdin.read()
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        advice = "Write the text itself with --prompt." if isinstance(error, FileNotFoundError) else ""
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BadArgument("--text", expected="a file of text, or -", came=f"{text}: {why}", advice=advice) from error


def _opened(path: str) -> Any:
    from rearview.observe import Seen

    _check_saved(path)
    return Seen.load(path)


def _check_saved(path: str) -> None:
    if not path.lower().endswith(".npz") or not os.path.exists(path):
        came = f"{path}, which is neither" if os.path.exists(path) else f"{path}, which is not there"
        raise BadArgument("DIR|FILE.npz", expected="a folder with a model, or a .npz of an earlier run", came=came)


def _refuse_running(context: typer.Context) -> None:
    """No option is accepted and then ignored: a saved run has run."""
    for name in ("text", "prompt", "length", "generate", "layers", "heads", "map_size", "mask"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise BadArgument(option, expected="a folder with a model to run", came="a run that was saved")


def _place(which: str | None) -> tuple[Any, ...]:
    if which is None:
        return ()
    layer, dot, head = which.partition(".")
    parts = (layer, head) if dot else (layer,)
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadArgument("--show", expected="a layer, or a layer and a head: 2 or 2.1", came=repr(which))
    return tuple(map(int, parts))


def _needs_matplotlib() -> None:
    from importlib.util import find_spec

    from rearview.errors import MissingExtra

    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", extra="pictures", needed_for="A picture of attention")


def _write(seen: Any, drawing: str, path: Path, place: tuple[Any, ...], scale: str, item: int) -> None:
    ending = path.suffix.lower()
    if ending == ".html":
        from rearview.observe import html

        html.page(seen, path, item=item)
    elif ending == ".npz":
        seen.save(path)
    elif ending == ".txt":
        write_whole(path, f"{drawing}\n".encode())
    else:
        from rearview.observe import picture

        picture.save(seen, path, *place, scale=scale, item=item)
