"""The tokens that a draft proposes for one sequence, as a tree.

>>> proposed = DraftTree(tokens=[5, 6, 7], parents=[-1, -1, 0])    # "5 7" or "6"
>>> proposed.child(-1, token=6), proposed.child(0, token=7), proposed.child(1, token=7)
(1, 2, None)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class DraftTree:
    """`parents[i]` is the node before node i; a node with parent -1 follows the sequence.

    Args:
        tokens: the token of each node.
        parents: the parent of each node; it comes before the node.
        slots: the index of each node among the nodes that the draft model has read; None for one that it has not read.
        distributions: for a chain of sampled tokens, the probabilities from which each was sampled, [vocab_size].
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    slots: list[int | None] = field(default_factory=list)
    distributions: list[Tensor] = field(default_factory=list)

    def child(self, node: int, *, token: int) -> int | None:
        """The child of a node that has this token."""
        below = (n for n, parent in enumerate(self.parents) if parent == node and self.tokens[n] == token)
        return next(below, None)
