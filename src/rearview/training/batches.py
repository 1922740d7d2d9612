"""The batch of a step: a pure function of the corpus, the seed and the step.

An epoch is all windows of the text, adjacent from a random offset, in random order. There is no random state that would
have to be saved, so a run can continue from any step.

>>> from rearview.text import ByteTokenizer
>>> corpus = Corpus.of(["to be or not to be"], ByteTokenizer())
>>> batches = Batches(corpus, context=4, batch=2, seed=0)
>>> batch = batches[5]
>>> batch.tokens.shape, bool((batch.tokens == batches[5].tokens).all())
(torch.Size([2, 4]), True)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rearview.masks import Mask, documents
from rearview.training.corpus import Corpus
from rearview.training.permutation import permuted
from rearview.training.randomness import generator_of, seed_of

# The windows of an epoch whose order is kept in memory; that of more is computed where it is needed.
MOST_IN_MEMORY = 1 << 22

# The target of a position that has none; cross_entropy ignores it.
NO_TARGET = -100


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, and the next token of each.

    Where a row holds several documents, `ids` numbers them, one number per token, and `positions` counts from 0 in each
    document; documents may not hear each other. If no row does, both are None.
    """

    tokens: Tensor
    targets: Tensor
    ids: Tensor | None = None
    positions: Tensor | None = None

    @property
    def mask(self) -> Mask | None:
        """The mask between documents; None if every row is one document."""
        return None if self.ids is None else documents(self.ids)

    def logits(self, model: nn.Module) -> Tensor:
        """The logits of a model that reads these rows."""
        if self.ids is None:
            return model(self.tokens)
        return model(self.tokens, mask=self.mask, positions=self.positions)

    def rows(self, part: slice) -> Batch:
        """Some of the rows."""
        return replace(self, **{name: None if x is None else x[part] for name, x in vars(self).items()})

    def to(self, device: torch.device) -> Batch:
        """The batch on a device; `ids` stay on the CPU.

        What a mask says is worked out there, also inside a compiled graph. Reading ids from a GPU would wait for the
        steps before, and so would a copy from memory that is not pinned.
        """
        if device.type == "cpu":
            return self
        moving = {name: x for name, x in vars(self).items() if x is not None and name != "ids"}
        if device.type == "cuda":
            moving = {name: x.pin_memory() for name, x in moving.items()}
        return replace(self, **{name: x.to(device, non_blocking=True) for name, x in moving.items()})


class Batches:
    """`batches[n]` is the n-th batch of a run; there is no last one."""

    def __init__(self, corpus: Corpus, *, context: int, batch: int, seed: int):
        assert len(corpus) > context, "TextData.check_context tells the user"
        self.corpus, self.context, self.batch, self.seed = corpus, context, batch, seed
        self._rows = Rows(corpus, context)
        # One window fewer than fit, so that the offset varies over at least a whole context.
        self.windows = max(1, (len(corpus) - 1) // context - 1)
        self._epochs: dict[int, Tensor] = {}

    def __getitem__(self, number: int) -> Batch:
        begins: list[Tensor] = []
        row, end = number * self.batch, (number + 1) * self.batch
        while row < end:
            epoch, place = divmod(row, self.windows)
            count = min(end - row, self.windows - place)
            begins.append(self._order(epoch, place, count))
            row += count
        return self._rows.at(torch.cat(begins))

    def _order(self, epoch: int, place: int = 0, count: int | None = None) -> Tensor:
        """The first positions of windows of an epoch, from the `place`-th on."""
        slack = len(self.corpus) - 1 - self.windows * self.context
        offset = seed_of(self.seed, "offset", epoch) % (slack + 1)
        count = self.windows - place if count is None else count
        if self.windows > MOST_IN_MEMORY:
            numbers = permuted(torch.arange(place, place + count), self.windows, seed_of(self.seed, "epoch", epoch))
            return numbers * self.context + offset
        if epoch not in self._epochs:
            generator = generator_of(self.seed, "epoch", epoch)
            # A batch needs this epoch and perhaps the next; of a tiny text it needs many.
            if len(self._epochs) > 1 + self.batch:
                self._epochs.pop(min(self._epochs))
            self._epochs[epoch] = torch.randperm(self.windows, generator=generator)
        return self._epochs[epoch][place : place + count] * self.context + offset


class Rows:
    """Windows of a corpus."""

    def __init__(self, corpus: Corpus, context: int):
        self.corpus, self.context = corpus, context
        # A text that is one document has no boundaries to find.
        self._has_boundaries = len(corpus.starts) > 1

    def at(self, begins: Tensor) -> Batch:
        """The rows that begin at these positions."""
        firsts, context = begins.tolist(), self.context
        # Rows are cut out whole, not gathered token by token.
        tokens = torch.stack([self.corpus.tokens[first : first + context + 1] for first in firsts]).long()
        batch = Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        if not self._has_boundaries:
            return batch
        # Only documents that begin after the first token: a row that begins within one holds its rest as one document.
        known = self.corpus.starts
        low, high = torch.searchsorted(known, torch.stack([begins + 1, begins + context])).tolist()
        if low == high:
            return batch
        ids, starts = [], []
        for first, one, end in zip(firsts, low, high, strict=True):
            edges = torch.cat([known.new_tensor([0]), known[one:end] - first, known.new_tensor([context])])
            lengths = edges.diff()
            ids.append(torch.repeat_interleave(lengths, output_size=context))
            starts.append(torch.repeat_interleave(edges[:-1], lengths, output_size=context))
        return replace(batch, ids=torch.stack(ids), positions=torch.arange(context) - torch.stack(starts))


def in_order(corpus: Corpus, *, context: int, batch: int, most_tokens: int) -> Iterator[Batch]:
    """The whole corpus once, or `most_tokens` of it, evenly spread: the same text every time.

    >>> from rearview.text import ByteTokenizer
    >>> corpus = Corpus.of(["to be or not to be"], ByteTokenizer())
    >>> [b.tokens.shape[0] for b in in_order(corpus, context=4, batch=3, most_tokens=99)]
    [3, 1]
    """
    windows = (len(corpus) - 1) // context
    wanted = max(1, min(windows, most_tokens // context))
    begins = torch.arange(wanted) * windows // wanted * context
    rows = Rows(corpus, context)
    for some in begins.split(batch):
        yield rows.at(some)
