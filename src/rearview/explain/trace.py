"""A Trace: one attention, step by step, as exact labelled matrices. Every front end draws this and nothing else.

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
from rearview.masks import Mask

if TYPE_CHECKING:
    from rearview.explain.reading import Reading, Received
    from rearview.masks.drawing import Drawing


@dataclass(frozen=True, eq=False)
class Stage:
    """One step: a float64 matrix [heads, rows, columns] with its labels, its formula and one sentence.

    A stage that is the same for all heads has one. `unmasked` is the same step without the mask, where it differs.
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
        """The matrix [rows, columns] that this head sees; the one without the mask when `masked` is False."""
        matrix = self.matrix if masked or self.unmasked is None else self.unmasked
        return matrix[head if matrix.shape[0] > 1 else 0]

    def difference(self, head: int = 0) -> Tensor | None:
        """What the mask changed: with it, less without it. None where it changes nothing."""
        return None if self.unmasked is None else self.of_head(head) - self.of_head(head, masked=False)


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What `explain` returns. `trace["weights"]` is a stage; `trace.readings(head)` reads the weights aloud."""

    title: str
    mask: Mask
    labels: tuple[str, ...]
    key_labels: tuple[str, ...]
    reflexives: tuple[str, ...]
    heads: int
    scale: float
    visible: Tensor
    """Who may hear whom: bool [heads, queries, keys], or one head where all see the same."""
    stages: tuple[Stage, ...]

    def __getitem__(self, key: str) -> Stage:
        for stage in self.stages:
            if stage.key == key:
                return stage
        known = ", ".join(stage.key for stage in self.stages)
        raise BadArgument("stage", expected=f"one of {known}", came=repr(key))

    def __contains__(self, key: object) -> bool:
        return any(stage.key == key for stage in self.stages)

    def readings(self, head: int = 0, *, masked: bool = True) -> tuple[Reading, ...]:
        """Each row of weights read aloud: "Emma — 98.2 % Frank, 1.8 % herself"."""
        from rearview.explain.reading import read_rows

        return read_rows(self, self.checked_head(head), masked=masked)

    def received(self, head: int = 0) -> tuple[Received, ...]:
        """The attention that each key received, against what it would get if everyone listened evenly."""
        from rearview.explain.reading import read_columns

        return read_columns(self, self.checked_head(head))

    def remarks(self, head: int = 0) -> tuple[str, ...]:
        """What stands out, in sentences."""
        from rearview.explain.reading import remarks

        return remarks(self, self.checked_head(head))

    def visible_to(self, head: int) -> Tensor:
        """Who may hear whom in this head: bool [queries, keys]."""
        return self.visible[head if self.visible.shape[0] > 1 else 0]

    def __repr__(self) -> str:
        named = f"{self.title!r}, " if self.title else ""
        symbols = ", ".join(stage.symbol for stage in self.stages)
        return f"<Trace {named}{len(self.labels)} x {len(self.key_labels)}, mask {self.mask!r}: {symbols}>"

    # The front ends. Each draws this Trace and computes nothing of its own.

    def __str__(self) -> str:
        from rearview.explain.text import draw

        return draw(self)

    def show(self, head: int = 0, *, masked: bool = True, stages: Sequence[str] | None = None) -> Drawing:
        """Every step as text for the terminal, then read aloud; or only the stages that are named."""
        from rearview.explain.text import draw

        return draw(self, head=self.checked_head(head), masked=masked, stages=stages)

    def to_json(self) -> str:
        """Every number in full, with the labels and sentences; `Trace.from_json` reads it back."""
        from rearview.explain.serial import to_json

        return to_json(self)

    @staticmethod
    def from_json(text: str) -> Trace:
        """The Trace that `to_json` wrote."""
        from rearview.explain.serial import from_json

        return from_json(text)

    def to_latex(self, head: int = 0) -> str:
        """The steps as LaTeX (amsmath), one display a stage."""
        from rearview.explain.latex import to_latex

        return to_latex(self, head=self.checked_head(head))

    def to_html(self) -> str:
        """One self-contained page: steps, mask on and off, the products behind each cell."""
        from rearview.explain.html import to_html

        return to_html(self)

    def _repr_html_(self) -> str:
        from rearview.explain.html import to_notebook

        return to_notebook(self)

    def save(self, path: str | os.PathLike[str], head: int = 0) -> None:
        """Write .html, .json, .tex, .svg or .png, by the ending of the name."""
        from rearview.explain.files import save

        save(self, path, head=self.checked_head(head))

    def checked_head(self, head: int) -> int:
        if not isinstance(head, int) or isinstance(head, bool) or not 0 <= head < self.heads:
            raise BadArgument("head", expected=f"a head from 0 to {self.heads - 1}", came=repr(head))
        return head
