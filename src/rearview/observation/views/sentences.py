"""Sentences about what a head does and what changed in it, and numbers formatted for people.

>>> share(0.8342), share(0.00012345), share(3e-7), share(0.9999), share(0.0), times(4.26)
('83.4 %', '0.0123 %', '3.00e-07', 'over 99.9 %', '0', '4.3')
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rearview.attention.stats import FIRST

if TYPE_CHECKING:
    from rearview.observation.result.observation import Observation
    from rearview.observation.views.layer_view import LayerView

# A pattern with at least the first share gets a sentence; with at least the second, the sentence is the first one.
MUCH, MOST = 0.2, 0.5
# The smallest share for which a key is named.
NAMED_SHARE = 0.05
# For each figure its name, its unit, the end of its scale if that is fixed, and whether it may be negative.
Metrics = dict[str, dict[str, object]]
# The figures of a head; the page, the terminal and pictures show the same.
METRICS: Metrics = {
    "first_1": {"name": "on the first key", "unit": "share", "most": 1},
    "first_4": {"name": "on the first 4 keys", "unit": "share", "most": 1},
    "first_8": {"name": "on the first 8 keys", "unit": "share", "most": 1},
    "entropy": {"name": "entropy, nats", "unit": "number"},
    "distance": {"name": "positions back", "unit": "number"},
}
CHANGE_METRICS: Metrics = {
    "moved": {"name": "moved to other keys", "unit": "share", "most": 1},
    "largest": {"name": "largest change of a cell", "unit": "share"},
    "kl": {"name": "KL(before, after), nats", "unit": "number"},
    "sinks": {"name": "on the first 4 keys", "unit": "share", "signed": True},
    "entropy": {"name": "entropy, nats", "unit": "number", "signed": True},
}


def share(x: float) -> str:
    """A share in percent with three digits; only 0 is written as 0, and only 1 as 100 %."""
    if x < 0:
        return f"−{share(-x)}"
    if x == 0:
        return "0"
    percent = 100 * x
    if x < 1 and percent >= 99.95:
        return "over 99.9 %"
    if percent >= 1e-3:
        digits = 1 if percent >= 10 else 2 if percent >= 1 else 2 - math.floor(math.log10(percent))
        return f"{percent:.{digits}f} %"
    return f"{x:.2e}"


def times(ratio: float) -> str:
    """A ratio with two or three digits."""
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2g}"


def figures(view: LayerView, row: int) -> dict[str, float]:
    """See `LayerView.figures`."""
    heard = max(1.0, float(view.heard[row]))
    expected = view.expected_of(row)
    found: dict[str, float] = {}
    for n in FIRST:
        found[f"first_{n}"] = float(view.received[row, :n].sum()) / heard
        found[f"first_{n}_uniform"] = float(expected[:n].sum()) / heard
    found["entropy"] = float(view.entropy[row].sum()) / heard
    found["distance"] = float(view.distance[row].sum()) / heard
    return found


def head_sentences(view: LayerView, row: int) -> list[str]:
    """What stands out first, then how widely and how far back the head attends; see `LayerView.sentences`."""
    if not view.heard[row]:
        return ["No query hears anything: the mask blocks every key."]
    found = figures(view, row)
    first, even = found["first_1"], found["first_1_uniform"]
    to_first = f"{share(first)} of the weight goes to the first key; uniform attention would give it {share(even)}."
    # What the head does most comes first.
    other = [words for _, words in sorted([*_near(view, row), *_favourite(view, row)], key=lambda each: -each[0])]
    leads = first >= MOST or (first > even and not other)
    said = [to_first, *other] if leads or not other else [*other, to_first]
    widely = f"A query attends to about {_keys(math.exp(found['entropy']))} at a time"
    # Positions of two sequences have no distance.
    far = "" if view.layer.kind == "cross" else f", on average {_back(found['distance'])}"
    said.append(f"{widely} (entropy {found['entropy']:.2f} nats){far}.")
    left_over = 1 - float(view.received[row].sum()) / float(view.heard[row])
    if left_over > 1e-3:
        said.append(f"{share(left_over)} of the weight goes to the head's learned sink, which is not a key.")
    return said


def _near(view: LayerView, row: int) -> list[tuple[float, str]]:
    """Whether the head attends to the same position, or to the previous one: shares, and their sentences."""
    if view.layer.kind == "cross":
        return []
    # Bin 0 is the future, 1 the same position, 2 the previous one.
    shares = (view.histogram[row] / view.heard[row]).tolist()
    places = ((1, "the same position"), (2, "the previous position"))
    return [
        (shares[n], f"{share(shares[n])} of the weight goes to {place}.")
        for n, place in places
        if _at(shares, n) >= MUCH
    ]


def _favourite(view: LayerView, row: int) -> list[tuple[float, str]]:
    """The key that receives most beyond its share of uniform attention, unless it is the first."""
    received, expected = view.received[row], view.expected_of(row)
    key = int((received - expected).argmax())
    heard = float(view.heard[row])
    if key == 0 or float(received[key]) / heard < NAMED_SHARE or received[key] < 1.5 * expected[key]:
        return []
    word = f" “{view.key_labels[key]}”" if view.key_labels and key < len(view.key_labels) else ""
    amount, even = (share(float(values[key]) / heard) for values in (received, expected))
    told = f"{amount} of the weight goes to key {key:,}{word}; uniform attention would give it {even}."
    return [(float(received[key]) / heard, told)]


def _at(values: list[float], n: int) -> float:
    return values[n] if n < len(values) else 0.0


def distances(view: LayerView) -> list[str]:
    """The names of the bins of the histogram: "ahead", then "0", "1", "2–3", ..."""
    edges = view.layer.statistics.histogram_edges
    names = ["ahead"]
    for n in range(1, view.histogram.shape[-1]):
        low, high = edges[n - 1], edges[n] if n < len(edges) else None
        names.append(f"{low}+" if high is None else str(low) if high == low + 1 else f"{low}–{high - 1}")
    return names


def _keys(number: float) -> str:
    return f"{number:.1f} keys" if number < 10 else f"{number:,.0f} keys"


def _back(positions: float) -> str:
    if abs(positions) < 0.05:
        return "at its own position"
    amount = f"{abs(positions):,.1f}"
    return f"{amount} positions {'back' if positions > 0 else 'ahead'}"


def change_sentences(found: dict[str, float]) -> list[str]:
    """What changed in a head with these figures (`CHANGE_METRICS`)."""
    if not found["largest"]:
        return ["Nothing changed."]
    said = [f"{share(found['moved'])} of the weight went to other keys."]
    sinks, entropy = found["sinks"], found["entropy"]
    if abs(sinks) >= 5e-4:
        direction = "rose" if sinks > 0 else "fell"
        said.append(f"The share of the first 4 keys {direction} by {share(abs(sinks))} of the weight.")
    if abs(entropy) >= 5e-3:
        direction, breadth = ("rose", "more") if entropy > 0 else ("fell", "fewer")
        said.append(f"It attends to {breadth} keys: its entropy {direction} by {abs(entropy):.2f} nats.")
    if math.isinf(found["kl"]):
        said.append("Some keys that were heard before are no longer heard at all.")
    return said


def summary(observation: Observation, item: int) -> str:
    """A table with one line per layer; see `Observation.describe`."""
    if not observation.layers:
        return repr(observation)
    heading = ("layer", "name", "kind", "heads", "entropy", "back", "first key", "first 4", "x uniform")
    rows: list[tuple[str, ...]] = [heading]
    for layer in observation.layers:
        heard = layer.statistics.lse[item] > -float("inf")
        means = [
            f"{(figure[item] * heard).sum() / heard.sum().clamp(min=1):.2f}"
            for figure in (layer.statistics.entropy, layer.statistics.distance)
        ]
        shares = [f"{100 * observation.sinks(n, layer, item=item).mean():.0f} %" for n in (1, 4)]
        against = f"{observation.sinks(4, layer, item=item, against='uniform').mean():.1f}"
        rows.append((str(layer.index), layer.name, layer.kind, str(len(layer.heads)), *means, *shares, against))
    widths = [max(len(row[n]) for row in rows) for n in range(len(heading))]
    lines = [repr(observation), ""]
    for row in rows:
        cells = [
            cell.ljust(w) if n in (1, 2) else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines += [
        "",
        "entropy: nats, mean over all queries; back: positions, mean over all queries; first key, first 4: their share",
        "of the attention; x uniform: the share of the first 4 as a multiple of what uniform attention gives them.",
    ]
    return "\n".join(lines)
