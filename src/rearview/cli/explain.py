"""rearview explain: one attention, every step of it.

rearview explain restaurant
rearview explain my.json --mask "causal() & window(3)" --out my.html
rearview explain --model DIR --text "I love sushi" --layer 1
"""

import difflib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rearview.cli.terminal import show
from rearview.errors import BadArgument
from rearview.explain import Trace
from rearview.explain.examples import EXAMPLES
from rearview.explain.files import ENDINGS
from rearview.explain.load import explain_file
from rearview.masks import Mask
from rearview.masks.drawing import Drawing, Piece
from rearview.masks.parse import parse
from rearview.masks.write import target_of

FILES = (".json", ".npz")


def explain(
    what: Annotated[
        str | None, typer.Argument(metavar="EXAMPLE|FILE", help="An example by name, or a .json or .npz file.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A folder with a GPT or BERT: explain a layer of it, over --text.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", "-t", help="What the model reads.")] = None,
    layer: Annotated[int, typer.Option(help="The layer, from 0; -1 is the last.")] = 0,
    mask: Annotated[str | None, typer.Option("--mask", "-m", help="Another mask, as in Python.")] = None,
    head: Annotated[int | None, typer.Option(help="The head to show, from 0. By default the first.")] = None,
    no_mask: Annotated[bool, typer.Option("--no-mask", help="Print the attention as it would be without.")] = False,
    stage: Annotated[
        list[str] | None,
        typer.Option("--stage", "-s", help="Print only this stage, such as weights; may be given again."),
    ] = None,
    out: Annotated[
        list[str] | None,
        typer.Option("--out", "-o", help=f"Also write a file: {', '.join(ENDINGS)}; may be given again."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every stage and head, in full.")] = False,
) -> None:
    """One attention step by step: scores, mask, weights, output, with and without the mask, read aloud.

    Alone it lists the built-in examples. A file has x, w_q, w_k and w_v, or query, key and value.

    Examples:
    rearview explain restaurant
    rearview explain restaurant --mask "causal() & window(2)" --stage weights
    rearview explain love --out love.html --out love.svg
    rearview explain my.json --head 1
    rearview explain five-tokens --json
    rearview explain --model DIR --text "I love sushi" --layer 1 --head 2
    """
    narrowing = {"--head": head is not None, "--no-mask": no_mask, "--stage": stage}
    narrowed = [name for name, given in narrowing.items() if given]
    others = [name for name, given in {"--mask": mask is not None, "--out": out, "--json": as_json}.items() if given]
    if model is not None or text is not None:
        if what is not None or model is None or text is None:
            came = (
                "an example beside them" if what is not None else "--text alone" if model is None else "--model alone"
            )
            raise BadArgument("--model, --text", expected="both, and no example or file", came=came)
    elif layer:
        raise BadArgument("--layer", expected="a --model that has layers", came=f"{layer} without one")
    elif what is None:
        if narrowed or others:
            raise BadArgument("EXAMPLE|FILE", expected="one to explain", came=f"{[*narrowed, *others][0]} alone")
        show(_listing())
        return
    if as_json and narrowed:
        raise BadArgument("--json", expected="neither --head, --no-mask nor --stage: it has all", came=narrowed[0])
    # What cannot be written is said before anything is.
    for path in out or ():
        target_of(path, ENDINGS)
    chosen = None if mask is None else parse(mask)
    trace = _of_model(str(model), str(text), layer, chosen) if what is None else _trace(what, chosen)
    head = trace.checked_head(head or 0)
    if as_json:
        print(trace.to_json(), end="")
    else:
        show(trace.show(head, masked=not no_mask, stages=stage or None))
    for n, path in enumerate(out or ()):
        trace.save(path, head)
        # JSON on the output stays JSON.
        print(f"{'' if n or as_json else chr(10)}wrote {path}", file=sys.stderr if as_json else sys.stdout)


def _trace(what: str, mask: Mask | None) -> Trace:
    if what in EXAMPLES:
        return EXAMPLES[what].trace(mask=mask)
    path = Path(what)
    if path.suffix.lower() in FILES or os.sep in what or path.exists():
        return explain_file(path, mask=mask)
    close = difflib.get_close_matches(what.lower(), EXAMPLES, n=1)
    names = ", ".join(EXAMPLES)
    raise BadArgument(
        "EXAMPLE|FILE",
        expected=f"one of {names}, or a file that ends in {' or '.join(FILES)}",
        came=repr(what),
        advice=f"Did you mean {close[0]}?" if close else "",
    )


def _of_model(folder: str, text: str, layer: int, mask: Mask | None) -> Trace:
    import torch

    from rearview.models.checkpoint import load
    from rearview.models.explained import explain_model
    from rearview.text import load_tokenizer
    from rearview.text.labels import token_labels
    from rearview.training.checkpoint.folders import model_folder

    path = model_folder(folder)
    model, tokenizer = load(path), load_tokenizer(path)
    ids = tokenizer.encode(text, specials=True)
    if not ids:
        raise BadArgument("--text", expected="a text of one token or more", came="none")
    labels = token_labels(tokenizer, ids)
    return explain_model(model, torch.tensor([ids]), layer=layer, labels=labels, mask=mask)  # type: ignore[arg-type]


def _listing() -> Drawing:
    widest = max(map(len, EXAMPLES))
    lines = [Piece("Examples\n", "title")]
    for name, example in EXAMPLES.items():
        lines += [Piece(f"  {name:{widest}}", "heard"), Piece(f"   {example.title}\n", "label")]
    lines += [
        Piece("\nTry\n", "title"),
        Piece("  rearview explain restaurant\n", "label"),
        Piece('  rearview explain restaurant --mask "causal() & window(2)" --out restaurant.html\n', "label"),
        Piece("\nYour own matrices\n", "title"),
        Piece("  rearview explain my.json     or my.npz, with the same names\n", "label"),
        Piece('  {"x": [[1, 0], [0, 1]], "w_q": ..., "w_k": ..., "w_v": ...}, or query, key and value\n', "remark"),
        Piece("  and if you like labels, mask, positions, num_heads, w_o, title and others\n", "remark"),
        Piece("\nA layer of a model\n", "title"),
        Piece('  rearview explain --model DIR --text "I love sushi" --layer 0', "label"),
    ]
    return Drawing(lines)
