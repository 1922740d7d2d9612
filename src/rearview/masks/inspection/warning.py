"""Likely mistakes in a mask: rows that hear nothing, a visible future, inverted polarity.

>>> from rearview import causal, padding
>>> for warning in (causal() & padding([0, 2])).warnings(2):
...     print(warning)
empty row: batch item 0: 2 of 2 queries hear nothing: positions 0, 1; their output is 0
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rearview.drawing.cells import counted
from rearview.masks.frame import Frame
from rearview.masks.inspection.hearing import Hearing, hearing_of
from rearview.masks.mask import Mask

# Runs of positions that a message names; further ones are an ellipsis.
RUNS_NAMED = 4


@dataclass(frozen=True)
class MaskWarning:
    """What is probably a mistake in a mask, in words."""

    kind: Literal["empty row", "visible future", "looks inverted"]
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def warnings_of(mask: Mask, frame: Frame) -> tuple[MaskWarning, ...]:
    """At most one warning of each kind; it names the first batch item and head that it applies to.

    A mask *looks inverted* when no query hears itself, most of what is heard lies ahead, and most of what lies
    ahead is heard: its negation then hears every query's own position and mostly looks back.

    >>> from rearview import causal
    >>> warnings_of(causal(), Frame.of(4))
    ()
    """
    if frame.q_len == 0:
        return ()
    return warnings_from(hearing_of(mask, frame), mask, frame)


def warnings_from(hearing: Hearing, mask: Mask, frame: Frame) -> tuple[MaskWarning, ...]:
    """`warnings_of` for counts that are already there."""
    found = (_empty_rows(mask, frame, hearing), _visible_future(mask, frame, hearing), _inverted(mask, frame, hearing))
    return tuple(warning for warning in found if warning)


def _empty_rows(mask: Mask, frame: Frame, hearing: Hearing) -> MaskWarning | None:
    empty = hearing.keys == 0
    if not bool(empty.any()):
        return None
    where, rows, others = _first_item(mask, empty)
    positions = (rows.nonzero().flatten() + frame.q_start).tolist()
    hear, their = ("hears", "its") if len(positions) == 1 else ("hear", "their")
    message = (
        f"{where}{_share(len(positions), frame)} {hear} nothing: {_listed(positions)}; {their} output is 0{others}"
    )
    return MaskWarning("empty row", message)


def _visible_future(mask: Mask, frame: Frame, hearing: Hearing) -> MaskWarning | None:
    peeks = hearing.ahead > 0
    if not bool(peeks.any()):
        return None
    where, rows, others = _first_item(mask, peeks)
    count = int(rows.sum())
    batch, head, query = peeks.nonzero()[0].tolist()
    key = int(hearing.first_ahead[batch, head, query])
    message = (
        f"{where}position {query + frame.q_start} hears position {key}, which comes later; "
        f"{_share(count, frame)} {'hears' if count == 1 else 'hear'} ahead, "
        f"and a model that generates left to right has nothing there yet{others}"
    )
    return MaskWarning("visible future", message)


def _inverted(mask: Mask, frame: Frame, hearing: Hearing) -> MaskWarning | None:
    position = frame.query_positions().flatten()
    has_own_key = bool(((position >= 0) & (position < frame.k_len)).any())
    lies_ahead = int((frame.k_len - 1 - position).clamp(min=0, max=frame.k_len).sum())
    heard, ahead = hearing.keys.sum(-1), hearing.ahead.sum(-1)
    looks = ~hearing.itself.any(-1) & (2 * ahead > heard) & (2 * ahead > lies_ahead)
    if not has_own_key or not bool(looks.any()):
        return None
    where, _, others = _first_item(mask, looks.unsqueeze(-1))
    message = (
        f"{where}most of what is heard lies ahead, and no query hears itself. "
        f"True means may be heard; did you mean {~mask!r}?{others}"
    )
    return MaskWarning("looks inverted", message)


def _share(count: int, frame: Frame) -> str:
    return f"{count:,} of {counted(frame.q_len, 'query', 'queries')}"


def _first_item(mask: Mask, rows: Tensor) -> tuple[str, Tensor, str]:
    """The first batch item and head with such a row: its name, its rows, and a remark on the others."""
    items = rows.any(-1).nonzero()
    batch, head = items[0].tolist()
    axes = (("batch item", batch, mask.batch), ("head", head, mask.heads))
    name = ", ".join(f"{axis} {index}" for axis, index, size in axes if size is not None)
    more = len(items) - 1
    # An item is then a batch item, a head, or a pair of both; "place" covers all three.
    others = f" (and in {more} more such {'place' if more == 1 else 'places'})" if more else ""
    return f"{name}: " if name else "", rows[batch, head], others


def _listed(positions: list[int]) -> str:
    runs: list[tuple[int, int]] = []
    tensor = torch.tensor(positions)
    breaks = ((tensor.diff() != 1).nonzero().flatten() + 1).tolist()
    for first, end in zip([0, *breaks], [*breaks, len(positions)], strict=True):
        runs.append((positions[first], positions[end - 1]))
    named = [str(a) if a == b else f"{a}, {b}" if a + 1 == b else f"{a} to {b}" for a, b in runs[:RUNS_NAMED]]
    rest = len(runs) - RUNS_NAMED
    return f"position{'' if len(positions) == 1 else 's'} {', '.join(named)}{', …' if rest > 0 else ''}"
