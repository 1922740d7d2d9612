"""What `rearview explain` does: a Trace of an example, of a file or of a layer of a model, printed and written."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from rearview.cli.terminal import columns, show
from rearview.drawing.text import Drawing, Piece
from rearview.errors import BadArgument
from rearview.explanation import Trace
from rearview.explanation.examples import EXAMPLES
from rearview.explanation.input_file import explain_file
from rearview.explanation.numbers import DIGITS
from rearview.explanation.trace import ENDINGS
from rearview.files import target_of
from rearview.masks import Mask
from rearview.masks.parser import parse

FILES = (".json", ".npz")


def run_explain(
    what: str | None,
    *,
    model: str | None,
    text: str | None,
    layer: int,
    mask: str | None,
    head: int | None,
    no_mask: bool,
    stages: Sequence[str],
    out: Sequence[str],
    decimals: int,
    latex: bool,
    as_json: bool,
) -> None:
    """Explain an example or a file `what`, or a layer of a model; without arguments, list the examples."""
    narrowing = {
        "--head": head is not None, "--no-mask": no_mask, "--stage": bool(stages), "--decimals": decimals != DIGITS,
        "--latex": latex,
    }  # fmt: skip
    narrowed = [name for name, given in narrowing.items() if given]
    others = [
        name for name, given in {"--mask": mask is not None, "--out": bool(out), "--json": as_json}.items() if given
    ]
    if model is not None or text is not None:
        if what is not None or model is None or text is None:
            got = "an example with them" if what is not None else "--text alone" if model is None else "--model alone"
            raise BadArgument("--model, --text", expected="both of them, without an example or a file", got=got)
    elif layer:
        raise BadArgument("--layer", expected="--model with it", got=f"{layer} without a model")
    elif what is None:
        if narrowed or others:
            raise BadArgument("EXAMPLE|FILE", expected="an example or a file", got=f"{[*narrowed, *others][0]} alone")
        show(_listing())
        return
    if as_json and narrowed:
        raise BadArgument("--json", expected="no option that chooses what to print: JSON has all", got=narrowed[0])
    if latex and no_mask:
        raise BadArgument(
            "--latex", expected="no --no-mask: it has both, with the mask and without it", got="--no-mask"
        )
    # Names that cannot be written to are refused before anything is computed.
    for path in out:
        target_of(path, ENDINGS)
    chosen = None if mask is None else parse(mask)
    trace = _of_model(str(model), str(text), layer, chosen) if what is None else _trace(what, chosen)
    head = trace.checked_head(head or 0)
    if as_json:
        print(trace.to_json(), end="")
    elif latex:
        print(trace.to_latex(head, stages=stages or None, decimals=decimals, document=False), end="")
    else:
        show(trace.show(head, masked=not no_mask, stages=stages or None, width=columns(), decimals=decimals))
    for n, path in enumerate(out):
        trace.save(path, head)
        # stdout has only JSON, or only LaTeX.
        alone = as_json or latex
        print(f"{'' if n or alone else chr(10)}wrote {path}", file=sys.stderr if alone else sys.stdout)


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
        got=repr(what),
        advice=f"Did you mean {close[0]}?" if close else "",
    )


def _of_model(folder: str, text: str, layer: int, mask: Mask | None) -> Trace:
    from rearview.models.checkpoint import load
    from rearview.models.explainer import explain_model
    from rearview.text import load_tokenizer, token_labels
    from rearview.training.checkpoint.folders import model_folder

    path = model_folder(folder)
    model, tokenizer = load(path), load_tokenizer(path)
    ids = tokenizer.encode(text, specials=True)
    if not ids:
        raise BadArgument("--text", expected="a text of at least one token", got="an empty text")
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
        Piece("  rearview explain my.json     or my.npz, with the same field names\n", "label"),
        Piece('  {"x": [[1, 0], [0, 1]], "w_q": ..., "w_k": ..., "w_v": ...}, or query, key and value\n', "remark"),
        Piece("  optionally labels, mask, positions, num_heads, w_o, title and others\n", "remark"),
        Piece("\nA layer of a model\n", "title"),
        Piece('  rearview explain --model DIR --text "I love sushi" --layer 0', "label"),
    ]
    return Drawing(lines)
