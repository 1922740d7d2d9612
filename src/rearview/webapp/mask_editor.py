"""Mask: an expression as cells and ranges, what it costs on each engine, and how it differs from a model's own mask."""

from __future__ import annotations

from typing import Any

import torch

from rearview.attention import plan
from rearview.errors import BadArgument
from rearview.masks import Mask, causal
from rearview.masks.parser import parse
from rearview.webapp.passes import captured_call
from rearview.webapp.request import Fields
from rearview.webapp.worker import Job
from rearview.webapp.workspace import Workspace

# The rows whose ranges are listed.
LISTED = 64
# The most positions of which every pair is looked at, for masks without ranges.
MOST_PAIRS = 1024
# The most tokens that a model reads to tell the mask of its layer.
MOST_READ = 1024
# The masks of layers that are held, so that typing does not run the model each time.
MOST_HELD = 64


def look(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """A mask at a length: its cells, its ranges, its engines, and its difference from the mask of the model."""
    mask = parse(fields.text("mask"))
    length = fields.number("length", at_least=1, below=workspace.limits.tokens + 1)
    masks = (mask.batch or 1) * (mask.heads or 1)
    if masks * length > workspace.limits.mask_rows:
        most = max(1, workspace.limits.mask_rows // masks)
        expected = f"at most {most:,} for a mask of {masks:,} heads or items"
        raise BadArgument("length", expected=expected, got=f"{length:,}")
    shown = min(length, workspace.limits.cells)
    read, own, heads, dim = _own(workspace, fields, length)
    ranged = mask.has_ranges and (own is None or own.has_ranges)
    compared = length if ranged else min(length, MOST_PAIRS)
    differs = None if own is None or own.heads is not None or mask.heads is not None else own.diff(mask, compared)
    visible = mask.to_bool(shown)
    return {
        "mask": repr(mask),
        "length": length,
        "shown": shown,
        "heads": mask.heads or 1,
        "cells": [_rows(each) for each in (visible[0] if visible.ndim == 4 else visible.unsqueeze(0))],
        "own": None if own is None else repr(own),
        "ownAt": read,
        "ownCells": None if own is None or own.heads is not None else _rows(own.to_bool(shown)),
        "compared": compared,
        "onlyOwn": None if differs is None else differs.only_first,
        "onlyThis": None if differs is None else differs.only_second,
        "ranges": _ranges(mask, shown),
        "obstacle": mask.range_obstacle,
        "warnings": [str(warning) for warning in mask.warnings(min(length, 4096 if ranged else MOST_PAIRS))],
        **_engines(mask, length, heads, dim),
    }


def _own(workspace: Workspace, fields: Fields, length: int) -> tuple[int, Mask | None, int, int]:
    """The number of tokens that the model has read, the mask of its layer then, and the shape of the layer's heads."""
    name = fields.text("model", default="")
    if not name:
        return 0, None, 8, 64
    model = workspace.model(name)
    layer = fields.number("layer", below=1 << 20, default=0)
    count = min(length, model.context or length, MOST_READ)
    found = workspace.layer_masks.get((name, layer, count))
    if found is None:
        call = captured_call(model, [n % model.tokenizer.vocab_size for n in range(count)], layer=layer)
        found = (call.mask if call.mask.own_length is None else causal()), call.heads, call.query.shape[-1]
        workspace.layer_masks[name, layer, count] = found
        if len(workspace.layer_masks) > MOST_HELD:
            workspace.layer_masks.popitem(last=False)
    return count, *found


def _engines(mask: Mask, length: int, heads: int, dim: int) -> dict[str, Any]:
    """What `plan` says about a forward pass at this length."""
    if mask.batch is not None or (mask.heads is not None and mask.heads != heads):
        heads = mask.heads or heads
    try:
        # Nothing is computed, and zeros take no memory until they are written to.
        x = torch.zeros(mask.batch or 1, heads, length, dim)
        found = plan(x, x, x, mask=mask)
    except BadArgument as error:
        return {"engine": None, "why": str(error), "others": [], "share": None}
    return {
        "engine": found.engine,
        "why": found.reason,
        "memory": found.memory,
        "share": found.visible,
        "others": [{"name": name, "why": why} for name, why in found.not_taken.items()],
    }


def _rows(visible: torch.Tensor) -> list[str]:
    return ["".join("01"[cell] for cell in row) for row in visible.int().tolist()]


def _ranges(mask: Mask, length: int) -> list[list[list[int]]] | None:
    if not mask.has_ranges:
        return None
    rows = mask.spans(length).rows()
    return [[[start, end] for start, end in row] for row in rows[:LISTED]]
