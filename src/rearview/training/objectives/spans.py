"""T5's objective: spans of a text are replaced by sentinels, and the model predicts their content.

>>> import torch
>>> objective = HiddenSpans(sentinels=(101, 102), start_id=100, end_id=99)
>>> asked, answer = objective.cut(list(range(12)), torch.Generator().manual_seed(3))
>>> asked
[0, 1, 2, 3, 4, 101, 7, 8, 9, 10, 11, 99]
>>> answer
[101, 5, 6, 99]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rearview.masks import padding
from rearview.training.batches import NO_TARGET, Batch


@dataclass(frozen=True)
class SpanBatch:
    """What a T5 reads and must predict: texts with sentinels, padded after `lengths` tokens, and their spans."""

    asked: Tensor
    lengths: Tensor
    decoder: Tensor
    targets: Tensor

    def logits(self, model: nn.Module) -> Tensor:
        """The logits of the decoder. Its padding follows every real token, and it is causal: it needs no mask."""
        padded = int(self.lengths.min()) < self.asked.shape[1]
        return model(self.asked, self.decoder, mask=padding(self.lengths) if padded else None)

    def rows(self, part: slice) -> SpanBatch:
        """Some of the rows."""
        return replace(self, **{name: x[part] for name, x in vars(self).items()})


class HiddenSpans:
    """A fraction `share` of the tokens is hidden, in spans of `mean_length` on average."""

    def __init__(
        self,
        *,
        sentinels: Sequence[int],
        start_id: int,
        end_id: int | None,
        share: float = 0.15,
        mean_length: float = 3.0,
    ):
        self.sentinels, self.start_id, self.end_id = tuple(sentinels), start_id, end_id
        self.share, self.mean_length = share, mean_length

    def cut(self, tokens: list[int], generator: torch.Generator) -> tuple[list[int], list[int]]:
        """A text with a sentinel for each span, and the spans, each after its sentinel."""
        hidden = min(max(1, round(len(tokens) * self.share)), max(1, len(tokens) - 1))
        kept = len(tokens) - hidden
        spans = min(max(1, round(hidden / self.mean_length)), len(self.sentinels), hidden, max(1, kept - 1))
        asked: list[int] = []
        answer: list[int] = []
        at = 0
        between, within = _parts(kept, spans + 1, generator), _parts(hidden, spans, generator)
        for sentinel, gap, length in zip(self.sentinels, between, within, strict=False):
            asked += [*tokens[at : at + gap], sentinel]
            at += gap
            answer += [sentinel, *tokens[at : at + length]]
            at += length
        end = [] if self.end_id is None else [self.end_id]
        return asked + tokens[at:] + end, answer + end

    def prepare(self, batch: Batch, generator: torch.Generator) -> SpanBatch:
        """The tokens of the encoder and of the decoder, and its targets."""
        rows = [self.cut(tokens, generator) for tokens in _longest_documents(batch)]
        lengths = [len(asked) for asked, _ in rows]
        longest = max(len(answer) for _, answer in rows)
        device = batch.tokens.device
        asked = torch.tensor([_filled(asked, max(lengths), self.start_id) for asked, _ in rows])
        targets = torch.tensor([_filled(answer, longest, NO_TARGET) for _, answer in rows])
        decoder = torch.cat([torch.full((len(rows), 1), self.start_id), targets[:, :-1]], dim=1)
        decoder = decoder.masked_fill(decoder == NO_TARGET, self.start_id)
        # The lengths stay on the CPU, where they are compared.
        return SpanBatch(asked.to(device), torch.tensor(lengths), decoder.to(device), targets.to(device))

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        """The mean cross entropy of the spans."""
        spans = self.prepare(batch, generator)
        logits = spans.logits(model)
        return F.cross_entropy(logits.flatten(0, 1).float(), spans.targets.flatten(), ignore_index=NO_TARGET)


def _parts(total: int, count: int, generator: torch.Generator) -> list[int]:
    """`total` as a sum of `count` numbers of at least 1, each way equally likely; of at least 0 if it is too small."""
    if total < count:
        return [1] * total + [0] * (count - total)
    cuts = (torch.randperm(total - 1, generator=generator)[: count - 1] + 1).sort().values.tolist()
    return [after - before for before, after in zip([0, *cuts], [*cuts, total], strict=True)]


def _longest_documents(batch: Batch) -> list[list[int]]:
    """The longest document of each row: spans are hidden in one text."""
    if batch.ids is None:
        return batch.tokens.tolist()
    found = []
    for tokens, ids in zip(batch.tokens, batch.ids, strict=True):
        found.append(tokens[ids == torch.bincount(ids).argmax()].tolist())
    return found


def _filled(tokens: list[int], length: int, filler: int) -> list[int]:
    return tokens + [filler] * (length - len(tokens))
