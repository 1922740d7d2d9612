"""rearview shard: how a sequence would be spread over ranks; nothing runs.

rearview shard "causal() & window(4096)" --length 65536 --ranks 8
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Annotated

import typer

from rearview.cli.commands import Command
from rearview.errors import BadArgument

if TYPE_CHECKING:
    from rearview.masks.mask import Mask

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def shard(
    expression: Annotated[str, typer.Argument(metavar="EXPRESSION", help="Mask expression, as in Python.")],
    length: Annotated[int, typer.Option("--length", "-n", help="Number of positions of the sequence.")],
    ranks: Annotated[int, typer.Option("--ranks", "-r", help="Number of ranks (devices).")],
    layer: Annotated[list[str] | None, typer.Option(help="Mask expression of one more layer. May be repeated.")] = None,
    documents: Annotated[
        str | None,
        typer.Option(help="Lengths of packed documents, such as 4000,300,96; what is left is one more."),
    ] = None,
    how: Annotated[
        str, typer.Option(help="Placement: contiguous, head-tail, area, dealt, or the best of them.")
    ] = "best",
    key_bytes: Annotated[
        int, typer.Option(help="Bytes of a key with its value per layer; 4096 is 8 heads of 128 in bfloat16.")
    ] = 4096,
    show: Annotated[bool, typer.Option("--show", help="Also draw the positions that each rank holds.")] = False,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Also write a picture to this file: .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Show how a sequence is spread over ranks: work, keys that travel, bytes.

    Runs nothing and needs no process group. In Python it is rearview.parallel.shard.

    Examples:
    rearview shard "causal()" --length 65536 --ranks 8
    rearview shard "causal() & window(1024)" --layer "causal()" -n 65536 -r 8 --show
    rearview shard "causal()" -n 65536 -r 8 --documents 30000,8000,200,4000
    """
    from rearview import parallel
    from rearview.cli import terminal
    from rearview.files import target_of
    from rearview.masks.parser import parse
    from rearview.parallel.picture import ENDINGS

    if out is not None:
        # Before anything is printed.
        target_of(out, ENDINGS)
    masks = [parse(each) for each in (expression, *(layer or ()))]
    if documents is not None:
        packed = _packed(documents, length)
        masks = [mask & packed for mask in masks]
    layout = parallel.shard(masks, length, ranks, how=how, key_bytes=key_bytes)
    terminal.show(layout.table())
    if show:
        print()
        terminal.show(layout.show())
    if out is not None:
        layout.save_picture(out)
        print(f"\nwrote {out}")


def _packed(lengths: str, length: int) -> Mask:
    import torch

    from rearview.masks import documents

    sizes = [size.strip() for size in lengths.split(",")]
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        expected = "lengths of at least 1, separated by commas"
        raise BadArgument("--documents", expected=expected, got=repr(lengths))
    ends = list(accumulate(map(int, sizes)))
    if ends[-1] > length:
        got = f"{ends[-1]} positions in all"
        raise BadArgument("--documents", expected=f"at most {length} positions, the length", got=got)
    # Document n begins where the one before it ends; what is left belongs to one more.
    return documents(torch.bucketize(torch.arange(length), torch.tensor(ends), right=True))
