"""What a page needs to compute the exact weights of one head itself: queries, keys, ranges and totals.

>>> import torch
>>> from rearview import MaskedSelfAttention
>>> from rearview.observation import observe
>>> layer = MaskedSelfAttention(8, 2)
>>> with observe(layer) as seen:
...     out = layer(torch.randn(1, 6, 8))
>>> head = exact_head(seen.layers[0], item=0, row=1)
>>> scores = head.query @ head.key.T * head.scale - head.lse.unsqueeze(-1)
>>> torch.allclose(scores.exp().tril(), seen.tile(0, 1), atol=1e-6)
True
>>> head.ends.flatten().tolist()    # causal: each query hears the keys up to its own position
[1, 2, 3, 4, 5, 6]

The map of a long sequence consists of bins. Queries and keys take no more room than a thin strip of the matrix, and
determine all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rearview.attention import Alibi

if TYPE_CHECKING:
    from rearview.observation.result.layer import Layer
    from rearview.observation.views.packed_arrays import ArrayEntry, PackedArrays


@dataclass(frozen=True, eq=False)
class ExactHead:
    """One head of one batch item. A heard key weighs exp(softcap(scale x query . key) - slope x distance - lse).

    Args:
        query, key: [queries, dim] and [keys, dim].
        key_head: the number of the key head; query heads may share it.
        lse: [queries], including a learned sink.
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
        """The bytes that the packed arrays take."""
        tensors = (self.query, self.key, self.lse, self.starts, self.ends)
        return sum(tensor.numel() * min(4, tensor.element_size()) for tensor in tensors)

    def put(self, arrays: PackedArrays, keys: dict[int, ArrayEntry]) -> dict[str, Any]:
        """Pack the arrays and return what the page reads. `keys` holds the layer's key heads packed so far."""
        if self.key_head not in keys:
            keys[self.key_head] = arrays.keep(self.key)
        packed = {name: arrays.keep(getattr(self, name)) for name in ("query", "lse", "starts", "ends")}
        numbers = {"scale": self.scale, "softcap": self.softcap or 0, "slope": self.slope}
        return {**packed, "key": keys[self.key_head], **numbers}


def exact_head(layer: Layer, *, item: int, row: int) -> ExactHead | None:
    """The data of one head; None where queries and keys were not kept, or a bias or a mask without ranges matters."""
    if layer.retained is None:
        return None
    calls = list(layer.retained.calls(item, row))
    if any(isinstance(call.bias, Tensor) or not call.mask.has_ranges for call in calls):
        return None
    spans = [call.mask.spans_in(call.frame, torch.device("cpu")) for call in calls]
    most = max(each.most_ranges for each in spans)

    def edges(name: str) -> Tensor:
        # Calls with fewer ranges are filled up with empty ones.
        each = [getattr(one, name)[0, 0].expand(one.q_len, -1) for one in spans]
        return torch.cat([F.pad(one, (0, most - one.shape[1])) for one in each])

    last = calls[-1]
    return ExactHead(
        query=torch.cat([call.query[0, 0] for call in calls]),
        key=last.key[0, 0],
        key_head=row // layer.retained.queries_per_key_head,
        lse=layer.statistics.lse[item, row].float().cpu(),
        starts=edges("starts"),
        ends=edges("ends"),
        scale=last.scale,
        softcap=last.softcap,
        slope=float(last.bias.slopes) if isinstance(last.bias, Alibi) else 0.0,
    )
