"""A Trace read aloud: who hears whom and how much, who is heard, and what stands out.

>>> import torch
>>> from rearview import explain
>>> trace = explain(query=torch.zeros(2, 1), key=torch.zeros(2, 1), value=torch.eye(2), labels=["I", "love"])
>>> [reading.sentence for reading in trace.readings()]
['I — 100.0 % itself', 'love — 50.0 % I, 50.0 % itself']
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rearview.drawing.cells import drawn
from rearview.explanation.trace import SINKS, Trace

# A smaller share would be written as 0.0 %.
TRACE_SHARE = 0.0005
# The number of keys that a sentence names; the others are summed up.
MOST_NAMED = 8
# A key with at least this share dominates its row.
DOMINANT_SHARE = 0.5


@dataclass(frozen=True)
class Reading:
    """One row: the keys that are heard, strongest first, without those of weight 0."""

    label: str
    heard: tuple[tuple[str, float], ...]
    dominated_by: str | None
    only_itself: bool
    sentence: str

    @property
    def nothing(self) -> bool:
        return not self.heard


@dataclass(frozen=True)
class Received:
    """One column: the attention that a key received, and its even share, which uniform attention would give it."""

    label: str
    total: float
    even: float
    listeners: int
    sentence: str


def read_rows(trace: Trace, head: int, *, masked: bool = True) -> tuple[Reading, ...]:
    weights = trace["weights"].of_head(head, masked=masked)
    own_key = len(trace.key_labels) - len(trace.labels)
    readings = []
    for row, label in enumerate(trace.labels):
        names = list(trace.key_labels)
        itself = row + own_key
        if 0 <= itself < len(names):
            names[itself] = trace.reflexives[row]
        order = weights[row].argsort(descending=True, stable=True).tolist()
        heard = tuple((names[key], float(weights[row, key])) for key in order if float(weights[row, key]) > 0)
        top = heard[0] if heard and heard[0][1] >= DOMINANT_SHARE else None
        only_itself = [key for key in order if float(weights[row, key]) > 0] == [itself]
        sentence = f"{drawn(label)} — {_spoken(heard)}"
        if SINKS in trace:
            sentence += f", {_share('the sink', 1 - float(weights[row].sum()), 'to ')}"
        readings.append(Reading(label, heard, top[0] if top else None, only_itself, sentence))
    return tuple(readings)


def read_columns(trace: Trace, head: int) -> tuple[Received, ...]:
    weights, visible = trace["weights"].of_head(head), trace.visible_to(head)
    heard = visible.sum(-1, keepdim=True).clamp(min=1)
    even, listeners = (visible.double() / heard).sum(0).tolist(), visible.sum(0).tolist()
    found = []
    for key, (label, total) in enumerate(zip(trace.key_labels, weights.sum(0).tolist(), strict=True)):
        times = f", {total / even[key]:.2f} times" if even[key] > 0 else ""
        who = f"{listeners[key]} {'query' if listeners[key] == 1 else 'queries'}"
        sentence = f"{drawn(label)} received {total:.2f} from {who}{times} an even share of {even[key]:.2f}"
        if listeners[key] == 0:
            sentence = f"{drawn(label)} is heard by no query"
        found.append(Received(label, total, even[key], listeners[key], sentence))
    return tuple(found)


def remarks(trace: Trace, head: int) -> tuple[str, ...]:
    readings, received = read_rows(trace, head), read_columns(trace, head)
    said = [
        f"{drawn(r.label)} hears only {itself}: the output is exactly the value of {drawn(r.label)}."
        for r, itself in zip(readings, trace.reflexives, strict=True)
        if r.only_itself and SINKS not in trace
    ]
    said += [f"{drawn(r.label)} hears nothing: the output is exactly 0." for r in readings if r.nothing]
    listeners = [column.listeners for column in received]
    if len(set(listeners)) > 1 and listeners == sorted(listeners, reverse=True):
        said.append(
            f"Early positions are heard by more queries ({drawn(received[0].label)} by {listeners[0]}, "
            f"{drawn(received[-1].label)} by {listeners[-1]}), so uniform attention gives them more too: "
            "compare with the even share."
        )
    strongest = max(received, key=lambda column: column.total / column.even if column.even else 0.0)
    times = strongest.total / strongest.even if strongest.even else 0.0
    if times > 1.05:
        said.append(f"{drawn(strongest.label)} stands out: {times:.2f} times what uniform attention would give.")
    unmasked, visible = trace["weights"].of_head(head, masked=False), trace.visible_to(head)
    # A row that hears nothing has no other keys to take the share.
    taken = torch.where(visible | ~visible.any(-1, keepdim=True), 0.0, unmasked).sum(-1)
    if float(taken.max()) >= TRACE_SHARE:
        row = int(taken.argmax())
        said.append(
            f"Without the mask {100 * float(taken[row]):.1f} % of what {drawn(trace.labels[row])} hears would come "
            "from keys that the mask forbids; with it, that share goes to the others in proportion."
        )
    return tuple(said)


def _spoken(heard: tuple[tuple[str, float], ...]) -> str:
    # One more name takes no more room than "1 others".
    named = heard if len(heard) <= MOST_NAMED + 1 else heard[:MOST_NAMED]
    shares = [_share(drawn(name), weight) for name, weight in named]
    if others := heard[len(named) :]:
        shares.append(_share(f"{len(others)} others", sum(weight for _, weight in others), "from "))
    return ", ".join(shares) or "hears nothing"


def _share(name: str, weight: float, of: str = "") -> str:
    return f"{100 * weight:.1f} % {of}{name}" if weight >= TRACE_SHARE else f"a trace of {name}"
