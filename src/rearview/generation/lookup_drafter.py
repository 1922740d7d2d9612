"""Drafting without a model: the tokens that followed the newest ones where they occurred before.

>>> drafter = LookupDrafter(tokens=3, longest_match=2)
>>> (proposed,) = drafter.propose([[1, 2, 3, 4, 5, 1, 2]], rooms=[9], samplers=[])
>>> proposed.tokens, proposed.parents
([3, 4, 5], [-1, 0, 1])
"""

from __future__ import annotations

from collections.abc import Sequence

from rearview.generation.draft_tree import DraftTree
from rearview.generation.sampling import Sampler


class LookupDrafter:
    """See `LookupDraft`. It keeps nothing between proposals."""

    def __init__(self, *, tokens: int, longest_match: int):
        self._tokens, self._longest = tokens, longest_match

    def propose(
        self, sequences: Sequence[Sequence[int]], *, rooms: Sequence[int], samplers: Sequence[Sampler]
    ) -> list[DraftTree]:
        # The pass that reads the proposals adds a token of its own.
        found = [self._found(list(sequence))[: room - 1] for sequence, room in zip(sequences, rooms, strict=True)]
        return [DraftTree(tokens, list(range(-1, len(tokens) - 1))) for tokens in found]

    def accepted(self, trees: Sequence[DraftTree], paths: Sequence[Sequence[int]]) -> None:
        pass

    def take(self, items: Sequence[int]) -> None:
        pass

    def _found(self, sequence: list[int]) -> list[int]:
        for size in range(min(self._longest, len(sequence) - 1), 0, -1):
            newest = sequence[-size:]
            for start in range(len(sequence) - size - 1, -1, -1):
                if sequence[start : start + size] == newest:
                    return sequence[start + size :][: self._tokens]
        return []
