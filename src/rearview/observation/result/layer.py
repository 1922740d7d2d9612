"""What was observed of one attention layer, and a link between two of its positions.

>>> Link(layer=0, head=1, query=5, key=0, weight=0.75)
Link(layer=0, head=1, query=5, key=0, weight=0.75, times=None)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from rearview.errors import BadArgument

if TYPE_CHECKING:
    from rearview.attention.stats import Statistics
    from rearview.observation.watching.retained_calls import RetainedCalls


@dataclass(frozen=True)
class Link:
    """Query position `query` gives `weight` of its attention to key position `key`, in this layer and head."""

    layer: int
    head: int
    query: int
    key: int
    weight: float
    times: float | None = None
    """How many times the weight is what uniform attention would give; None where that was not asked for."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer, with the statistics of all its calls over one sequence, as if they had been one call.

    Args:
        name: the name of the module, such as "blocks.0.attention".
        kind: "self" for attention to the same sequence, "encoder" for such attention in both directions, "cross" for
            attention to another sequence.
        index: the number among all attention layers of the model, watched or not.
        heads: the numbers of the watched heads, in the order of the statistics.
        statistics: tensors [batch, heads, ...]; see `rearview.attention.stats`.
        retained: the calls with their queries and keys, for exact weights, where `observe(keep=)` kept them.
        why_not_retained: the reason where it did not.
    """

    name: str
    kind: str
    index: int
    heads: tuple[int, ...]
    statistics: Statistics
    retained: RetainedCalls | None = None
    why_not_retained: str = ""

    @property
    def batch(self) -> int:
        """The number of batch items."""
        return self.statistics.lse.shape[0]

    @property
    def queries(self) -> int:
        """The position after the last query."""
        return self.statistics.frame.q_end

    @property
    def keys(self) -> int:
        """The number of keys."""
        return self.statistics.frame.k_len

    def row_of(self, head: int) -> int:
        """The row of a head in the statistics. `head` is its number in the model; negative ones count from the end."""
        if isinstance(head, int) and not isinstance(head, bool):
            if head in self.heads:
                return self.heads.index(head)
            if -len(self.heads) <= head < 0:
                return len(self.heads) + head
        expected = f"a head that was watched in {self.name}, one of {list(self.heads)}"
        raise BadArgument("head", expected=expected, got=repr(head))

    def heard_rows(self, item: int) -> Tensor:
        """The number of queries that heard anything, at least 1: [heads]."""
        return (self.statistics.lse[item] > -float("inf")).sum(-1).clamp(min=1)

    def links(self, row: int, item: int) -> list[Link]:
        """The links that were kept for the head in this row, strongest first."""
        found = self.statistics.links
        columns = (found.weight[item, row], found.query[item, row], found.key[item, row])
        links = [
            Link(self.index, self.heads[row], query, key, weight)
            for weight, query, key in zip(*(column.tolist() for column in columns), strict=True)
            # A head with fewer links than were asked for is filled up with weight 0.
            if weight > 0
        ]
        return sorted(links, key=lambda link: (-link.weight, link.query, link.key))
