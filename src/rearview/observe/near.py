"""What a page needs of one head to compute its exact weights itself, any pair of them: queries, keys, ranges, totals.

>>> import torch
>>> from rearview import MaskedSelfAttention
>>> from rearview.observe import observe
>>> layer = MaskedSelfAttention(8, 2)
>>> with observe(layer) as seen:
...     out = layer(torch.randn(1, 6, 8))
>>> near = near_of(seen.layers[0], item=0, row=1)
>>> scores = near.query @ near.key.T * near.scale - near.lse.unsqueeze(-1)
>>> torch.allclose(scores.exp().tril(), seen.tile(0, 1), atol=1e-6)
True
>>> near.ends.flatten().tolist()    # causal: each hears those up to itself
[1, 2, 3, 4, 5, 6]

A map of a long sequence is made of bins. Queries and keys take as much room as a thin strip of the matrix, and have
all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rearview.attention import Alibi

if TYPE_CHECKING:
    from rearview.observe.block import Block
    from rearview.observe.layer import Layer


@dataclass(frozen=True, eq=False)
class Near:
    """One head of one item. A weight is exp(softcap(scale x query . key) - slope x distance - lse), if it is heard.

    Args:
        query, key: [queries, dim] and [keys, dim].
        key_head: which of the layer's keys they are; heads may share them.
        lse: [queries], with what a learned sink takes.
        starts, ends: int32 [queries, ranges], the keys that each query hears.
    """

    query: Tensor
    key: Tensor
    key_head: int
    lse: Tensor
    starts: Tensor
    ends: Tensor
    scale: float
    softcap: float | None
    slope: float

    @property
    def bytes(self) -> int:
        """What it takes in a block."""
        tensors = (self.query, self.key, self.lse, self.starts, self.ends)
        return sum(tensor.numel() * min(4, tensor.element_size()) for tensor in tensors)

    def put(self, block: Block, keys: dict[int, Any]) -> dict[str, Any]:
        """Into the block; what the page is told of it. `keys` remembers those of this layer that are already there."""
        if self.key_head not in keys:
            keys[self.key_head] = block.keep(self.key)
        arrays = {name: block.keep(getattr(self, name)) for name in ("query", "lse", "starts", "ends")}
        numbers = {"scale": self.scale, "softcap": self.softcap or 0, "slope": self.slope}
        return {**arrays, "key": keys[self.key_head], **numbers}


def near_of(layer: Layer, *, item: int, row: int) -> Near | None:
    """None where queries and keys were not kept, or where a mask without ranges or a bias would have to come along."""
    if layer.kept is None:
        return None
    calls = list(layer.kept.calls(item, row))
    if any(isinstance(call.bias, Tensor) or not call.mask.has_ranges for call in calls):
        return None
    spans = [call.mask.spans(call.query.shape[2], call.key.shape[2], q_start=call.q_start) for call in calls]
    most = max(each.most_ranges for each in spans)

    def edges(name: str) -> Tensor:
        # Empty ranges fill what a call has fewer of.
        each = [getattr(one, name)[0, 0].expand(one.q_len, -1) for one in spans]
        return torch.cat([F.pad(one, (0, most - one.shape[1])) for one in each])

    last = calls[-1]
    return Near(
        query=torch.cat([call.query[0, 0] for call in calls]),
        key=last.key[0, 0],
        key_head=row // layer.kept.group,
        lse=layer.statistics.lse[item, row].float().cpu(),
        starts=edges("starts"),
        ends=edges("ends"),
        scale=last.query.shape[-1] ** -0.5 if last.scale is None else last.scale,
        softcap=last.softcap,
        slope=float(last.bias.slopes) if isinstance(last.bias, Alibi) else 0.0,
    )
