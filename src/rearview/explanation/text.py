"""A Trace for the terminal: every step as a labelled table, then the sentences.

>>> import torch
>>> from rearview import explain
>>> trace = explain(query=torch.eye(2), key=torch.eye(2), value=torch.eye(2), labels=["I", "love"])
>>> print(trace.show().partition("exactly 0.\\n\\n")[2].partition("\\n\\n")[0])
 with the mask           without the mask        what the mask changed
            I   love                I   love                 I    love
 I      1.000      0     I      0.670  0.330     I      +0.330  -0.330
 love   0.330  0.670     love   0.330  0.670     love        0       0

The text has roles, like the drawings of masks: a terminal colours it, but it can be read without colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from rearview.drawing.cells import counted, cut, drawn, left, printable, right, wrapped
from rearview.drawing.cells import width as cells_of
from rearview.drawing.text import Drawing, NumberRole, Piece, Role
from rearview.explanation.numbers import DIGITS, checked_decimals, digits_for, shown, signed
from rearview.explanation.trace import Stage, Trace
from rearview.explanation.words import UNTITLED, without_mask
from rearview.masks.frame import whole_number

# The width of the lines by default, and the narrowest in which tables are readable.
WIDTH, NARROWEST = 100, 40
LONGEST_WORD = 18
# The largest number of rows and columns that are written; further ones are counted.
MOST = 24
BETWEEN = 4
SHADES: tuple[NumberRole, ...] = ("weight 1", "weight 2", "weight 3", "weight 4", "weight 5")

Line = list[Piece]


@dataclass(frozen=True)
class _Form:
    """The cells of a line, and the decimals of a number."""

    width: int
    decimals: int


def draw(
    trace: Trace,
    *,
    head: int = 0,
    masked: bool = True,
    stages: Sequence[str] | None = None,
    width: int = WIDTH,
    decimals: int = DIGITS,
) -> Drawing:
    """Every step of one head; with `masked` False, the same attention without its mask. See `Trace.show`."""
    form = _Form(whole_number(width, "width", at_least=NARROWEST), checked_decimals(decimals))
    lines = _heading(trace, trace.checked_head(head), masked, form.width)
    chosen = [stage.key for stage in trace.stages] if stages is None else [trace[key].key for key in stages]
    for stage in trace.stages:
        if stage.key in chosen:
            lines += _stage(stage, head, masked, form)
    if stages is None:
        lines += _aloud(trace, head, masked, form.width)
    return Drawing.of_lines(lines)


def _heading(trace: Trace, head: int, masked: bool, room: int) -> list[Line]:
    facts = [repr(trace.mask) if masked else f"without the mask {trace.mask!r}"]
    facts.append(f"{counted(len(trace.labels), 'query', 'queries')} x {counted(len(trace.key_labels), 'key', 'keys')}")
    facts += [f"head {head} of {trace.heads}"] if trace.heads > 1 else []
    title, about = printable(trace.title) or UNTITLED, "  ·  ".join(facts)
    return [
        *([Piece(line, "title")] for line in wrapped(title, room)),
        *([Piece(line, "remark")] for line in ([about] if cells_of(about) <= room else wrapped(about, room))),
    ]


def _stage(stage: Stage, head: int, masked: bool, form: _Form) -> Iterator[Line]:
    formula, sentence = stage.formula, stage.sentence
    if not masked and stage.unmasked is not None:
        other_formula, other_sentence = without_mask(stage)
        formula, sentence = other_formula or formula, other_sentence or sentence
    yield []
    yield [Piece(printable(formula), "title")]
    yield from ([Piece(line, "remark")] for line in wrapped(printable(sentence), form.width))
    yield []
    tables = [_Table(stage, stage.of_head(head, masked=masked), _role_of(stage.key))]
    # Without the mask M is 0, so the difference would be M itself; and scores minus -inf say nothing.
    if masked and stage.unmasked is not None and stage.key != "mask":
        without = _Table(stage, stage.of_head(head, masked=False), _role_of(stage.key), "without the mask")
        tables = [_Table(stage, stage.of_head(head), _role_of(stage.key), "with the mask"), without]
        difference = stage.difference(head)
        if stage.key != "masked" and difference is not None:
            tables.append(_Table(stage, difference, _change, "what the mask changed", write=signed))
    yield from _flow([panel for table in tables for panel in table.panels(form)], form.width)
    yield from tables[0].left_out()


def _role_of(key: str) -> Callable[[float], Role]:
    return {"mask": _open_or_not, "masked": _score, "weights": _weight}.get(key, lambda number: "number")


def _open_or_not(number: float) -> Role:
    return "heard" if number == 0 else "blocked"


def _score(number: float) -> Role:
    return "blocked" if number == float("-inf") else "number"


def _weight(number: float) -> Role:
    if number == 0:
        return "blocked"
    # A trace from a file may hold any number.
    return SHADES[min(len(SHADES) - 1, int(min(number, 1.0) * len(SHADES)))] if 0 < number < float("inf") else "number"


def _change(number: float) -> Role:
    return "gained" if number > 0 else "lost" if number < 0 else "blocked"


@dataclass(frozen=True)
class _Table:
    """A matrix with its labels, in panels that fit a line."""

    stage: Stage
    matrix: Tensor
    role: Callable[[float], Role]
    caption: str = ""
    write: Callable[[float, int], str] = shown

    def panels(self, form: _Form) -> list[list[Line]]:
        numbers = self.matrix[:MOST, :MOST].tolist()
        rows = [cut(drawn(word), LONGEST_WORD) for word in self.stage.rows[:MOST]]
        columns = [cut(drawn(word), LONGEST_WORD) for word in self.stage.columns[:MOST]]
        digits = digits_for(self.matrix, form.decimals)
        cells = [[self.write(number, digits) for number in row] for row in numbers]
        widths = [max(cells_of(word), *(cells_of(row[n]) for row in cells)) + 2 for n, word in enumerate(columns)]
        margin = 1 + max(map(cells_of, rows)) + 1
        groups = _groups(widths, form.width - margin)
        found = []
        for first, end in groups:
            part = f"columns {first + 1} to {end} of {self.matrix.shape[1]}" if len(groups) > 1 else ""
            caption = " · ".join(text for text in (self.caption, part) if text)
            lines: list[Line] = [[Piece(f" {caption}", "label")]] if caption else []
            head = "".join(right(word, cell) for word, cell in zip(columns[first:end], widths[first:end], strict=True))
            lines.append([Piece(left("", margin) + head, "label")])
            for word, row, texts in zip(rows, numbers, cells, strict=True):
                line = [Piece(left(f" {word}", margin), "label")]
                line += [Piece(right(texts[n], widths[n]), self.role(row[n])) for n in range(first, end)]
                lines.append(line)
            found.append(lines)
        return found

    def left_out(self) -> list[Line]:
        beyond = [
            f"… {counted(size - MOST, f'more {one}', f'more {one}s')}"
            for size, one in zip(self.matrix.shape, ("row", "column"), strict=True)
            if size > MOST
        ]
        return [[Piece(f" {' and '.join(beyond)}: save(…) as .html or .json has them all", "remark")]] if beyond else []


def _groups(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Runs of columns, [first, end), that fit; each has at least one column."""
    groups, first = [], 0
    for n in range(len(widths)):
        if n > first and sum(widths[first : n + 1]) > room:
            groups.append((first, n))
            first = n
    return [*groups, (first, len(widths))]


