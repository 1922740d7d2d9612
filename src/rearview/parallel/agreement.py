"""Agreement of ranks: before the first exchange of its kind they compare what each of them is about to exchange.

Every rank works out its own part of an exchange. If one had another mask, another layout or another dtype, gloo would
end its process, NCCL would wait forever, and parts that happen to be of equal size would be taken for those of other
keys. The comparison is one collective of three numbers for each new mask, and none where the mask is known.
"""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist
from torch import Tensor

from rearview.errors import BadArgument
from rearview.parallel.rank_group import RankGroup

# What ranks compare, in the order of the numbers: the argument, what is expected of it on every rank, and advice.
COMPARED = (
    ("layout", "the same layout", "Make it from the same masks, length and placement."),
    ("mask", "the same mask", "Make it from the same arguments, and random ids with the same seed."),
    ("key, value", "tensors of the same dtype, batch, heads and dim", "Only the number of rows may differ."),
)


# With a new packing in each step, a layout would otherwise remember the masks of a whole run.
MOST_REMEMBERED = 256


class Agreements:
    """What the ranks of a layout have found to be equal lately."""

    def __init__(self) -> None:
        # In the order in which they were found, which is the same on all ranks.
        self._found: dict[tuple[str, int, int, int], None] = {}

    def check(self, ranks: RankGroup, device: torch.device, *, layout: int, mask: int, tensors: int) -> None:
        """Raise `BadArgument` on every rank if one has other numbers; all ranks must call this."""
        own = (layout, mask, tensors)
        key = (ranks.group.group_name, *own)
        if ranks.size == 1 or key in self._found:
            return
        # Through the CPU where the group can: reading from a GPU waits for all that it has to do.
        where = "cpu" if "cpu:" in dist.get_backend_config(ranks.group) else device
        mine = torch.tensor(own, device=where)
        found = [mine.clone() for _ in range(ranks.size)]
        dist.all_gather(found, mine, group=ranks.group)
        rows = torch.stack(found).tolist()
        for (name, expected, advice), values in zip(COMPARED, zip(*rows, strict=True), strict=True):
            if others := [rank for rank, value in enumerate(values) if value != values[0]]:
                got = f"something else on rank {others[0]} than on rank 0"
                raise BadArgument(name, expected=f"{expected} on every rank", got=got, advice=advice)
        self._found[key] = None
        if len(self._found) > MOST_REMEMBERED:
            del self._found[next(iter(self._found))]


def digest(*content: object) -> int:
    """A number of 63 bits for tensors on the CPU, and for values that print alike where they are equal.

    >>> digest(torch.tensor([1, 2])) == digest(torch.tensor([1, 2]))
    True
    >>> digest(torch.tensor([1, 2])) == digest(torch.tensor([[1, 2]]))
    False
    """
    total = hashlib.sha256()
    for each in content:
        if isinstance(each, Tensor):
            total.update(repr((each.dtype, list(each.shape))).encode())
            total.update(each.contiguous().numpy().data)
        else:
            total.update(repr(each).encode())
    return int.from_bytes(total.digest()[:8], "big") >> 1
