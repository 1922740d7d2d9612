"""A Trace as a table for spreadsheets and data frames: one line per number, with its stage, head, row and column.

>>> from rearview import explain
>>> trace = explain(query=[[1.0], [1.0]], key=[[0.0], [0.0]], value=[[2.0], [4.0]], labels="I love")
>>> print(to_csv(trace).splitlines()[0])
stage,head,row,row_label,column,column_label,value,without_mask
>>> [line for line in to_csv(trace).splitlines() if line.startswith("weights")][0]
'weights,0,0,I,0,I,1.0,0.5'
"""

from __future__ import annotations

import csv
import io

from rearview.drawing.cells import printable
from rearview.explanation.trace import Trace

COLUMNS = ("stage", "head", "row", "row_label", "column", "column_label", "value", "without_mask")
# A spreadsheet takes a cell that begins with one of these for a formula, and a label may come from any text.
FORMULAS = ("=", "+", "-", "@")


def to_csv(trace: Trace) -> str:
    """All numbers in full; `without_mask` repeats the value where the mask changes nothing in the stage."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for stage in trace.stages:
        rows, columns = (tuple(map(_label, words)) for words in (stage.rows, stage.columns))
        without = stage.matrix if stage.unmasked is None else stage.unmasked
        heads = max(stage.matrix.shape[0], without.shape[0])
        pairs = zip(stage.matrix.expand(heads, -1, -1).tolist(), without.expand(heads, -1, -1).tolist(), strict=True)
        for head, (masked, unmasked) in enumerate(pairs):
            for i, row in enumerate(rows):
                for j, column in enumerate(columns):
                    writer.writerow([stage.key, head, i, row, j, column, masked[i][j], unmasked[i][j]])
    return out.getvalue()


def _label(word: str) -> str:
    text = printable(word)
    return f"'{text}" if text.startswith(FORMULAS) else text
