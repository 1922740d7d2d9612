"""A Trace: one attention, step by step, as exact labelled matrices. Every front end draws a Trace.

>>> import torch
>>> from rearview import explain
>>> trace = explain(query=torch.eye(2), key=torch.eye(2), value=torch.eye(2), labels=["I", "love"])
>>> [stage.symbol for stage in trace.stages]
['Q', 'K', 'V', 'S', 'M', 'S + M', 'A', 'O']
>>> trace["weights"].matrix[0, 0].tolist()
[1.0, 0.0]
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from rearview.errors import BadArgument
from rearview.files import target_of, write_whole
from rearview.masks import Mask

if TYPE_CHECKING:
    from rearview.drawing.text import Drawing
    from rearview.explanation.reading import Reading, Received

# The key of the stage that holds the learned sink of each head; most traces have none.
SINKS = "sinks"

# The forms in which a Trace is saved.
ENDINGS = (".html", ".json", ".csv", ".tex", ".svg", ".png", ".pdf")


@dataclass(frozen=True, eq=False)
class Stage:
    """One step: a float64 matrix [heads, rows, columns] with its labels, formula and sentence.

    A stage that all heads share has one head. `unmasked` is the step without the mask, where it differs.
    """

    key: str
    symbol: str
    formula: str
    latex: str
    sentence: str
    matrix: Tensor
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    unmasked: Tensor | None = None

    @property
    def heads(self) -> int:
        return self.matrix.shape[0]

    def of_head(self, head: int, *, masked: bool = True) -> Tensor:
        """The matrix [rows, columns] of a head; the one without the mask if `masked` is False."""
        matrix = self.matrix if masked or self.unmasked is None else self.unmasked
        return matrix[head if matrix.shape[0] > 1 else 0]

    def difference(self, head: int = 0) -> Tensor | None:
        """The stage with the mask minus the stage without it; None where the mask changes nothing."""
        return None if self.unmasked is None else self.of_head(head) - self.of_head(head, masked=False)


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The result of `explain`. `trace["weights"]` is a stage; `trace.readings(head)` reads the weights aloud."""

    title: str
    mask: Mask
    labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    reflexives: tuple[str, ...]
    heads: int
    scale: float
    visible: Tensor
    """Who may hear whom: bool [heads, queries, keys], with one head where all heads share it."""
    stages: tuple[Stage, ...]

    def __getitem__(self, key: str) -> Stage:
        for stage in self.stages:
            if stage.key == key:
                return stage
        known = ", ".join(stage.key for stage in self.stages)
        raise BadArgument("stage", expected=f"one of {known}", got=repr(key))

    def __contains__(self, key: object) -> bool:
        return any(stage.key == key for stage in self.stages)

    def readings(self, head: int = 0, *, masked: bool = True) -> tuple[Reading, ...]:
        """Each row of weights as a sentence: "Emma — 98.2 % Frank, 1.8 % herself"."""
        from rearview.explanation.reading import read_rows

        return read_rows(self, self.checked_head(head), masked=masked)

    def received(self, head: int = 0) -> tuple[Received, ...]:
        """The attention that each key received, and what it would receive from uniform attention."""
        from rearview.explanation.reading import read_columns

        return read_columns(self, self.checked_head(head))

    def remarks(self, head: int = 0) -> tuple[str, ...]:
        """Sentences about what stands out."""
        from rearview.explanation.reading import remarks

        return remarks(self, self.checked_head(head))

    def visible_to(self, head: int) -> Tensor:
        """Who may hear whom in this head: bool [queries, keys]."""
        return self.visible[head if self.visible.shape[0] > 1 else 0]

    def __repr__(self) -> str:
        named = f"{self.title!r}, " if self.title else ""
        symbols = ", ".join(stage.symbol for stage in self.stages)
        return f"<Trace {named}{len(self.labels)} x {len(self.key_labels)}, mask {self.mask!r}: {symbols}>"

    # The front ends. Each draws this Trace and computes no numbers.

    def __str__(self) -> str:
        from rearview.explanation.text import draw

        return draw(self)

    def show(
        self,
        head: int = 0,
        *,
        masked: bool = True,
        stages: Sequence[str] | None = None,
        width: int = 100,
        decimals: int = 3,
    ) -> Drawing:
        """Every step as text for the terminal, then the sentences; or only the named stages.

        Lines have at most `width` cells, and numbers `decimals` decimals.
        """
        from rearview.explanation.text import draw

        return draw(self, head=self.checked_head(head), masked=masked, stages=stages, width=width, decimals=decimals)

    def to_json(self) -> str:
        """All numbers in full, with the labels and sentences; `Trace.from_json` reads them back."""
        from rearview.explanation.serial import to_json

        return to_json(self)

    @staticmethod
    def from_json(text: str) -> Trace:
        """The Trace that `to_json` wrote."""
        from rearview.explanation.serial import from_json

        return from_json(text)

    def to_latex(
        self, head: int = 0, *, stages: Sequence[str] | None = None, decimals: int = 3, document: bool = True
    ) -> str:
        """The steps, or only the named stages, as a LaTeX document, or as displays to paste into one with amsmath."""
        from rearview.explanation.latex import to_latex

        return to_latex(self, head=self.checked_head(head), stages=stages, decimals=decimals, document=document)

    def to_csv(self) -> str:
        """All numbers in full, one line for each: its stage, head, row and column, and its value without the mask."""
        from rearview.explanation.number_table import to_csv

        return to_csv(self)

    def to_html(self) -> str:
        """One self-contained page: every step, with the mask on or off, and how each cell is computed."""
        from rearview.explanation.html import to_html

        return to_html(self)

    def _repr_html_(self) -> str:
        from rearview.explanation.html import to_notebook

        return to_notebook(self)

    def save(self, path: str | os.PathLike[str], head: int = 0) -> None:
        """Write .html, .json, .csv, .tex, .svg, .png or .pdf, by the ending of the name.

        A page, JSON and CSV hold every head.
        """
        target, head = target_of(path, ENDINGS), self.checked_head(head)
        match target.suffix.lower():
            case ".html":
                content = self.to_html().encode()
            case ".json":
                content = self.to_json().encode()
            case ".csv":
                content = self.to_csv().encode()
            case ".tex":
                content = self.to_latex(head).encode()
            case ending:
                from rearview.explanation.picture import picture

                content = picture(self, ending, head=head)
        write_whole(target, content)

    def checked_head(self, head: int) -> int:
        if not isinstance(head, int) or isinstance(head, bool) or not 0 <= head < self.heads:
            raise BadArgument("head", expected=f"a head from 0 to {self.heads - 1}", got=repr(head))
        return head
