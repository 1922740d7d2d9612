"""What was seen, in words: a line for each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rearview.observe.seen import Seen


def describe(seen: Seen, item: int = 0) -> str:
    """See `Seen.describe`."""
    if not seen.layers:
        return repr(seen)
    heading = ("layer", "name", "kind", "heads", "entropy", "back", "first key", "first 4", "x uniform")
    rows: list[tuple[str, ...]] = [heading]
    for layer in seen.layers:
        heard = layer.statistics.lse[item] > -float("inf")
        means = [
            f"{(figure[item] * heard).sum() / heard.sum().clamp(min=1):.2f}"
            for figure in (layer.statistics.entropy, layer.statistics.distance)
        ]
        shares = [f"{100 * seen.sinks(n, layer, item=item).mean():.0f} %" for n in (1, 4)]
        against = f"{seen.sinks(4, layer, item=item, against='uniform').mean():.1f}"
        rows.append((str(layer.index), layer.name, layer.kind, str(len(layer.heads)), *means, *shares, against))
    widths = [max(len(row[n]) for row in rows) for n in range(len(heading))]
    lines = [repr(seen), ""]
    for row in rows:
        cells = [
            cell.ljust(w) if n in (1, 2) else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines += [
        "",
        "entropy: nats, the mean of all queries; back: positions, likewise; first key, first 4: their share of the",
        "attention, and for the first 4 how many times what equal attention to all would give them.",
    ]
    return "\n".join(lines)
