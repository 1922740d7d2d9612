"""Compare: two models, checkpoints or masks over the same text, head by head, as one difference."""

from __future__ import annotations

from typing import Any

from rearview.errors import BadArgument
from rearview.webapp.reading import kept, observed, tokens_of
from rearview.webapp.request import Fields
from rearview.webapp.worker import Job
from rearview.webapp.workspace import ReadRun, Workspace


def compare(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """What changes from the first to the second: every head's map, the loss, and the next tokens."""
    names = [fields.text(name) for name in ("model", "other")]
    masks, replaces = [fields.mask(name) for name in ("mask", "other_mask")], fields.flag("replace")
    first, second = (workspace.model(name) for name in names)
    text = fields.text("text")
    ids, remark = tokens_of(workspace, first, text)
    if second.tokenizer.encode(text, specials=True)[: len(ids)] != ids:
        advice = "Both must read the same tokens."
        raise BadArgument("other", expected="a model with the same tokenizer", got=names[1], advice=advice)
    seen, found = observed(workspace, first, ids, job, mask=masks[0], replace=replaces)
    other, other_found = observed(workspace, second, ids, job, mask=masks[1], replace=replaces)
    sides = [
        workspace.keep(ReadRun(name, ids, mask, replaces, each))
        for name, mask, each in zip(names, masks, (seen, other), strict=True)
    ]
    change = kept(workspace, ReadRun(names[0], ids, None, False, seen.diff(other)))
    return {
        **change,
        "runs": {"first": sides[0], "second": sides[1], "change": change["run"]},
        "first": found | {"name": seen.title},
        "second": other_found | {"name": other.title},
        "remark": remark,
    }
