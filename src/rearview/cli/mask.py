"""rearview mask: draw a mask, or compare two masks.

rearview mask "causal() & window(3)" --tokens "I love sushi very much"
rearview mask diff "causal()" "window(4)" --length 6
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rearview.cli.commands import Command, CommandGroup
from rearview.errors import BadArgument

if TYPE_CHECKING:
    from rearview.masks.inspection.axes import Tokens
    from rearview.masks.mask import Mask

DEFAULT_LENGTH = 8


class ExpressionFirst(CommandGroup):
    """`rearview mask EXPRESSION` means `rearview mask draw EXPRESSION`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["draw", *(args or ["--help"])]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=ExpressionFirst, add_completion=False, help="Draw a mask, or compare two masks.")

TokensOption = Annotated[
    str | None, typer.Option("--tokens", "-t", help="Tokens, separated by spaces, as queries and keys.")
]
KeysOption = Annotated[
    str | None, typer.Option("--keys", "-k", help="Tokens or a number of keys, where the keys differ from the queries.")
]
LengthOption = Annotated[
    int | None,
    typer.Option(
        "--length",
        "-n",
        help=f"Number of positions, if no tokens are given. By default that of the mask's data, or {DEFAULT_LENGTH}.",
    ),
]
StartOption = Annotated[
    int | None,
    typer.Option("--q-start", help="Position of the first query. By default the queries have the last positions."),
]


@app.command(cls=Command)
def draw(
    expression: Annotated[str, typer.Argument(metavar="EXPRESSION", help="Mask expression, as in Python.")],
    tokens: TokensOption = None,
    keys: KeysOption = None,
    length: LengthOption = None,
    q_start: StartOption = None,
    batch: Annotated[int, typer.Option(help="Batch item to draw.")] = 0,
    head: Annotated[int, typer.Option(help="Head to draw.")] = 0,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Also write a picture to this file: .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Draw a mask: which keys each query may hear, ranges, the visible share, warnings.

    Masks: causal(), full(), window(n), prefix(n), chunks(n), dilated(n),
    documents([0, 0, 1]), padding([3, 5]), tree([-1, 0, 0]), shared_prefix(3, [2, 2]),
    along(documents([0, 0, 1]), window(2)), grid_window([3, 4], 3),
    block_diffusion(8, 2), ranges([0, 0], [1, 2]), dense([[1, 0], [1, 1]]),
    per_head([...]), with one mask per head; combined with & | ~ and parentheses.

    Examples:
    rearview mask "causal() & window(3)" --tokens "I love sushi very much"
    rearview mask "causal() | prefix(4)" --length 1000000
    rearview mask "causal()" --tokens "much" --keys "I love sushi very much"
    rearview mask "causal()" --tokens "I love sushi" --out mask.svg
    rearview mask diff "causal()" "window(4)" --length 6
    """
    from rearview.cli.terminal import show
    from rearview.files import target_of
    from rearview.masks.inspection.picture import ENDINGS
    from rearview.masks.parser import parse

    mask = parse(expression)
    if out is not None:
        # Before anything is printed.
        target_of(out, ENDINGS)
    queries, others = _tokens(tokens, keys, length, mask)
    show(mask.show(queries, others, q_start=q_start, batch=batch, head=head))
    if out is not None:
        mask.save_picture(out, queries, others, q_start=q_start, batch=batch, head=head)
        print(f"\nwrote {out}")


@app.command(cls=Command)
def diff(
    first: Annotated[str, typer.Argument(metavar="FIRST", help="Mask expression, as in Python.")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="Another mask expression.")],
    tokens: TokensOption = None,
    keys: KeysOption = None,
    length: LengthOption = None,
    q_start: StartOption = None,
) -> None:
    """Compare two masks: exit code 0 if they are equal at this size, 1 if not, 2 for an error.

    Example: rearview mask diff "causal()" "window(4)" --length 6
    """
    from rearview.cli.terminal import show
    from rearview.masks.inspection.axes import Axes
    from rearview.masks.inspection.difference import diff as compare
    from rearview.masks.parser import parse

    one, other = parse(first), parse(second)
    queries, others = _tokens(tokens, keys, length, one, other)
    frame = Axes.of(queries, others, q_start).frame
    found = compare(one, other, frame.q_len, frame.k_len, q_start=q_start)
    show(found.show(queries, others))
    raise typer.Exit(0 if found.same else 1)


def _tokens(tokens: str | None, keys: str | None, length: int | None, *masks: Mask) -> tuple[Tokens, Tokens | None]:
    if length is not None and length < 1:
        raise BadArgument("--length", expected="an integer of at least 1", got=length)
    if tokens is not None and length is not None:
        raise BadArgument("--length", expected="either --tokens or --length", got="both")
    if keys is not None and tokens is None and length is None:
        raise BadArgument("--keys", expected="--tokens or --length with it, for the queries", got="neither")
    others = int(keys) if keys is not None and keys.strip().isdecimal() else keys
    if tokens is not None:
        return tokens, others
    if length is not None:
        return length, others
    return min([known for mask in masks if (known := mask.own_length)] or [DEFAULT_LENGTH]), None
