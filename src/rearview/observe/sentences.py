"""What a head does, in sentences that need no knowledge of the formula; and numbers as people read them.

>>> share(0.8342), share(0.00012345), share(3e-7), share(0.9999), share(0.0), times(4.26)
('83.4 %', '0.0123 %', '3.00e-07', 'over 99.9 %', '0', '4.3')
"""

from __future__ import annotations

import math

from rearview.attention.statistics import FIRST
from rearview.observe.looking import Look

# From these shares on, what a head does is worth a sentence; or is what it does first of all.
MUCH, MOST = 0.2, 0.5
# A key is worth naming when it receives this share.
WORTH = 0.05
# What a row of figures has; the page, the terminal and pictures show the same.
METRICS: dict[str, dict[str, object]] = {
    "first_1": {"name": "on the first key", "unit": "share", "most": 1},
    "first_4": {"name": "on the first 4", "unit": "share", "most": 1},
    "first_8": {"name": "on the first 8", "unit": "share", "most": 1},
    "entropy": {"name": "entropy, nats", "unit": "number"},
    "distance": {"name": "positions back", "unit": "number"},
}


def share(x: float) -> str:
    """A share in percent with three digits; what is there never rounds to nothing, or to everything."""
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
    """How many times as much."""
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2g}"


def figures(look: Look, row: int) -> dict[str, float]:
    """One number for each of METRICS, of the head in this row; and what uniform attention would have of the shares."""
    heard = max(1.0, float(look.heard[row]))
    expected = look.expected[min(row, len(look.expected) - 1)]
    found: dict[str, float] = {}
    for n in FIRST:
        found[f"first_{n}"] = float(look.received[row, :n].sum()) / heard
        found[f"first_{n}_uniform"] = float(expected[:n].sum()) / heard
    found["entropy"] = float(look.entropy[row].sum()) / heard
    found["distance"] = float(look.distance[row].sum()) / heard
    return found


def sentences(look: Look, row: int) -> list[str]:
    """What stands out first, then how widely and how far back the head listens.

    >>> import torch
    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.observe import observe
    >>> from rearview.observe.looking import look_at
    >>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=1, heads=2, width=8)).eval()
    >>> with observe(model) as seen:
    ...     logits = model(torch.arange(20).unsqueeze(0))
    >>> sentences(look_at(seen, seen.layers[0]), 0)[0].partition(";")[2]
    ' uniform attention would give it 18.0 %.'
    """
    if not look.heard[row]:
        return ["No query hears anything: the mask leaves nothing."]
    found = figures(look, row)
    first, even = found["first_1"], found["first_1_uniform"]
    to_first = f"{share(first)} of the weight goes to the first key; uniform attention would give it {share(even)}."
    other = [*_near(look, row), *_favourite(look, row)]
    # What the head does most is said first.
    leads = first >= MOST or (first > even and not other)
    said = [to_first, *other] if leads or not other else [*other, to_first]
    widely = f"A query listens to about {_keys(math.exp(found['entropy']))} at a time"
    # Positions of two sequences have no distance.
    far = "" if look.layer.kind == "cross" else f", on average {_back(found['distance'])}"
    said.append(f"{widely} (entropy {found['entropy']:.2f} nats){far}.")
    left_over = 1 - float(look.received[row].sum()) / float(look.heard[row])
    if left_over > 1e-3:
        said.append(f"{share(left_over)} of the weight goes to the head's own sink, which is no key.")
    return said


def _near(look: Look, row: int) -> list[str]:
    """Does it listen to the token itself, or to the one before?"""
    if look.layer.kind == "cross":
        return []
    # Bin 0 is the future, 1 the position itself, 2 the one before.
    shares = (look.histogram[row] / look.heard[row]).tolist()
    places = ((1, "the position itself"), (2, "the position just before"))
    return [f"{share(shares[n])} of the weight goes to {place}." for n, place in places if _at(shares, n) >= MUCH]


def _favourite(look: Look, row: int) -> list[str]:
    """The key that receives most beyond its share of uniform attention, unless it is the first."""
    received, expected = look.received[row], look.expected[min(row, len(look.expected) - 1)]
    key = int((received - expected).argmax())
    heard = float(look.heard[row])
    if key == 0 or float(received[key]) / heard < WORTH or received[key] < 1.5 * expected[key]:
        return []
    word = f" “{look.key_labels[key]}”" if look.key_labels and key < len(look.key_labels) else ""
    amount, even = (share(float(values[key]) / heard) for values in (received, expected))
    return [f"{amount} of the weight goes to key {key:,}{word}; uniform attention would give it {even}."]


def _at(values: list[float], n: int) -> float:
    return values[n] if n < len(values) else 0.0


def distances(look: Look) -> list[str]:
    """What the bins of the histogram are called: "ahead", then "0", "1", "2–3", ..."""
    edges = look.layer.statistics.histogram_edges
    names = ["ahead"]
    for n in range(1, look.histogram.shape[-1]):
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
