"""A Report as one page, in one file that needs no network.

>>> import torch
>>> from rearview.auditing import audit
>>> report = audit(lambda x: x.flip(1), torch.randn(1, 4))
>>> to_html(report).startswith("<!doctype html>"), page_data(report)["verdict"]
(True, 'LEAKS')
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from rearview.auditing.place.hints import shape_words
from rearview.auditing.reporting.report import Hears, Place, ProofSummary, Report, Verdict
from rearview.auditing.reporting.witness import Witness
from rearview.auditing.user_code import shown
from rearview.drawing.cells import counted, sentence
from rearview.drawing.html import framed, seal

SCRIPTS = ("heard.js", "page.js")
# Positions of a long input that the page shows; the JSON of the report has all of them.
MOST_SHOWN = 512

HEADLINES = {
    Verdict.PROVEN: "It hears only what it may, for all weights and inputs.",
    Verdict.HELD: "Nothing forbidden was heard.",
    Verdict.LEAKS: "It hears what it must not.",
    Verdict.INCONCLUSIVE: "No verdict could be reached.",
}


def to_html(report: Report) -> str:
    """The whole page as text; `report.save("report.html")` writes it."""
    title = f"{report.verdict.value}: {report.subject} against {report.contract}"
    return seal("rearview.auditing.reporting", scripts=SCRIPTS, title=title, data=page_data(report))


def to_notebook(report: Report) -> str:
    """The page in a frame of its own, for a notebook."""
    return framed(to_html(report), title=f"Audit of {report.subject}", height=900)


def page_data(report: Report) -> dict[str, Any]:
    """The data that the page draws."""
    return {
        "verdict": report.verdict.value,
        "headline": _headline(report),
        "why": sentence(report.why),
        "subject": report.subject,
        "contract": report.contract,
        "facts": [
            *(f"{name} {size:,}" for name, size in report.sizes.items()),
            f"{report.mode} audit",
            counted(report.cost.forwards, "forward pass", "forward passes"),
            f"{report.cost.seconds:.2f} s",
            f"{report.cost.parameters:,} parameters",
            f"seed {report.seed}",
            *(f"SHA-256 of {name} {digest[:12]}" for name, digest in report.fingerprint.items() if digest),
        ],
        "conditions": [sentence(condition) for condition in report.conditions],
        "hears": None if report.hears is None else _hears(report.hears),
        "places": [_place(place) for place in report.places],
        "modules": [list(pair) for pair in report.modules],
        "checks": [{**asdict(check), "numbers": _numbers(check.numbers)} for check in report.checks],
        "witnesses": [_witness(witness) for witness in report.witnesses],
        "proof": None if report.proof is None else {**asdict(report.proof), "remedy": _remedy(report.proof)},
        "versions": report.versions,
    }


def _headline(report: Report) -> str:
    if report.verdict is Verdict.PROVEN and report.proof is not None and report.proof.conditions:
        return "It hears only what it may, under the conditions below."
    if report.must_prove and report.verdict is Verdict.HELD:
        return "Nothing forbidden was heard, but it is not proven, as it must be."
    return HEADLINES[report.verdict]


def _hears(hears: Hears) -> dict[str, Any]:
    """Rows of the matrix: "f" forbidden and heard, "h" heard, "s" silent, "b" blocked and silent."""
    heard, forbidden = hears.heard.tolist(), hears.forbidden.tolist()
    letters = {(True, True): "f", (True, False): "h", (False, False): "s", (False, True): "b"}
    return {
        "cells": [
            "".join(letters[pair] for pair in zip(*rows, strict=True)) for rows in zip(heard, forbidden, strict=True)
        ],
        # Four digits are enough to look at, and keep the page small.
        "amounts": [[_short(amount) for amount in row] for row in hears.amounts.tolist()],
        "sources": list(hears.sources),
        "floor": hears.floor,
        "item": hears.item,
        "words": shape_words(hears),
    }


def _short(amount: float) -> float | str:
    return float(f"{amount:.4g}") if math.isfinite(amount) else str(amount)


def _numbers(numbers: Mapping[str, Any]) -> dict[str, str]:
    return {name: _number(value) for name, value in numbers.items()}


def _number(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _remedy(proof: ProofSummary) -> str:
    return sentence(proof.remedy) if proof.remedy else ""


def _place(place: Place) -> dict[str, Any]:
    return {**asdict(place), "file": shown(place.file)}


def _witness(witness: Witness) -> dict[str, Any]:
    name, changed = next(iter(witness.other.items()))
    rows = [_row(side, witness) for side in (witness.clean.get(name, changed), changed)]
    return {
        "check": witness.check,
        "sentence": sentence(witness.sentence),
        "query": witness.query,
        "input": name,
        "item": witness.item,
        "before": rows[0],
        "after": rows[1],
        "sources": list(witness.sources) if witness.kind == "time" else [],
        "notes": ["in train mode"] * (witness.training and witness.check != "train mode")
        + [f"with {witness.weights}"] * (witness.weights != "given")
        + ["with fixed random draws"] * (witness.fixed_draws is not None),
    }


def _row(tensor: Tensor, witness: Witness) -> list[str]:
    """One item of an input, a text per position: the token, or the first of its numbers."""
    item = witness.row(tensor.detach().cpu())[:MOST_SHOWN]
    if item.ndim == 1 and not item.is_floating_point():
        return [str(token) for token in item.tolist()]
    values = item.reshape(len(item), -1)
    return [f"{row[0]:.3g}{' …' if len(row) > 1 else ''}" for row in values.double().tolist()]
