"""A Report for the terminal: the verdict, who heard whom, the place, each check.

>>> import torch
>>> from rearview.audit import audit
>>> print(audit(lambda x: x + x.roll(-1, 1), torch.randn(1, 4)).show(matrix=False).splitlines()[0])
LEAKS  <lambda>  against causal()
"""

from __future__ import annotations

import textwrap

from rearview.audit.place.hints import shape_words
from rearview.audit.report import Check, Hears, Place, Report, Verdict
from rearview.audit.source import shown
from rearview.masks.drawing import CellRole, Drawing, Grid, Label, Piece, Role
from rearview.masks.labels import counted, printable

LINE = 100
MOST_ROWS = 32
MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "-", "inconclusive": "?"}
ROLES: dict[str, Role] = {"passed": "heard", "failed": "warning", "skipped": "remark", "inconclusive": "warning"}


def draw(report: Report, *, matrix: bool = True) -> Drawing:
    """See `Report.show`."""
    bad = not report.ok
    pieces = [Piece(f"{report.verdict.value}", "warning" if bad else "title")]
    pieces.append(Piece(f"  {printable(report.subject)}  against {report.contract}\n", "title"))
    pieces += _wrapped(_sentence(report.why), "warning" if bad else "remark")
    if report.witness is not None:
        pieces += _section("Witness")
        pieces += [
            piece for witness in report.witnesses for piece in _wrapped(f"{witness.check}: {witness.sentence}", "label")
        ]
    for place in report.places:
        pieces += _place(place, report.places)
    if report.conditions:
        pieces += _section("On condition" if report.verdict is Verdict.PROVEN else "Conditions")
        pieces += [piece for condition in report.conditions for piece in _wrapped(f"- {condition}", "remark")]
    if matrix and report.hears is not None:
        pieces += _matrix(report.hears)
    pieces += _section("Checks")
    for check in report.checks:
        pieces += _check(check)
    if report.proof is not None:
        mark = {"proven": "ok", "conditional": "ok, if"}.get(report.proof.status, "?")
        pieces += _row(mark, "proof", report.proof.why, "heard" if mark.startswith("ok") else "remark")
    cost = report.cost
    facts = f"{counted(cost.forwards, 'forward pass', 'forward passes')}, {cost.seconds:.2f} s"
    sizes = ", ".join(f"{name} {size}" for name, size in report.sizes.items())
    pieces.append(Piece(f"\n{sizes}  ·  {report.mode}  ·  {facts}  ·  seed {report.seed}", "remark"))
    return Drawing(pieces)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _section(title: str) -> list[Piece]:
    return [Piece(f"\n{title}\n", "title")]


def _wrapped(text: str, role: Role, indent: str = "  ") -> list[Piece]:
    lines = textwrap.wrap(printable(text), LINE - len(indent), subsequent_indent="  ") or [""]
    return [Piece(f"{indent}{line}\n", role) for line in lines]


def _place(place: Place, places: tuple[Place, ...]) -> list[Piece]:
    number = f" {places.index(place) + 1} of {len(places)}" if len(places) > 1 else ""
    pieces = _section(f"Place{number}")
    module = place.module or "the model"
    kind = f" ({place.module_class})" if place.module_class else ""
    also = (
        f", and {counted(len(place.also), 'module', 'modules')} like it: {', '.join(place.also[:4])}"
        if place.also
        else ""
    )
    pieces += _wrapped(f"{module}{kind}{'…' if len(place.also) > 4 else ''}{also}", "label")
    if place.file:
        pieces += _wrapped(f"{shown(place.file)}:{place.line}", "label")
    if place.source:
        pieces.append(Piece(f"    {printable(place.source)}\n", "number"))
    if place.op:
        pieces += _wrapped(place.op, "remark")
    if place.hint:
        pieces += _wrapped(_sentence(place.hint), "warning")
    pieces += _wrapped(
        "Confirmed: with its clean output the leak is gone." if place.confirmed else place.evidence, "remark"
    )
    return pieces


def _matrix(hears: Hears) -> list[Piece]:
    """■ heard, · silent, ! heard and forbidden; long inputs are drawn in blocks."""
    time, columns = hears.amounts.shape
    if len(hears.sources) != time:
        return []
    step = -(-time // MOST_ROWS)
    starts = list(range(0, time, step))
    cells: list[list[CellRole]] = []
    for row in starts:
        line: list[CellRole] = []
        for column in starts:
            area = (slice(row, row + step), slice(column, column + step))
            bad, heard = bool(hears.leaks[area].any()), bool(hears.heard[area].any())
            line.append("only first" if bad else "heard" if heard else "blocked")
        cells.append(line)
    labels = [Label(start) for start in starts]
    grid = Grid(cells, labels, labels, [""] * len(starts), step)
    words = shape_words(hears)
    pieces = _section(f"Who heard whom{f': {words}' if words else ''}")
    for piece in grid.pieces():
        # A forbidden cell stands out by its sign, not by colour alone.
        pieces.append(Piece(piece.text.replace("-", "!"), "warning") if piece.role == "only first" else piece)
    legend = " ■ heard   · not heard" + ("   ! heard, and must not be" if bool(hears.leaks.any()) else "")
    return [*pieces, Piece(f"{legend}\n", "remark")]


def _check(check: Check) -> list[Piece]:
    return _row(MARKS[check.status], check.name, check.why, ROLES[check.status])


def _row(mark: str, name: str, why: str, role: Role) -> list[Piece]:
    lines = textwrap.wrap(printable(why), LINE - 30) or [""]
    pieces = [Piece(f"  {mark:<8}", role), Piece(f"{name:<18}", "label"), Piece(f"  {lines[0]}\n", "remark")]
    return pieces + [Piece(f"{'':<30}{line}\n", "remark") for line in lines[1:]]
