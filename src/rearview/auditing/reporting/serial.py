"""A Report as JSON, and back; the inputs of its witnesses are written with their dtypes and shapes.

>>> import torch
>>> from rearview.auditing import Report, audit
>>> report = audit(lambda x: x.flip(1), torch.randn(1, 8))
>>> again = Report.from_json(report.to_json())
>>> again.verdict, again.place == report.place, torch.equal(again.hears.amounts, report.hears.amounts)
(<Verdict.LEAKS: 'LEAKS'>, True, True)
"""

from __future__ import annotations

import os

import torch

from rearview.auditing.reporting.html import to_html
from rearview.auditing.reporting.report import Report
from rearview.auditing.reporting.witness import Witness
from rearview.codec import Reader, json_text, parse_json, plain
from rearview.files import target_of, write_whole

FORMAT, VERSION = "rearview-audit", 3
ENDINGS = (".html", ".json", ".txt")


def to_json(report: Report) -> str:
    """See `Report.to_json`."""
    # The sentences are for people who read the file; a Witness words them itself.
    witnesses = [{**plain(witness), "sentence": witness.sentence} for witness in report.witnesses]
    header = {"format": FORMAT, "version": VERSION, "exit_code": report.exit_code}
    return json_text({**header, **plain(report), "witnesses": witnesses})


def from_json(text: str | bytes, source: object = "JSON") -> Report:
    """See `Report.from_json`; `source` names the text in errors."""
    reader = Reader(source, names={"Witness": Witness})
    report = reader.read(Report, reader.header(parse_json(text, source), FORMAT, VERSION))
    if (hears := report.hears) is not None:
        shape = hears.amounts.shape
        if len(shape) != 2 or shape[1] != len(hears.sources) or hears.amounts.dtype != torch.float64:
            expected = f"float64 in the shape [time, {len(hears.sources)}], a column per source"
            reader.refuse("hears.amounts", expected, f"{hears.amounts.dtype} {list(shape)}")
        if hears.forbidden.shape != shape or hears.forbidden.dtype != torch.bool:
            expected = f"booleans in the shape {list(shape)}"
            reader.refuse("hears.forbidden", expected, f"{hears.forbidden.dtype} {list(hears.forbidden.shape)}")
    for n, witness in enumerate(report.witnesses):
        witness.refuse_impossible(reader, f"witnesses[{n}].")
    return report


def save(report: Report, path: str | os.PathLike[str]) -> None:
    """See `Report.save`."""
    target = target_of(path, ENDINGS)
    match target.suffix.lower():
        case ".json":
            text = to_json(report)
        case ".txt":
            text = f"{report.show()}\n"
        case _:
            text = to_html(report)
    write_whole(target, text.encode())
