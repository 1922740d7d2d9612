"""A call made by a layer of a model, and the same call with positions in the whole sequence.

>>> import torch
>>> from rearview.attention.call import Call
>>> x = torch.randn(1, 2, 4, 8)
>>> call = Call.of(x[:, :, 3:], x, x)
>>> LayerCall(torch.nn.Identity(), call, position=10, dropped_keys=7).in_sequence().frame
Frame(q_len=1, k_len=11, q_start=10)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor, nn

from rearview.attention.call import Call
from rearview.attention.sequence_shard import refuse_shard
from rearview.masks import Frame
from rearview.masks.shifted import shifted


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A call, with what the call itself does not contain.

    Args:
        module: the layer that made the call.
        call: the call, over the keys that the layer has.
        is_cross: whether the keys are those of another sequence.
        position: the position of the first query in its sequence; None if it follows from the keys.
        dropped_keys: the number of keys that a sliding cache has dropped, which precede those of the layer.
    """

    module: nn.Module
    call: Call
    is_cross: bool = False
    position: int | None = None
    dropped_keys: int = 0

    def __post_init__(self) -> None:
        if self.call.shard is not None:
            refuse_shard("observation", self.call.shard, advice="Observe the model on one device.")

    @property
    def start(self) -> int:
        """The position of the first query in its sequence."""
        return self.dropped_keys + self.call.frame.q_start if self.position is None else self.position

    def in_sequence(self, start: int | None = None) -> Call:
        """The call as if no key had been dropped, with its first query at `start`; for weights only.

        Dropped keys keep their positions, and no query hears them. The keys take the place of the values.
        """
        call, dropped = self.call, self.dropped_keys
        start = self.start if start is None else start
        key, bias = call.key.detach(), call.bias
        if dropped:
            key = F.pad(key, (0, 0, dropped, 0))
            if isinstance(bias, Tensor) and bias.shape[-1] > 1:
                bias = F.pad(bias, (dropped, 0))
        return replace(
            call,
            query=call.query.detach(),
            key=key,
            value=key,
            mask=shifted(call.mask, queries=start - call.frame.q_start, keys=dropped, heads=None),
            frame=Frame(call.frame.q_len, key.shape[2], start),
            bias=bias,
            dropout=0.0,
            generator=None,
            return_lse=False,
        )
