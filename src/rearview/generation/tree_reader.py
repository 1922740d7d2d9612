"""A GPT that reads trees: after the text of each sequence, nodes that hear the text and their own ancestors.

>>> import torch
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8)).eval()
>>> reader = TreeReader(model, batch=1, max_len=8)
>>> reader.read_text([[1, 2]])
>>> logits = reader.read([[3, 4, 5]], [[-1, -1, 0]])      # "1 2 3 5" and "1 2 4"
>>> torch.allclose(logits[0, 2], model(torch.tensor([[1, 2, 3, 5]]))[0, -1], atol=1e-5)
True
>>> reader.keep([[0, 2]])
>>> reader.texts
[4]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.generation.predictors import as_batch
from rearview.masks import tree
from rearview.masks.paths import Paths
from rearview.models import GPT

# The parent of a padding node, which hears itself alone and has position 0, so that it fits any context.
ALONE = -2


class TreeReader:
    """The cache holds the text of each sequence, and after it the nodes that were read since the last `keep`.

    All sequences have the same number of nodes: rows that are too short are padded with nodes that no other node hears.
    """

    def __init__(self, model: GPT, *, batch: int, max_len: int):
        self.model = model
        self._cache = model.new_cache(batch, max_len)
        self.texts = [0] * batch
        self._parents: list[list[int]] = [[] for _ in range(batch)]

    @property
    def nodes(self) -> int:
        """The number of nodes of each sequence, with padding."""
        return len(self._parents[0])

    def read_text(self, rows: Sequence[Sequence[int]]) -> None:
        """Read the beginning of each text into the empty cache."""
        if not any(rows):
            return
        # Rows are padded on the right, where a mask that looks back does not hear the padding.
        self.model(as_batch(rows, self._device), cache=self._cache, last_only=True)
        self.texts = [len(row) for row in rows]
        for layer in self._cache:
            layer.keep(self.texts)

    def read(self, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> Tensor:
        """The logits after each new node, [batch, longest row, vocab_size].

        Parents count from the first node after the text; -1 is the last token of the text.
        """
        longest = max(map(len, tokens))
        for own, row in zip(self._parents, parents, strict=True):
            own += [*row, *[ALONE] * (longest - len(row))]
        return self.model(as_batch(tokens, self._device), paths=self._paths(), cache=self._cache)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Append these nodes to the text of each sequence, and drop the others."""
        for layer in self._cache:
            layer.keep(self.texts, paths)
        self.texts = [text + len(path) for text, path in zip(self.texts, paths, strict=True)]
        self._parents = [[] for _ in paths]

    def take(self, items: Sequence[int]) -> None:
        """Continue with these sequences only, in this order."""
        for layer in self._cache:
            layer.take(items)
        self.texts = [self.texts[item] for item in items]
        self._parents = [self._parents[item] for item in items]

    def _paths(self) -> Paths | None:
        """The tree of each row, or None if every node follows the one before it, as in plain text."""
        if all(parents == list(range(-1, self.nodes - 1)) for parents in self._parents):
            return None
        rows = list(zip(self.texts, self._parents, strict=True))
        if all(row == rows[0] for row in rows):
            rows = rows[:1]
        longest = max(self.texts) + self.nodes
        table = torch.full((len(rows), longest), -1)
        for row, (text, parents) in zip(table, rows, strict=True):
            row[:text] = torch.arange(-1, text - 1)
            nodes = torch.tensor(parents)
            row[text : text + self.nodes] = torch.where(nodes == ALONE, -1, nodes + text)
        return tree(table if len(rows) > 1 else table[0])

    @property
    def _device(self) -> torch.device:
        return self.model.tokens.weight.device
