"""Read: a model reads a text, and every head is shown as a map; tiles of any resolution are computed when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from rearview.attention.stats.bins import merged
from rearview.errors import BadArgument
from rearview.masks import Mask
from rearview.models import T5
from rearview.observation import Observation, ObservationDiff, observe
from rearview.observation.result.layer import Layer
from rearview.observation.result.pooled_tile import pooled_tile
from rearview.observation.views.packed_arrays import PackedArrays
from rearview.observation.views.page_contents import PageDetail, page_contents
from rearview.observation.watching.observer import attention_layers
from rearview.text_model import TextModel
from rearview.webapp.passes import losses, most_likely, predicts_next, run, under
from rearview.webapp.request import Fields
from rearview.webapp.worker import Job
from rearview.webapp.workspace import ReadRun, SavedPage, Workspace

# The most cells of all maps together, and the most and the fewest bins per side of one map.
MOST_CELLS, MOST_BINS, LEAST_BINS = 3_000_000, 256, 32
# The most cells per side of a tile.
TILE = 256
# The most tokens whose surprise is sent to the page.
MOST_LOSSES = 20_000


def read(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """The model reads the text; the answer has the page's description of every head, and the number of the run."""
    model = workspace.model(fields.text("model"))
    ids, remark = tokens_of(workspace, model, fields.text("text"))
    mask, replaces = fields.mask("mask"), fields.flag("replace")
    seen, found = observed(workspace, model, ids, job, mask=mask, replace=replaces)
    return {**kept(workspace, ReadRun(fields.text("model"), ids, mask, replaces, seen)), **found, "remark": remark}


def open_run(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """The page's description of a run that the studio still holds."""
    return described(workspace, fields.text("run"))


def save(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """A run as the page of `observe`, in one file."""
    page = SavedPage("attention.html", workspace.run(fields.text("run")).seen.to_html())
    return {"page": workspace.keep_page(page)}


def tokens_of(workspace: Workspace, model: TextModel, text: str, *, reserve: int = 0) -> tuple[list[int], str]:
    """The tokens of a text, within the limit of the studio."""
    ids, remark = model.read(text, reserve=reserve)
    most = workspace.limits.tokens
    if len(ids) > most:
        raise BadArgument("text", expected=f"at most {most:,} tokens", got=f"{len(ids):,}")
    return ids, remark


def observed(
    workspace: Workspace, model: TextModel, ids: list[int], job: Job, *, mask: Mask | None = None, replace: bool = False
) -> tuple[Observation, dict[str, Any]]:
    """What the model attends to as it reads these tokens, and what it predicts."""
    with (
        torch.inference_mode(),
        under(model, mask, replace=replace),
        observe(model.model, map_size=_bins(model), keep=workspace.limits.kept_bytes) as seen,
        job.checking(model.model),
        _counted(model, job),
    ):
        logits, written = run(model, ids)
    seen.title = model.name if mask is None else f"{model.name} {'under' if replace else '&'} {mask!r}"
    labels = model.labels(ids)
    if isinstance(model.model, T5):
        seen.source_labels = labels
        seen.labels = model.labels([model.model.config.start_id, *written])[: seen.length]
    else:
        seen.labels = labels
    return seen, predictions(model, logits, ids)


def predictions(model: TextModel, logits: torch.Tensor | None, ids: list[int]) -> dict[str, Any]:
    """The most likely next tokens, and the surprise of the text; empty for a model that predicts something else."""
    if logits is None or not predicts_next(model):
        return {}
    found: dict[str, Any] = {"next": most_likely(logits[-1], model)}
    if len(logits) == len(ids) > 1:
        each = losses(logits, ids)
        found["loss"] = float(each.mean())
        if len(ids) <= MOST_LOSSES:
            found["losses"] = [round(x, 4) for x in each.tolist()]
    return found


def kept(workspace: Workspace, run: ReadRun) -> dict[str, Any]:
    """Keep a run, and describe it for the page."""
    return described(workspace, workspace.keep(run))


def described(workspace: Workspace, number: str) -> dict[str, Any]:
    """A run for the page: its numbers are fetched separately."""
    run = workspace.run(number)
    detail, arrays = PageDetail(short=True), PackedArrays(short=True)
    views = run.seen._views(exact_up_to=0)
    contents = page_contents(run.seen, views, detail, arrays=arrays)
    workspace.replace(number, replace(run, block=arrays.data()))
    return {"run": number, "contents": contents | {"notes": []}}


@contextmanager
def _counted(model: TextModel, job: Job) -> Iterator[None]:
    """Tell the reader how many attention layers have run."""
    layers = attention_layers(model.model)
    done = count(1)

    def tell(*_: object) -> None:
        job.emit("progress", {"done": min(next(done), len(layers)), "of": len(layers)})

    hooks = [layer.module.register_forward_hook(tell) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def tile(workspace: Workspace, fields: Fields, job: Job) -> bytes:
    """A part of a head as float32: its weights, those of uniform attention, and the share of the first key per row."""
    layer, row = _head(workspace, fields)
    start = layer.statistics.frame.q_start
    end = start + layer.queries
    top, bottom = (
        fields.number("top", at_least=start, below=end),
        fields.number("bottom", at_least=start, below=end + 1),
    )
    left, right = fields.number("left", below=layer.keys), fields.number("right", below=layer.keys + 1)
    bin = fields.number("bin", at_least=1, below=max(layer.keys, layer.queries) + 1)
    if top >= bottom or left >= right or max(bottom - top, right - left) > TILE * bin:
        got = f"{bottom - top} x {right - left} in bins of {bin}"
        raise BadArgument("tile", expected=f"a part with up to {TILE} cells per side", got=got)
    part = {"rows": range(top, bottom), "cols": range(left, right), "bins": (bin, bin)}
    found = pooled_tile(layer, row, **part, check=job.check)
    first = merged(layer.statistics.first[0, row, top - start : bottom - start, 0].float().cpu(), bin, (-1,))
    queries = merged(torch.ones(bottom - top), bin, (-1,))
    return torch.cat([found.map.flatten(), found.uniform.flatten(), first / queries]).numpy().tobytes()


def weights_row(workspace: Workspace, fields: Fields, job: Job) -> bytes:
    """The weights of one query on all keys, as float32."""
    layer, row = _head(workspace, fields)
    start = layer.statistics.frame.q_start
    query = fields.number("query", at_least=start, below=start + layer.queries)
    found = pooled_tile(layer, row, rows=range(query, query + 1), cols=range(layer.keys), bins=(1, 1))
    return found.map.flatten().contiguous().numpy().tobytes()


def _head(workspace: Workspace, fields: Fields) -> tuple[Layer, int]:
    seen = workspace.run(fields.text("run")).seen
    if isinstance(seen, ObservationDiff):
        raise BadArgument("run", expected="a run of one model", got="a difference, which has no tiles")
    layer = seen.layers[fields.number("layer", below=len(seen.layers))]
    return layer, fields.number("row", below=len(layer.heads))


def _bins(model: TextModel) -> int:
    """Bins per side of a map, so that the maps of all heads together stay small."""
    heads = sum(layer.heads or 16 for layer in attention_layers(model.model))
    bins = MOST_BINS
    while bins > LEAST_BINS and heads * bins * bins > MOST_CELLS:
        bins //= 2
    return bins
