"""A contract at a size: which outputs must not hear which inputs, and the cuts where that is worth trying.

>>> from rearview import causal, window
>>> from rearview.audit.contract import Contract
>>> contract = Contract.of(causal(), batch=1, time=4)
>>> contract.forbidden[0].int().tolist()
[[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
>>> Contract.of(causal() & window(10), batch=1, time=100).cuts()
[0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 15, 16, 17, 19, 20, 21, 31, 32, 33, 63, 64, 65, 98, 99]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks import Mask
from rearview.masks.frame import Frame
from rearview.masks.packing import Padding, RealKeys


@dataclass(frozen=True, eq=False)
class Contract:
    """`forbidden`: bool [batch, query, source], True where the source must not be heard."""

    mask: Mask
    forbidden: Tensor

    @classmethod
    def of(cls, mask: Mask, *, batch: int, time: int) -> Contract:
        """The mask for `batch` items of `time` positions; a mask made for another batch is refused."""
        if not isinstance(mask, Mask):
            advice = "For example causal(), window(8), causal() | prefix(6), causal() & documents(ids)."
            raise BadArgument("contract", expected="a mask: who may be heard", came=repr(mask), advice=advice)
        if mask.heads is not None:
            advice = "A model is audited from its inputs to its outputs; heads are inside. Give one mask for all."
            raise BadArgument("contract", expected="a mask that is the same for every head", came=mask, advice=advice)
        if mask.batch is not None and mask.batch != batch:
            came = f"{mask!r}, made for {mask.batch}, and inputs with {batch}"
            raise BadArgument("contract", expected="a mask for the batch of the inputs", came=came)
        frame, cpu = Frame.of(time, time, None), torch.device("cpu")
        forbidden = ~mask.visible_in(frame, cpu)[:, 0].expand(batch, time, time)
        for part in _parts(mask):
            if isinstance(part, (Padding, RealKeys)):
                # What stands at a padded position is nobody's output.
                forbidden = forbidden & part.visible_in(frame, cpu)[:, 0, :1].transpose(1, 2)
        return cls(mask, forbidden)

    @property
    def forbids_nothing(self) -> bool:
        return not bool(self.forbidden.any())

    def watched(self, item: int, sources: Tensor) -> Tensor:
        """bool [rows, time]: the outputs of an item that may hear none of the `sources`, bool [rows, time]."""
        # How many of the sources each position may hear, as one product: inputs may be long.
        heard = sources.float() @ (~self.forbidden[item]).float().T
        return (heard == 0) & sources.any(-1, keepdim=True)

    def cuts(self) -> list[int]:
        """Positions whose row of the contract is tried: off-by-one errors live at powers of two and at its sizes."""
        time = self.forbidden.shape[1]
        near = {0, 1, 2, time - 2, time - 1}
        power = 2
        while power <= time:
            near |= {power - 1, power, power + 1}
            power *= 2
        for size in sizes_of(self.mask):
            near |= {multiple + step for multiple in (size, 2 * size) for step in (-1, 0, 1)}
        # Where the next row is not the same row one step on: edges of documents, prefixes and padding.
        rows = self.forbidden[: self.mask.batch or 1]
        odd = (rows[:, 1:, 1:] != rows[:, :-1, :-1]).any(-1).any(0).nonzero().flatten().tolist()
        for edge in odd if len(odd) <= 32 else odd[:: len(odd) // 32]:
            near |= {edge, edge + 1}
        return sorted(cut for cut in near if 0 <= cut < time)


def sizes_of(mask: Mask) -> set[int]:
    """The lengths that a mask is made of: of windows, chunks, prefixes.

    >>> from rearview import chunks, prefix, window
    >>> sorted(sizes_of((window(8) & chunks(32)) | prefix(3)))
    [3, 8, 32]
    """
    found: set[int] = set()
    for part in _parts(mask):
        for name in ("back", "ahead", "size", "step", "lengths"):
            value = getattr(part, name, None)
            if isinstance(value, int) and value > 1:
                found.add(value)
    return found


def _parts(mask: Mask) -> Iterator[Mask]:
    yield mask
    for part in (*getattr(mask, "parts", ()), *((mask.part,) if hasattr(mask, "part") else ())):  # pyright: ignore[reportAttributeAccessIssue]
        yield from _parts(part)
