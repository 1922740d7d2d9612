"""Mask: an expression as cells and ranges, what it costs on each engine, and how it differs from a model's own mask."""

from __future__ import annotations

from typing import Any

import torch

from rearview.attention import plan
from rearview.errors import BadArgument
from rearview.masks import Mask, causal
from rearview.masks.parser import parse
from rearview.text_model import TextModel
from rearview.webapp.passes import captured_call
from rearview.webapp.request import Fields
from rearview.webapp.worker import Job
from rearview.webapp.workspace import Workspace

# The rows whose ranges are listed.
LISTED = 64


def look(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """A mask at a length: its cells, its ranges, its engines, and its difference from the mask of the model."""
    mask = parse(fields.text("mask"))
    length = fields.number("length", at_least=1, below=workspace.limits.tokens + 1)
    shown = min(length, workspace.limits.cells)
    own, heads, dim = _own(workspace, fields, length)
    differs = None if own is None or own.heads is not None or mask.heads is not None else own.diff(mask, length)
    visible = mask.to_bool(shown)
    return {
        "mask": repr(mask),
        "length": length,
        "shown": shown,
        "heads": mask.heads or 1,
        "cells": [_rows(each) for each in (visible[0] if visible.ndim == 4 else visible.unsqueeze(0))],
        "own": None if own is None else repr(own),
        "ownCells": None if own is None or own.heads is not None else _rows(own.to_bool(shown)),
        "onlyOwn": None if differs is None else differs.only_first,
        "onlyThis": None if differs is None else differs.only_second,
        "ranges": _ranges(mask, shown),
        "obstacle": mask.range_obstacle,
        "warnings": [str(warning) for warning in mask.warnings(min(length, 4096))],
        **_engines(mask, length, heads, dim),
    }


def _own(workspace: Workspace, fields: Fields, length: int) -> tuple[Mask | None, int, int]:
    """The mask of the model's layer at this length, and the shape of its heads."""
    name = fields.text("model", default="")
    if not name:
        return None, 8, 64
    model = workspace.model(name)
    layer = fields.number("layer", below=1 << 20, default=0)
    call = captured_call(model, _some_tokens(model, min(length, model.context or length, 64)), layer=layer)
    return (call.mask if call.mask.own_length is None else causal()), call.heads, call.query.shape[-1]


def _some_tokens(model: TextModel, count: int) -> list[int]:
    return [n % model.tokenizer.vocab_size for n in range(count)]


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
