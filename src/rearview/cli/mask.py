"""rearview mask: draw a mask, compare two.

rearview mask "causal() & window(3)" --tokens "I love sushi very much"
rearview mask diff "causal()" "window(4)" --length 6
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rearview.cli.terminal import show
from rearview.errors import BadArgument
from rearview.masks.combine import Joined, Not
from rearview.masks.compare import diff as compare
from rearview.masks.labels import Axes, Tokens
from rearview.masks.mask import Mask
from rearview.masks.packing import Documents, Padding, RealKeys
from rearview.masks.parse import parse
from rearview.masks.unstructured import Dense

DEFAULT_LENGTH = 8


class ExpressionFirst(TyperGroup):
    """`rearview mask EXPRESSION` means `rearview mask draw EXPRESSION`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["draw", *(args or ["--help"])]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=ExpressionFirst, help="Draw a mask, or compare two.")

TokensOption = Annotated[str | None, typer.Option("--tokens", "-t", help="Words, split at spaces: queries and keys.")]
KeysOption = Annotated[
    str | None, typer.Option("--keys", "-k", help="Words or a count, where the keys differ from the queries.")
]
LengthOption = Annotated[
    int | None,
    typer.Option("--length", "-n", help=f"How many positions, without words. By default {DEFAULT_LENGTH}."),
]
StartOption = Annotated[
    int | None, typer.Option("--q-start", help="Position of the first query. By default the queries stand last.")
]


@app.command()
def draw(
    expression: Annotated[str, typer.Argument(metavar="EXPRESSION", help="A mask, as in Python.")],
    tokens: TokensOption = None,
    keys: KeysOption = None,
    length: LengthOption = None,
    q_start: StartOption = None,
    batch: Annotated[int, typer.Option(help="The batch item to draw.")] = 0,
    head: Annotated[int, typer.Option(help="The head to draw.")] = 0,
    out: Annotated[str | None, typer.Option("--out", "-o", help="Also write a picture: .svg or .png.")] = None,
) -> None:
    """Draw a mask: who may hear whom, the ranges, the visible share, warnings.

    Masks: causal(), full(), window(n), prefix(n), chunks(n), dilated(n),
    documents([0, 0, 1]), padding([3, 5]), dense([[1, 0], [1, 1]]),
    per_head([...]), one mask a head; joined by & | ~ and parentheses.

    Examples:
    rearview mask "causal() & window(3)" --tokens "I love sushi very much"
    rearview mask "causal() | prefix(4)" --length 1000000
    rearview mask "causal()" --tokens "much" --keys "I love sushi very much"
    rearview mask "causal()" --tokens "I love sushi" --out mask.svg
    rearview mask diff "causal()" "window(4)" --length 6
    """
    mask = parse(expression)
    queries, others = _tokens(tokens, keys, length, mask)
    show(mask.show(queries, others, q_start=q_start, batch=batch, head=head))
    if out is not None:
        mask.save_picture(out, queries, others, q_start=q_start, batch=batch, head=head)
        print(f"\nwrote {out}")


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="FIRST", help="A mask, as in Python.")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="Another.")],
    tokens: TokensOption = None,
    keys: KeysOption = None,
    length: LengthOption = None,
    q_start: StartOption = None,
) -> None:
    """Compare two masks: exit code 0 when they mean the same at this size, 1 when not, 2 for an error.

    Example: rearview mask diff "causal()" "window(4)" --length 6
    """
    one, other = parse(first), parse(second)
    queries, others = _tokens(tokens, keys, length, one, other)
    frame = Axes.of(queries, others, q_start).frame
    found = compare(one, other, frame.q_len, frame.k_len, q_start=q_start)
    show(found.show(queries, others))
    raise typer.Exit(0 if found.same else 1)


def _tokens(tokens: str | None, keys: str | None, length: int | None, *masks: Mask) -> tuple[Tokens, Tokens | None]:
    if tokens is not None and length is not None:
        raise BadArgument("--length", expected="either --tokens or --length", came="both")
    if keys is not None and tokens is None and length is None:
        raise BadArgument("--keys", expected="--tokens or --length beside it, for the queries", came="neither")
    others = int(keys) if keys is not None and keys.strip().isdecimal() else keys
    if tokens is not None or length is not None:
        return tokens if tokens is not None else length or 0, others
    return min([known for mask in masks if (known := _own_length(mask))] or [DEFAULT_LENGTH]), None


def _own_length(mask: Mask) -> int | None:
    """The length that a mask's own data speak of: no need to ask for it again."""
    match mask:
        case Joined():
            return min([known for part in mask.parts if (known := _own_length(part))], default=None)
        case Not():
            return _own_length(mask.part)
        case Documents():
            return mask.ids.shape[-1]
        case RealKeys():
            return mask.real.shape[-1]
        case Padding():
            return int(mask.lengths.max())
        case Dense():
            return mask.tensor.shape[-1]
    return None
