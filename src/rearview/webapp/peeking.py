"""Peek?: the audit of a model, its checks as they end, the verdict, and the witness replayed on the text."""

from __future__ import annotations

from typing import Any

import torch

from rearview.auditing import audit
from rearview.auditing.reporting.html import to_html
from rearview.auditing.reporting.report import Report
from rearview.errors import BadArgument
from rearview.masks import causal
from rearview.models import T5
from rearview.webapp.passes import MOST_LOGITS, has_all_logits, logits_of
from rearview.webapp.request import Fields
from rearview.webapp.worker import Job
from rearview.webapp.workspace import SavedPage, Workspace

# A length that is rarely the size of something else, and two rows.
LENGTH, ROWS = 23, 2


def peek(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """Audit a model against a contract; the names of its checks are events."""
    model = workspace.model(fields.text("model"))
    asked = fields.mask("contract")
    contract = causal() if asked is None else asked
    vocab = model.tokenizer.vocab_size
    length = min(LENGTH, model.context or LENGTH)
    tokens = torch.randint(vocab, (ROWS, length), generator=torch.Generator().manual_seed(0)).to(model.device)
    inputs: Any = tokens
    options: dict[str, Any] = {"vary": None}
    if isinstance(model.model, T5):
        inputs, options = {"tokens": tokens.flip(1)[:, :-1], "decoder_tokens": tokens}, {"vary": "decoder_tokens"}
    elif not type(model.model).__module__.startswith("rearview."):
        inputs = {"input_ids": tokens}

    def progress(name: str, number: int, total: int) -> None:
        job.emit("check", {"name": name, "number": number, "total": total})

    report = audit(model.model, inputs, contract=contract, progress=progress, **options)
    return described(report) | {"page": workspace.keep_page(SavedPage("audit.html", to_html(report)))}


def described(report: Report) -> dict[str, Any]:
    """A report for the page: its verdict, checks, conditions and assumptions, and the place of a leak."""
    place = report.place
    return {
        "verdict": report.verdict.value,
        "why": report.why,
        "contract": report.contract,
        "checks": [
            {"name": each.name, "status": each.status, "why": each.why, "seconds": each.seconds}
            for each in report.checks
        ],
        "conditions": list(report.conditions),
        "assumptions": list(report.proof.assumptions) if report.proof is not None else [],
        "place": None
        if place is None
        else {"module": place.module, "line": place.line, "source": place.source, "hint": place.hint},
        "witnesses": [
            {"sentence": each.sentence, "kind": each.kind, "query": each.query, "source": each.source}
            for each in report.witnesses
        ],
    }


def replay(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """Change one token of the text: by how much the output at each position moves. Earlier ones must not.

    Without a `token`, it becomes the next different token of the text.
    """
    run = workspace.run(fields.text("run"))
    model = workspace.model(run.model)
    position = fields.number("position", below=len(run.ids))
    vocab = model.tokenizer.vocab_size
    if not has_all_logits(model, len(run.ids)):
        expected = f"at most {MOST_LOGITS // vocab:,} tokens, so that the outputs of all of them can be compared"
        raise BadArgument("text", expected=expected, got=f"{len(run.ids):,}")
    old = run.ids[position]
    others = [token for token in run.ids[position:] + run.ids[:position] if token != old]
    token = fields.number("token", below=vocab, default=others[0] if others else (old + 1) % vocab)
    changed = [*run.ids]
    changed[position] = token
    with job.checking(model.model):
        before, after = (logits_of(model, model.batch(ids))[0].double() for ids in (run.ids, changed))
    moved = (before - after).abs().amax(-1).cpu()
    return {
        "position": position,
        "before": model.labels([old])[0],
        "label": model.labels([token])[0],
        "moved": moved.tolist(),
        "earlier": float(moved[:position].max()) if position else 0.0,
        "earliest": int(moved[:position].argmax()) if position else 0,
    }