def _flow(panels: Sequence[list[Line]], room: int) -> Iterator[Line]:
    """Panels side by side while they fit, then under each other."""
    rows: list[list[list[Line]]] = []
    for panel in panels:
        wide = sum(_width(other) + BETWEEN for other in rows[-1]) + _width(panel) if rows else 0
        if rows and wide <= room:
            rows[-1].append(panel)
        else:
            rows.append([panel])
    for n, row in enumerate(rows):
        if n:
            yield []
        for together in zip(*row, strict=True):
            line: Line = []
            for panel, part in zip(row, together, strict=True):
                line += [*part, Piece(" " * (_width(panel) - _cells(part) + BETWEEN), "label")]
            yield line


def _width(panel: list[Line]) -> int:
    return max(map(_cells, panel))


def _cells(line: Line) -> int:
    return sum(cells_of(piece.text) for piece in line)


def _aloud(trace: Trace, head: int, masked: bool, room: int) -> Iterator[Line]:
    yield from _said("Read aloud", [reading.sentence for reading in trace.readings(head, masked=masked)], room)
    # What keys received and what stands out is about the masked attention.
    if masked:
        yield from _said("Attention received", [received.sentence for received in trace.received(head)], room)
        yield from _said("What stands out", trace.remarks(head), room)


def _said(title: str, sentences: Sequence[str], room: int) -> Iterator[Line]:
    if not sentences:
        return
    yield []
    yield [Piece(title, "title")]
    for sentence in sentences[:MOST]:
        yield from ([Piece(f" {line}", "label")] for line in wrapped(printable(sentence), room - 1, later="  "))
    if len(sentences) > MOST:
        yield [Piece(f" … {len(sentences) - MOST} more", "remark")]
