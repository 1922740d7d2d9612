"""A report as workflow commands of GitHub Actions, which show it beside the line in a pull request.

>>> import torch
>>> from rearview.auditing import audit
>>> print(*audit(lambda x: x + x.flip(1), torch.randn(1, 4)).annotations)
::error ...title=LEAKS%3A <lambda> against causal()::...
"""

from __future__ import annotations

from rearview.auditing.reporting.report import Report, Verdict
from rearview.auditing.user_code import shown
from rearview.drawing.cells import sentence


def annotate(report: Report) -> list[str]:
    """See `Report.annotations`."""
    if report.ok:
        return []
    verdict = "not proven" if report.verdict is Verdict.HELD else report.verdict.value
    title = f"{verdict}: {report.subject} against {report.contract}"
    if not report.places:
        return [command(report.why, title=title)]
    found = []
    for place in report.places:
        words = sentence(report.why) + (f" {sentence(place.hint)}" if place.hint else "")
        # The source of an exported program is in no file.
        has_file = place.file and not place.file.startswith("<")
        where = {"file": shown(place.file), "line": str(place.line)} if has_file else {}
        found.append(command(words, **where, title=title))
    return found


def command(message: str, **properties: str) -> str:
    r"""One error in the syntax of GitHub, with its characters escaped.

    >>> command("50 %\nleft", file="a,b.py", line="3")
    '::error file=a%2Cb.py,line=3::50 %25%0Aleft'
    """
    named = ",".join(f"{name}={_escaped(value, property=True)}" for name, value in properties.items())
    return f"::error{' ' + named if named else ''}::{_escaped(message)}"


def _escaped(text: str, *, property: bool = False) -> str:
    codes = {"%": "%25", "\r": "%0D", "\n": "%0A"} | ({":": "%3A", ",": "%2C"} if property else {})
    return "".join(codes.get(letter, letter) for letter in text)
