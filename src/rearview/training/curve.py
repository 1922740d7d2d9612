"""The loss curve of a run as a picture.

>>> import tempfile
>>> from pathlib import Path
>>> out = Path(tempfile.mkdtemp())
>>> records = [{"step": n, "loss": 4 - n / 50} for n in range(1, 101)] + [{"step": 100, "validation": 2.2}]
>>> draw_curve(records, out / "loss.svg")
>>> (out / "loss.svg").read_text().startswith("<?xml")
True
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rearview.drawing.figure import rendered
from rearview.files import target_of, write_whole
from rearview.training.metrics import MetricsRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, QUIET, GRID = "#1c2733", "#66727f", "#e3e8ec"
TRAINING, VALIDATION = "#1f6f8b", "#f2a541"


def draw_curve(records: Sequence[MetricsRecord], path: Path, *, title: str = "") -> None:
    """Draw what `read_metrics` returns: the loss of every step, smoothed, and the validation losses."""
    target = target_of(path, (".svg", ".png"))
    data = rendered(lambda: _figure(records, title), target.suffix.lower(), needed_for="A picture of the loss")
    write_whole(target, data)


def smoothed(values: Sequence[float], span: int) -> list[float]:
    """The exponential moving average over about `span` values, corrected for its start.

    >>> smoothed([1.0, 1.0, 4.0], 1)
    [1.0, 1.0, 4.0]
    >>> smoothed([2.0, 2.0, 2.0], 10)
    [2.0, 2.0, 2.0]
    """
    keep = 1 - 1 / max(span, 1)
    total = weight = 0.0
    found = []
    for value in values:
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        found.append(total / weight)
    return found


def _figure(records: Sequence[MetricsRecord], title: str) -> Figure:
    from matplotlib.figure import Figure

    steps = [(record["step"], record["loss"]) for record in records if "loss" in record]
    validations = [(record["step"], record["validation"]) for record in records if "validation" in record]
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.add_subplot()
    if steps:
        at, losses = zip(*steps, strict=True)
        axes.plot(at, losses, color=TRAINING, alpha=0.22, linewidth=0.8)
        axes.plot(at, smoothed(losses, max(1, len(losses) // 50)), color=TRAINING, linewidth=1.8, label="training")
    if validations:
        at, losses = zip(*validations, strict=True)
        axes.plot(at, losses, color=VALIDATION, marker="o", markersize=4, linewidth=1.4, label="validation")
    axes.set_xlabel("step", color=QUIET)
    axes.set_ylabel("loss (nats per token)", color=QUIET)
    axes.set_title(title, color=INK, loc="left", fontsize=11)
    axes.grid(color=GRID, linewidth=0.8)
    axes.tick_params(colors=QUIET)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GRID)
    if steps or validations:
        axes.legend(frameon=False, labelcolor=INK)
    return figure
