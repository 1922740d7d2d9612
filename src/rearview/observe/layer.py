"""What was seen of one attention layer, and a link between two of its positions.

>>> Link(layer=0, head=1, query=5, key=0, weight=0.75)
Link(layer=0, head=1, query=5, key=0, weight=0.75)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from rearview.errors import BadArgument

if TYPE_CHECKING:
    from rearview.attention.statistics import Statistics
    from rearview.observe.kept import Kept


@dataclass(frozen=True)
class Link:
    """Query position `query` gives `weight` of its attention to key position `key`, in this layer and head."""

    layer: int
    head: int
    query: int
    key: int
    weight: float


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer, with the statistics of all its calls of one sequence as if they had been one.

    Args:
        name: of the module, "blocks.0.attention".
        kind: "self" looks at its own sequence, "encoder" at both sides of it, "cross" at another sequence.
        index: the number among all attention layers of the model, watched or not.
        heads: the numbers of the heads that were watched, in the order of the statistics.
        statistics: tensors [batch, heads, ...]; see `rearview.attention.statistics`.
        kept: queries and keys for exact tiles, where they were kept; `why_not_kept` says why they were not.
    """

    name: str
    kind: str
    index: int
    heads: tuple[int, ...]
    statistics: Statistics
    kept: Kept | None = None
    why_not_kept: str = ""

    @property
    def batch(self) -> int:
        """Items of the batch."""
        return self.statistics.lse.shape[0]

    @property
    def queries(self) -> int:
        """One past the position of the last query."""
        return self.statistics.frame.q_end

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return self.statistics.frame.k_len

    def row_of(self, head: int) -> int:
        """Where a head stands in the statistics. `head` is the model's number; negative ones count from the end."""
        if isinstance(head, int) and not isinstance(head, bool):
            if head in self.heads:
                return self.heads.index(head)
            if -len(self.heads) <= head < 0:
                return len(self.heads) + head
        expected = f"a head that was watched in {self.name}, one of {list(self.heads)}"
        raise BadArgument("head", expected=expected, came=repr(head))

    def heard_rows(self, item: int) -> Tensor:
        """How many queries heard anything, [heads]."""
        return (self.statistics.lse[item] > -float("inf")).sum(-1).clamp(min=1)
