"""A contract at a given size: which outputs must not hear which inputs, and the positions where to try it.

>>> from rearview import causal, window
>>> from rearview.auditing.contract import Contract
>>> contract = Contract.of(causal(), batch=1, time=4)
>>> contract.forbidden[0].int().tolist()
[[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
>>> Contract.of(causal() & window(10), batch=1, time=100).cuts()
[0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 15, 16, 17, 19, 20, 21, 31, 32, 33, 63, 64, 65, 98, 99]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks import Mask
from rearview.masks.data import described
from rearview.masks.frame import Frame


@dataclass(frozen=True, eq=False)
class Contract:
    """A mask with `forbidden`, bool [batch, query, source]: True where the query must not hear the source."""

    mask: Mask
    forbidden: Tensor

    @classmethod
    def of(cls, mask: Mask, *, batch: int, time: int) -> Contract:
        """The mask for `batch` items of `time` positions; a mask for another batch size is refused."""
        if not isinstance(mask, Mask):
            advice = "For example causal(), window(8), causal() | prefix(6), causal() & documents(ids)."
            if isinstance(mask, Tensor):
                advice = "For a bool tensor in which True means may be heard: contract=dense(tensor)."
            got = described(mask) if isinstance(mask, Tensor) else repr(mask)
            raise BadArgument("contract", expected="a mask", got=got, advice=advice)
        if mask.heads is not None:
            advice = (
                "A model is audited from its inputs to its outputs, which have no heads. Give one mask for all heads."
            )
            raise BadArgument("contract", expected="a mask that is the same for every head", got=mask, advice=advice)
        if mask.batch is not None and mask.batch != batch:
            got = f"{mask!r}, for {mask.batch} batch items"
            raise BadArgument("contract", expected=f"a mask for {batch} batch items, as the inputs have", got=got)
        frame, cpu = Frame.of(time, time, None), torch.device("cpu")
        forbidden = ~mask.visible_in(frame, cpu)[:, 0].expand(batch, time, time)
        for part in mask.walk():
            if part.is_padding:
                # The output at a padded position is not used.
                forbidden = forbidden & part.visible_in(frame, cpu)[:, 0, :1].transpose(1, 2)
        return cls(mask, forbidden)

    @property
    def forbids_nothing(self) -> bool:
        return not bool(self.forbidden.any())

    def watched(self, item: int, sources: Tensor) -> Tensor:
        """bool [rows, time]: the outputs of an item that may hear none of the `sources`, bool [rows, time]."""
        # The number of sources that each position may hear, as one matrix product: inputs may be long.
        heard = sources.float() @ (~self.forbidden[item]).float().T
        return (heard == 0) & sources.any(-1, keepdim=True)

    def cuts(self) -> list[int]:
        """The positions whose rows are tried: errors by one occur near powers of two and near the sizes of the mask."""
        time = self.forbidden.shape[1]
        near = {0, 1, 2, time - 2, time - 1}
        power = 2
        while power <= time:
            near |= {power - 1, power, power + 1}
            power *= 2
        for size in sizes_of(self.mask):
            near |= {multiple + step for multiple in (size, 2 * size) for step in (-1, 0, 1)}
        # Where a row is not the previous row shifted by one: edges of documents, prefixes and padding.
        rows = self.forbidden[: self.mask.batch or 1]
        odd = (rows[:, 1:, 1:] != rows[:, :-1, :-1]).any(-1).any(0).nonzero().flatten().tolist()
        for edge in odd if len(odd) <= 32 else odd[:: len(odd) // 32]:
            near |= {edge, edge + 1}
        return sorted(cut for cut in near if 0 <= cut < time)


def sizes_of(mask: Mask) -> set[int]:
    """The sizes of the windows, chunks and prefixes in a mask.

    >>> from rearview import chunks, prefix, window
    >>> sorted(sizes_of((window(8) & chunks(32)) | prefix(3)))
    [3, 8, 32]
    """
    found: set[int] = set()
    for part in mask.walk():
        for name in ("back", "ahead", "size", "step", "length"):
            value = getattr(part, name, None)
            if isinstance(value, int) and value > 1:
                found.add(value)
    return found


def in_words(positions: Sequence[int]) -> str:
    """Positions as words.

    >>> in_words([3]), in_words([0, 1, 2]), in_words([0, 2, 5])
    ('position 3', 'positions 0 to 2', '3 positions from 0 to 5')
    """
    first, last = positions[0], positions[-1]
    if first == last:
        return f"position {first}"
    together = last - first + 1 == len(positions)
    return f"positions {first} to {last}" if together else f"{len(positions)} positions from {first} to {last}"
