"""A Comparison on a terminal: the conclusion, a table, the loss curves, and the generated texts.

>>> sparkline([4.0, 3.0, 2.0, 1.0], 4)
'█▆▃▁'
>>> side_by_side("to be or not", "aaaaaaa", 6)
[('to be ', 'aaaaaa'), ('or not', 'a')]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, zip_longest

from rearview.comparison.conclusion import CLAIM, OUTCOMES, conclusion_of
from rearview.comparison.result import Comparison, Side, Writing
from rearview.drawing.cells import harmless, width
from rearview.drawing.text import Drawing, Piece

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "  │  "


def summary(comparison: Comparison, *, columns: int = 100) -> Drawing:
    """The comparison in text of at most `columns` columns, but no fewer than 40."""
    return Drawing(_pieces(comparison, max(columns, 40)))


def sparkline(values: Sequence[float], cells: int, *, low: float | None = None, high: float | None = None) -> str:
    """The means of `cells` equal parts, as blocks from `low` to `high`."""
    cells = min(cells, len(values))
    edges = [n * len(values) // cells for n in range(cells + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means) if low is None else low, max(means) if high is None else high
    span = max(high - low, 1e-9)
    steps = [min(max((mean - low) / span, 0.0), 1.0) * (len(BLOCKS) - 1) for mean in means]
    # Half is rounded up, so that the second lowest block is above the lowest.
    return "".join(BLOCKS[math.floor(step + 0.5)] for step in steps)


def side_by_side(left: str, right: str, room: int) -> list[tuple[str, str]]:
    """Two texts in lines of `room` columns each; the shorter one ends in empty lines."""
    return list(zip_longest(_wrapped(left, room), _wrapped(right, room), fillvalue=""))


def _pieces(comparison: Comparison, columns: int) -> Iterator[Piece]:
    conclusion = conclusion_of(comparison)
    yield Piece("With the mask, and without it\n", "title")
    yield Piece(f"{conclusion.headline}\n", "label")
    yield Piece(f"{OUTCOMES[conclusion.claim]}: {CLAIM}\n\n", "remark")
    yield from _table(comparison)
    yield from _curves(comparison, columns)
    yield from _samples(comparison, columns)
    yield Piece(
        f"\n{conclusion.attention}\nThe exam of the model with the mask equals its ordinary validation; the largest "
        f"difference is {comparison.self_check:.1g} nats.",
        "remark",
    )


def _table(comparison: Comparison) -> Iterator[Piece]:
    token = comparison.conditions.token
    rows: list[tuple[str, Callable[[Side], float | None], str]] = [
        ("final training loss, nats per token", lambda side: side.final_loss, ".2f"),
        ("held-out text read at once, bits per character", lambda side: side.at_once.bits, ".2f"),
        ("exam, from the prefix alone, bits per character", lambda side: side.exam.bits, ".2f"),
        (f"exam, next {token} predicted", lambda side: side.exam.right, "%"),
        ("known words in the generated text", lambda side: side.writing.known_words, "%"),
        ("repetition in the generated text", lambda side: side.writing.repeated, "%"),
    ]
    room = max(len(words) for words, _, _ in rows) + 2
    yield Piece(f" {'':{room}}with the mask   without it\n", "remark")
    for words, value, form in rows:
        ours, theirs = (_number(value(side), form) for side in (comparison.with_mask, comparison.without_mask))
        yield Piece(f" {words:{room}}", "label")
        yield Piece(f"{ours:>13}   {theirs:>10}\n", "heard" if words.startswith("exam, from") else "number")
    known = comparison.baselines
    tables = [] if known.pairs is None else [f"a table of pairs {known.pairs:.2f}"]
    tables += [f"single {token}s {known.singles:.2f}", f"uniform guessing {known.even:.2f}"]
    yield Piece(f" Baselines, in bits per character: {', '.join(tables)}.\n", "remark")


def _curves(comparison: Comparison, columns: int) -> Iterator[Piece]:
    sides = {"with the mask": comparison.with_mask, "without it": comparison.without_mask}
    losses = {name: [loss for _, loss in side.training] for name, side in sides.items()}
    every = [loss for curve in losses.values() for loss in curve]
    yield Piece("\nTraining loss\n", "title")
    for name, curve in losses.items():
        line = sparkline(curve, min(60, columns - 34), low=0.0, high=max(every))
        yield Piece(f" {name:15}", "label")
        yield Piece(line, "heard" if name == "with the mask" else "lost")
        yield Piece(f"  {curve[0]:.2f} to {sides[name].final_loss:.2f}\n", "number")


def _samples(comparison: Comparison, columns: int) -> Iterator[Piece]:
    room = (columns - len(GAP) - 2) // 2
    texts: list[Writing] = [comparison.with_mask.writing, comparison.without_mask.writing]
    yield Piece("\nGenerated text, one token at a time\n", "title")
    yield Piece(f" {'with the mask':{room}}{GAP}without it\n", "remark")
    for prompt, ours, theirs in zip(comparison.prompts, texts[0].texts, texts[1].texts, strict=True):
        yield Piece(f" {_one_line(prompt)} …\n", "title")
        for left, right in side_by_side(ours, theirs, room):
            yield Piece(f" {left}{' ' * (room - width(left))}", "heard")
            yield Piece(GAP, "remark")
            yield Piece(f"{right}\n", "lost")


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "none"
    return f"{100 * value:.0f} %" if form == "%" else f"{value:{form}}"


def _wrapped(text: str, room: int) -> Iterator[str]:
    for line in text.split("\n"):
        rest = harmless(line)
        while width(rest) > room:
            end = next(n for n in range(len(rest) + 1) if width(rest[: n + 1]) > room)
            # After a space if there is one in the last third: generated text may have none.
            space = rest.rfind(" ", 2 * end // 3, end) + 1
            yield rest[: space or end]
            rest = rest[space or end :]
        yield rest


def _one_line(text: str) -> str:
    return harmless(" ".join(text.split()))
