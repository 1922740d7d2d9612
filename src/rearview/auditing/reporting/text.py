"""A Report as text for a terminal: the verdict, the witness, the place, who heard whom, and each check.

>>> import torch
>>> from rearview.auditing import audit
>>> print(audit(lambda x: x + x.roll(-1, 1), torch.randn(1, 4)).show(matrix=False).splitlines()[0])
LEAKS  <lambda>  against causal()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rearview.auditing.place.hints import shape_words
from rearview.auditing.reporting.report import Hears, Place, ProofSummary, Report, Verdict
from rearview.auditing.user_code import shown
from rearview.drawing.cells import counted, printable, sentence, wrapped
from rearview.drawing.text import CellRole, Drawing, Grid, Label, Piece, Role

# The rows of the matrix; and the columns beside its cells, which are three wide.
MOST_ROWS, MARGIN = 32, 18
# The names of the checks take at least this many columns.
NARROWEST = 18
MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "-", "inconclusive": "?"}
ROLES: dict[str, Role] = {"passed": "heard", "failed": "warning", "skipped": "remark", "inconclusive": "warning"}


def draw(report: Report, *, matrix: bool = True, width: int = 100) -> Drawing:
    """See `Report.show`."""
    return _Page(width, max([NARROWEST, *(len(check.name) for check in report.checks)])).of(report, matrix=matrix)


@dataclass(frozen=True)
class _Page:
    """Text of a given width, with a column for the names of the checks."""

    width: int
    names: int

    def of(self, report: Report, *, matrix: bool) -> Drawing:
        bad = not report.ok
        pieces = [Piece(f"{report.verdict.value}", "warning" if bad else "title")]
        pieces.append(Piece(f"  {printable(report.subject)}  against {report.contract}\n", "title"))
        pieces += self.paragraph(sentence(report.why), "warning" if bad else "remark")
        if report.must_prove and report.verdict is Verdict.HELD:
            pieces += self.paragraph("It must be proven, so this does not pass.", "warning")
        if report.witness is not None:
            pieces += _section("Witness")
            for witness in report.witnesses:
                pieces += self.paragraph(f"{witness.check}: {witness.sentence}", "label")
        for place in report.places:
            pieces += self.place(place, report.places)
        if report.conditions:
            pieces += _section("On these conditions" if report.verdict is Verdict.PROVEN else "Conditions")
            pieces += self.listed(report.conditions)
        if matrix and report.hears is not None:
            pieces += self.matrix(report.hears)
        pieces += _section("Checks")
        for check in report.checks:
            pieces += self.row(MARKS[check.status], check.name, check.why, ROLES[check.status])
        if report.proof is not None:
            pieces += self.proof(report.proof)
        cost = report.cost
        facts = f"{counted(cost.forwards, 'forward pass', 'forward passes')}, {cost.seconds:.2f} s"
        sizes = ", ".join(f"{name} {size}" for name, size in report.sizes.items())
        about = [f"{sizes}  ·  {report.mode}  ·  {facts}  ·  seed {report.seed}"]
        hashes = [f"{name} {digest[:12]}" for name, digest in report.fingerprint.items() if digest]
        about += [f"SHA-256 of {', of '.join(hashes)}"] if hashes else []
        lines = [line for text in about for line in wrapped(text, self.width)]
        return Drawing([*pieces, Piece("\n" + "\n".join(lines), "remark")])

    def paragraph(self, text: str, role: Role, indent: str = "  ") -> list[Piece]:
        lines = wrapped(printable(text), self.width - len(indent), later="  ")
        return [Piece(f"{indent}{line}\n", role) for line in lines]

    def listed(self, texts: Sequence[str]) -> list[Piece]:
        return [piece for text in texts for piece in self.paragraph(f"- {text}", "remark")]

    def proof(self, proof: ProofSummary) -> list[Piece]:
        mark = {"proven": "ok", "conditional": "ok, if"}.get(proof.status, "?")
        why = proof.why if proof.is_proven else proof.obstacle
        pieces = self.row(mark, "proof", why, "heard" if mark.startswith("ok") else "remark")
        for text in (*proof.contradictions, *proof.decided_ahead):
            pieces += self.row("", "", text, "warning") if text not in why else []
        if proof.remedy:
            pieces += self.row("", "", f"To settle it: {proof.remedy}.", "remark")
        if proof.is_proven:
            pieces += [*_section("The proof assumes"), *self.listed(proof.assumptions)]
        return pieces

    def place(self, place: Place, places: tuple[Place, ...]) -> list[Piece]:
        number = f" {places.index(place) + 1} of {len(places)}" if len(places) > 1 else ""
        pieces = _section(f"Place{number}")
        module = place.module or "the model"
        kind = f" ({place.module_class})" if place.module_class else ""
        also = ""
        if place.also:
            also = f", and {counted(len(place.also), 'module', 'modules')} like it: {', '.join(place.also[:4])}"
        pieces += self.paragraph(f"{module}{kind}{also}{', …' if len(place.also) > 4 else ''}", "label")
        if place.file:
            pieces += self.paragraph(f"{shown(place.file)}:{place.line}", "label")
        if place.source:
            pieces.append(Piece(f"    {printable(place.source)}\n", "number"))
        if place.op:
            pieces += self.paragraph(place.op, "remark")
        if place.hint:
            pieces += self.paragraph(sentence(place.hint), "warning")
        sure = "Confirmed: with its clean output the leak is gone."
        return pieces + self.paragraph(sure if place.confirmed else sentence(place.evidence), "remark")

    def matrix(self, hears: Hears) -> list[Piece]:
        """■ heard, · not heard, ! heard and forbidden; long inputs are drawn in blocks of positions."""
        time = len(hears.amounts)
        if len(hears.sources) != time:
            return []
        step = -(-time // min(MOST_ROWS, max(4, (self.width - MARGIN) // 3)))
        starts = list(range(0, time, step))
        cells: list[list[CellRole]] = []
        for row in starts:
            line: list[CellRole] = []
            for column in starts:
                area = (slice(row, row + step), slice(column, column + step))
                bad, heard = bool(hears.leaks[area].any()), bool(hears.heard[area].any())
                line.append("forbidden" if bad else "heard" if heard else "blocked")
            cells.append(line)
        labels = [Label(start) for start in starts]
        grid = Grid(cells, labels, labels, [""] * len(starts), step)
        words = shape_words(hears)
        pieces = _section(f"Who heard whom{f': {words}' if words else ''}")
        legend = " ■ heard   · not heard" + ("   ! heard, and must not be" if bool(hears.leaks.any()) else "")
        return [*pieces, *grid.pieces(), Piece(f"{legend}\n", "remark")]

    def row(self, mark: str, name: str, why: str, role: Role) -> list[Piece]:
        before = 10 + self.names + 2
        lines = wrapped(printable(why), self.width - before)
        pieces = [
            Piece(f"  {mark:<8}", role),
            Piece(f"{name:<{self.names}}", "label"),
            Piece(f"  {lines[0]}\n", "remark"),
        ]
        return pieces + [Piece(f"{'':<{before}}{line}\n", "remark") for line in lines[1:]]


def _section(title: str) -> list[Piece]:
    return [Piece(f"\n{title}\n", "title")]
