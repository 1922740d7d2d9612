"""The growth of a draft tree: candidates with their probabilities, of which the best are followed.

>>> candidates = Candidates([1, 2])
>>> candidates.grow([[-0.1, -2.0]], [[5, 6]])                 # two children of the sequence
>>> candidates.narrow(1, first_slot=0)
>>> candidates.unread()
([5], [-1])
>>> candidates.grow([[-0.2, -9.0]], [[7, 8]])
>>> candidates.best(3).tokens, candidates.best(3).parents
([5, 6, 7], [-1, -1, 0])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rearview.generation.draft_tree import DraftTree


@dataclass
class DraftNode:
    """`score` is the log-probability of the path; `slot` is the node's place in the cache of the draft, once read."""

    token: int
    parent: int
    score: float
    slot: int | None = None


class Candidates:
    """The nodes that are proposed for one sequence. The frontier consists of those that the draft reads next.

    This is the selection of EAGLE-2 (https://arxiv.org/abs/2406.16858, section 4): the best nodes of each depth are
    followed, and the best nodes of all depths form the tree.
    """

    def __init__(self, sequence: Sequence[int]):
        self._sequence = sequence
        self._nodes: list[DraftNode] = []
        self._newest = 0
        self.frontier: list[int] = []

    def grow(self, scores: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]]) -> None:
        """Add children to the nodes of the frontier, at first to the end of the sequence."""
        self._newest = len(self._nodes)
        for parent, row, ids in zip(self.frontier or [-1], scores, tokens, strict=False):
            before = self._nodes[parent].score if parent >= 0 else 0.0
            self._nodes += [DraftNode(id, parent, before + score) for score, id in zip(row, ids, strict=True)]

    def narrow(self, count: int, *, first_slot: int) -> None:
        """Let the best `count` of the newest nodes be the frontier, which the draft reads into slots from there on."""
        newest = range(self._newest, len(self._nodes))
        self.frontier = sorted(sorted(newest, key=lambda n: -self._nodes[n].score)[:count])
        for slot, node in enumerate(self.frontier, first_slot):
            self._nodes[node].slot = slot

    def unread(self) -> tuple[list[int], list[int]]:
        """The tokens of the frontier, and the slots of their parents."""
        nodes = [self._nodes[n] for n in self.frontier]
        return [node.token for node in nodes], [self._slot(node.parent) for node in nodes]

    def history(self, node: int) -> list[int]:
        """The sequence and the tokens on the path to a node."""
        path = []
        while node >= 0:
            path.append(self._nodes[node].token)
            node = self._nodes[node].parent
        return [*self._sequence, *reversed(path)]

    def best(self, count: int) -> DraftTree:
        """The tree of the `count` most probable nodes."""
        # No child is more probable than its parent and every child comes later, so parents are always included.
        chosen = sorted(sorted(range(len(self._nodes)), key=lambda n: -self._nodes[n].score)[:count])
        place = {-1: -1} | {node: index for index, node in enumerate(chosen)}
        nodes = [self._nodes[n] for n in chosen]
        parents = [place[node.parent] for node in nodes]
        return DraftTree([node.token for node in nodes], parents, [node.slot for node in nodes])

    def _slot(self, node: int) -> int:
        slot = -1 if node < 0 else self._nodes[node].slot
        assert slot is not None, "a parent is read before its children"
        return slot
