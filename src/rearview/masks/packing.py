"""Masks for several sequences in one tensor: packed one after another, or padded to one length.

>>> from rearview import causal, documents, padding
>>> causal() & documents([0, 0, 1, 1])
causal() & documents([0, 0, 1, 1])
>>> padding([1, 3]).spans(1, 3).rows(batch=0)
[[(0, 1)]]
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.constructors import expression
from rearview.masks.data import as_data, as_lengths, described, is_readable, printed
from rearview.masks.document_runs import DocumentRuns, documents_in_order, positions_in_documents
from rearview.masks.document_window import EVERY, DocumentWindow
from rearview.masks.families import FirstKeys
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask, family
from rearview.masks.paths import Paths
from rearview.masks.runs import are_few, most_runs
from rearview.masks.spans import Spans


@family("documents")
class Documents(Paths):
    argument, entry = "documents(ids)", "id"

    @property
    def ids(self) -> Tensor:
        return self.data

    @property
    def document_ids(self) -> Tensor:
        return self.data

    @property
    def _runs(self) -> DocumentRuns:
        return self._derive("runs", lambda: DocumentRuns.of(self.ids.view(-1, self.ids.shape[-1])))

    @property
    def positions(self) -> Tensor:
        rows = self.ids.view(-1, self.ids.shape[-1])
        return self._derive("positions", lambda: positions_in_documents(rows)).view_as(self.ids)

    @property
    def count_in_order(self) -> int:
        """How many documents there are over the batch if the ids of each item never fall; otherwise 0."""
        return self._derive("count in order", lambda: documents_in_order(self.ids))

    @property
    def is_in_order(self) -> bool:
        """Whether the ids of each item never fall, as those of packed rows: then every document is one run."""
        return self.count_in_order > 0

    @property
    def has_ranges(self) -> bool:
        return not is_readable(self.ids) or self.is_in_order or are_few(self._runs.most, self.ids.shape[-1])

    @property
    def range_obstacle(self) -> str | None:
        return None if self.has_ranges else f"the tokens of one document lie in {self._runs.most:,} separate runs"

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        ids, last = self.ids.to(key.device), self.ids.shape[-1] - 1
        # A query before the first key (more queries than keys) belongs to no document.
        known = query >= 0
        query, key = query.clamp(0, last), key.clamp(0, last)
        same = ids[query] == ids[key] if ids.ndim == 1 else ids[batch, query] == ids[batch, key]
        return same & known

    def _document_window(self) -> DocumentWindow | None:
        # Reading ids from a GPU would wait for it.
        if self.ids.device.type != "cpu" or not is_readable(self.ids) or not self.is_in_order:
            return None
        low, high = torch.aminmax(self.ids)
        # Kernels read them as int32.
        fits = int(low) >= -EVERY and int(high) <= EVERY
        return DocumentWindow(ids=self.ids, documents=self.count_in_order) if fits else None

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        rows, known = self._rows(frame)
        starts, ends = self._runs.at(rows)
        edges = [edge.unsqueeze(1).to(device) for edge in (starts, ends * known.unsqueeze(-1))]
        return Spans.of(*edges, q_len=frame.q_len, k_len=frame.k_len)

    def __repr__(self) -> str:
        return f"documents({printed(self.ids, 'ids')})"


@family("padding")
class Padding(FirstKeys):
    """Padding on the right: item b has `lengths[b]` real keys."""

    is_padding = True

    @property
    def own_length(self) -> int | None:
        return int(self.lengths.max())

    def __repr__(self) -> str:
        return f"padding({printed(self.lengths, 'lengths')})"


@family("real")
class RealKeys(Mask):
    """Padding on either side: `real` is bool [batch, T], True = a real key."""

    is_padding = True

    real: Tensor

    @property
    def batch(self) -> int | None:
        return self.real.shape[0]

    @property
    def own_length(self) -> int | None:
        return self.real.shape[-1]

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        real = self.real.to(key.device)
        return real[batch, key.clamp(0, real.shape[-1] - 1)]

    @property
    def has_ranges(self) -> bool:
        return not is_readable(self.real) or are_few(self._most_runs, self.real.shape[-1])

    @property
    def range_obstacle(self) -> str | None:
        return None if self.has_ranges else f"the real keys of one item lie in {self._most_runs:,} separate runs"

    @property
    def _most_runs(self) -> int:
        return self._derive("most runs", lambda: most_runs(self.real[:, None, None]))

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        ranges = Spans.from_bool(self.real.to(device)[:, None, None, : frame.k_len])
        return Spans(ranges.starts, ranges.ends, q_len=frame.q_len, k_len=frame.k_len)

    def _check(self, frame: Frame) -> None:
        if self.real.shape[-1] < frame.k_len:
            raise BadArgument(
                "padding(real)",
                expected=f"a bool tensor [batch, T] that covers the {frame.k_len} keys",
                got=f"T = {self.real.shape[-1]}",
                advice="Append True for each key that was added to the cache.",
            )

    def __repr__(self) -> str:
        return f"padding({printed(self.real, 'keys')})"


# The public constructors check their arguments; the classes above trust them.


@expression("documents([0, 0, 1, 1])")
def documents(ids: Sequence[int] | Sequence[Sequence[int]] | Tensor) -> Documents:
    """The same document only (packed training): positions with equal ids hear each other.

    `ids` is [T], or [batch, T] when the items are packed differently. It may be longer than the keys: a cache that
    is still filling uses the ids of the positions that it holds. `documents(ids).positions` are the positions inside
    each document, for the model.

    >>> from rearview import causal
    >>> (causal() & documents([0, 0, 1])).to_bool(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    return Documents(as_ids(ids, "documents(ids)"))


def as_ids(values: Sequence[int] | Sequence[Sequence[int]] | Tensor, argument: str) -> Tensor:
    """The ids of documents as int64 [T] or [batch, T]. True and False are two documents: real tokens and padding."""
    expected = "integer ids [T] or [batch, T], at least one"
    tensor = as_data(values, argument, expected=expected)
    if tensor.ndim not in (1, 2) or tensor.is_floating_point() or tensor.is_complex() or tensor.numel() == 0:
        raise BadArgument(argument, expected=expected, got=described(tensor))
    return tensor.long()


@expression("padding([3, 5])")
def padding(real: Sequence[int] | Sequence[Sequence[bool]] | Tensor) -> Mask:
    """Real keys only: the number of real keys per batch item, or a bool [batch, T] that is True at real keys.

    The lengths mean padding on the right; the bool tensor allows padding anywhere.

    >>> padding([1, 2]).to_bool(1, 2).int().tolist()
    [[[[1, 0]]], [[[1, 1]]]]
    """
    tensor = as_data(real, "padding(real)", expected="lengths [batch], or a bool tensor [batch, T]")
    if tensor.dtype != torch.bool:
        return Padding(as_lengths(tensor, "padding(lengths)"))
    if tensor.ndim != 2 or tensor.numel() == 0:
        raise BadArgument(
            "padding(real)", expected="lengths [batch], or a bool tensor [batch, T]", got=described(tensor)
        )
    return RealKeys(tensor)
