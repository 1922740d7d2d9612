r"""A Trace as LaTeX: a document, or only the amsmath displays, one per matrix, with its labels outside the parentheses.

>>> import torch
>>> from rearview import explain
>>> trace = explain(query=torch.eye(2), key=torch.eye(2), value=torch.eye(2), labels=["I", "100 %"])
>>> print(trace.to_latex(stages=["mask"], document=False))    # doctest: +NORMALIZE_WHITESPACE
\[
M = \bordermatrix{
 & \text{I} & \text{100 \%} \cr
\text{I} & 0 & -\infty \cr
\text{100 \%} & 0 & 0 \cr
}
\]
<BLANKLINE>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from rearview.drawing.cells import counted, drawn, printable
from rearview.explanation.numbers import DIGITS, checked_decimals, digits_for, shown, signed
from rearview.explanation.trace import Stage, Trace
from rearview.explanation.words import UNTITLED

PREAMBLE = r"""% Compiles with pdflatex. Labels beyond the Latin script need xelatex or lualatex, and a font.
\documentclass{article}
\usepackage[T1]{fontenc}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage{amsmath}
\usepackage{graphicx}
\usepackage[margin=2cm]{geometry}
\setlength{\parindent}{0pt}
% A matrix that is wider than the page shrinks until it fits.
\newsavebox{\fitted}
\newcommand{\fit}[1]{\sbox{\fitted}{$\displaystyle #1$}%
  \ifdim\wd\fitted>\linewidth\resizebox{\linewidth}{!}{\usebox{\fitted}}\else\usebox{\fitted}\fi}
"""

IN_TEXT = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}", "∞": r"\ensuremath{\infty}",
    "␣": r"\textvisiblespace{}",
    # At the start of an item it would begin an option.
    "[": "{[}",
}  # fmt: skip


def to_latex(
    trace: Trace,
    *,
    head: int = 0,
    stages: Sequence[str] | None = None,
    decimals: int = DIGITS,
    document: bool = True,
) -> str:
    """See `Trace.to_latex`."""
    head, form = trace.checked_head(head), _Form(checked_decimals(decimals), fitted=document)
    chosen = trace.stages if stages is None else tuple(trace[key] for key in stages)
    lines = (
        _document(trace, head, chosen, form)
        if document
        else (line for stage in chosen for line in _displays(stage, head, form))
    )
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Form:
    """The decimals of a number, and whether a matrix that is wider than the page shrinks until it fits."""

    decimals: int
    fitted: bool


def in_text(text: str) -> str:
    r"""Text for LaTeX, with every special character escaped.

    >>> in_text("a_b & 100 %")
    'a\\_b \\& 100 \\%'
    """
    escaped = "".join(IN_TEXT.get(character, character) for character in printable(text))
    # TeX would set two of these in a row as one ligature.
    return re.sub(r"([-,'])(?=\1)", r"\1{}", escaped)


def _document(trace: Trace, head: int, stages: Sequence[Stage], form: _Form) -> Iterator[str]:
    yield PREAMBLE
    yield r"\begin{document}"
    yield rf"\section*{{{in_text(trace.title or UNTITLED)}}}"
    sizes = f"{counted(len(trace.labels), 'query', 'queries')}, {counted(len(trace.key_labels), 'key', 'keys')}"
    which = f", head {head} of {trace.heads}" if trace.heads > 1 else ""
    yield rf"Mask: \texttt{{{in_text(repr(trace.mask))}}}. {sizes}{which}."
    for stage in stages:
        yield ""
        yield rf"\subsection*{{${stage.latex}$}}"
        yield in_text(stage.sentence)
        yield from _displays(stage, head, form)
    yield from _said("Read aloud", [reading.sentence for reading in trace.readings(head)])
    yield from _said("Attention received", [received.sentence for received in trace.received(head)])
    yield from _said("What stands out", trace.remarks(head))
    yield r"\end{document}"


def _displays(stage: Stage, head: int, form: _Form) -> Iterator[str]:
    yield from _display(stage, stage.of_head(head), stage.symbol, form)
    # Without the mask M is 0, and S + M is S, which is shown above.
    difference = stage.difference(head)
    if difference is not None and stage.key not in ("mask", "masked"):
        yield from _display(
            stage, stage.of_head(head, masked=False), rf"{stage.symbol}_{{\text{{without the mask}}}}", form
        )
        if form.fitted:
            yield "What the mask changed:"
        change = rf"{stage.symbol} - {stage.symbol}_{{\text{{without the mask}}}}"
        yield from _display(stage, difference, change, form, write=signed)


def _display(
    stage: Stage, matrix: Tensor, symbol: str, form: _Form, write: Callable[[float, int], str] = shown
) -> Iterator[str]:
    digits = digits_for(matrix, form.decimals)
    yield r"\["
    opened, closed = (r"\fit{", "}}") if form.fitted else ("", "}")
    yield rf"{opened}{symbol} = \bordermatrix{{"
    yield "".join(f" & {_label(column)}" for column in stage.columns) + r" \cr"
    for row, numbers in zip(stage.rows, matrix.tolist(), strict=True):
        yield " & ".join([_label(row), *(_number(write(x, digits)) for x in numbers)]) + r" \cr"
    yield closed
    yield r"\]"


def _label(word: str) -> str:
    return rf"\text{{{in_text(drawn(word))}}}"


def _number(text: str) -> str:
    return text.replace("∞", r"\infty").replace("NaN", r"\text{NaN}")


def _said(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield rf"\subsection*{{{title}}}"
        yield r"\begin{itemize}"
        yield from (rf"\item {in_text(sentence)}" for sentence in sentences)
        yield r"\end{itemize}"
