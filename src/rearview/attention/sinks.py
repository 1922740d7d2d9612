"""Sinks: logits that take part in every softmax and belong to no key, counted in after the softmax over the keys.

>>> import torch
>>> counted_in(torch.zeros(1), torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1))[0].flatten().tolist()
[0.5, 0.5]

Engines whose kernel does not compute sinks use this; the log-sum-exp over the keys is all that it needs.
"""

import torch
from torch import Tensor


def counted_in(sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The output [batch, heads, rows, dim] and the log-sum-exp of a softmax over keys, with the sinks counted in."""
    if sinks is None:
        return out, lse
    assert lse is not None, "an engine returns the log-sum-exp of a call that needs it"
    return (out * share_of_keys(lse, sinks).unsqueeze(-1)).to(out.dtype), _with_sinks(lse, sinks)


def share_of_keys(lse: Tensor, sinks: Tensor) -> Tensor:
    """What a sink leaves to the keys: e^lse / (e^lse + e^sink), [batch, heads, rows]; 0 where no key is heard."""
    above_sink = lse - sinks.view(1, -1, 1)
    # A row that hears nothing beside a sink of -inf would be -inf - -inf.
    return torch.sigmoid(above_sink.masked_fill(lse == -torch.inf, -torch.inf))


def _with_sinks(lse: Tensor, sinks: Tensor) -> Tensor:
    sinks = sinks.view(1, -1, 1)
    nothing = (lse == -torch.inf) & (sinks == -torch.inf)
    # The gradient of logaddexp(-inf, -inf) would be NaN.
    return torch.logaddexp(lse.masked_fill(nothing, 0), sinks).masked_fill(nothing, -torch.inf)
