"""rearview demo: masked attention step by step, computed as you watch.

rearview demo
"""

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from rearview.cli.terminal import console, show
from rearview.examples import FOUR_SPEAKERS, Example

# White text is readable on both, and on every blend of them.
FAINT, STRONG = (58, 70, 82), (18, 140, 170)


def demo() -> None:
    """Masked attention step by step: four speakers, each of whom can only look back."""
    paper = console()
    _four_speakers(paper, FOUR_SPEAKERS)
    _next_word(paper)


def _four_speakers(paper: Console, example: Example) -> None:
    from rearview import attend, causal, full, weights

    query, key, value = example.tensors()
    mask = causal()
    scores = query @ key.T / math.sqrt(query.shape[-1])
    masked = scores.masked_fill(~mask.to_bool(len(query)), -math.inf)
    heard = weights(query, key, mask=mask)
    output = attend(query, key, value, mask=mask)
    open_ears = weights(query, key, mask=full())
    who = example.labels

    paper.print(Text("Masked attention: only look back", style="bold"))
    paper.print(f"{example.title}. Each may draw on those who spoke before, and on themselves.")
    _step(paper, "Q'", "what each would like to hear", _table(query, who, example.query_features))
    _step(paper, "K'", "what each has to offer", _table(key, who, example.key_features))
    _step(paper, "V'", "what each has to say", _table(value, who, example.value_features))
    _step(paper, "S = Q'K'ᵀ / √d", "how well each query and key fit, the future included", _table(scores, who, who))
    _step(paper, "S + M", f"M = {mask!r}: 0 where a key may be heard, -∞ where not", _table(masked, who, who))
    _step(
        paper,
        "A = softmax(S + M)",
        "each row adds up to 1, and what was blocked is exactly 0",
        _table(heard, who, who, shaded=True),
    )
    _step(paper, "A × V'", "what each actually hears", _table(output, who, example.value_features))

    paper.print(Text("\nRead aloud", style="bold"))
    for n in range(len(who)):
        paper.print(f"  {read_aloud(n, heard[n], example)}")
    # Above the diagonal lies what the mask takes away.
    future = open_ears.triu(1).sum(-1)
    most = int(future.argmax())
    paper.print(
        f"\nWithout the mask {who[most]} would take {100 * future[most]:.1f} % from people who have not spoken yet."
    )


def _next_word(paper: Console) -> None:
    from rearview import causal

    paper.print(Text("\nThe same rule over words", style="bold"))
    paper.print("To predict the word after love, a model may use I and love; the answer is not there to be read.\n")
    show(causal().show("I love ___"))
    paper.print('\nNext: rearview mask "causal() & window(3)" --tokens "I love sushi very much"')


def read_aloud(row: int, weights: Tensor, example: Example) -> str:
    """One row of weights as a sentence, from the strongest down; what is exactly 0 is not mentioned.

    >>> from rearview import weights
    >>> read_aloud(1, weights(*FOUR_SPEAKERS.tensors()[:2])[1], FOUR_SPEAKERS)
    'Emma — 98.2 % Frank, 1.8 % herself'
    """
    names = [*example.labels]
    names[row] = example.reflexives[row]
    order = weights.argsort(descending=True, stable=True).tolist()
    parts = [(names[n], float(weights[n])) for n in order if weights[n] > 0]
    spoken = [f"{100 * weight:.1f} % {name}" if weight >= 0.0005 else f"a trace of {name}" for name, weight in parts]
    return f"{example.labels[row]} — {', '.join(spoken) or 'nothing'}"


def _step(paper: Console, formula: str, meaning: str, table: Table) -> None:
    paper.print(Text.assemble("\n", (formula, "bold"), f"   {meaning}"))
    paper.print(table)


def _table(matrix: Tensor, rows: tuple[str, ...], columns: tuple[str, ...], *, shaded: bool = False) -> Table:
    table = Table(show_edge=False, pad_edge=False, header_style="default", border_style="dim")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for label, numbers in zip(rows, matrix.tolist(), strict=True):
        table.add_row(label, *(_number(number, shaded) for number in numbers))
    return table


def _number(number: float, shaded: bool) -> Text:
    if number == -math.inf:
        return Text("-∞", style="dim")
    if not shaded:
        return Text(f"{number:.3f}")
    # A weight that rounds to 0.000 is not the same as one that is 0.
    if number == 0:
        return Text("0", style="dim")
    red, green, blue = (round(a + (b - a) * number) for a, b in zip(FAINT, STRONG, strict=True))
    return Text(f"{number:.3f}", style=f"bright_white on rgb({red},{green},{blue})")
