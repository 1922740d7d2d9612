"""One call of an attention function of transformers, as the arguments of `attend`.

>>> import torch
>>> module, x = torch.nn.Module(), torch.zeros(1, 2, 4, 8)
>>> call = Call.of(module, x, x, x, None, scaling=0.5)
>>> call.mask, call.scale, call.attend().shape
(causal(), 0.5, torch.Size([1, 2, 4, 8]))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rearview.attention import attend, weights
from rearview.integrations.transformers.dropped import refuse_what_would_be_dropped
from rearview.integrations.transformers.received import read
from rearview.integrations.transformers.sparse import chosen, with_blocks
from rearview.masks import Frame, Mask, dense, documents


@dataclass(frozen=True, eq=False)
class Call:
    """What `attend` needs, and `sinks`: a score for each head that takes its share of the softmax and has no value."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask
    q_start: int | None = None
    bias: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0

    @classmethod
    def of(
        cls,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        *,
        implementation: str = "rearview",
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        **others: Any,
    ) -> Call:
        """What an attention function was called with, in transformers' names.

        `implementation` says whose call it is: "sdpa", "eager" and "flex_attention" write their masks differently, and
        "rearview" gets what they do not. `Unsupported` where the call says something that is not expressed here.
        """
        ours = implementation == "rearview"
        refuse_what_would_be_dropped(module, query, key, attention_mask, others, ours=ours)
        if ours and (blocks := others.get("block_indices")) is not None:
            attention_mask = with_blocks(module, blocks, attention_mask, query, key)
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        mask, q_start, bias = read(attention_mask, query, key, is_causal=bool(is_causal), implementation=implementation)
        if position_bias is not None:
            crop = position_bias[..., : key.shape[2]]
            bias = crop if bias is None else crop + bias
        # Some models name their dropout while they do not train; eager attention asks the module, too.
        dropout = dropout if module.training else 0.0
        call = cls(query, key, value, mask, q_start, bias, scaling, softcap, s_aux, dropout)
        return call._narrowed(others) if ours else call

    def _narrowed(self, others: dict[str, Any]) -> Call:
        """With what other implementations than eager and SDPA get beside the mask."""
        mask, q_start = self.mask, self.q_start
        if (ends := others.get("cu_seq_lens_q")) is not None:
            # Packed sequences by where they end. Where the model made the mask from them, this adds nothing.
            position = torch.arange(self.key.shape[2], device=ends.device)
            mask = mask & documents(torch.bucketize(position, ends.long(), right=True))
        if (indices := others.get("indices")) is not None:
            frame = Frame.of(self.query.shape[2], self.key.shape[2], q_start)
            visible = mask.visible_in(frame, self.query.device) & chosen(indices, k_len=frame.k_len)
            mask, q_start = dense(visible), None
        return replace(self, mask=mask, q_start=q_start)

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments that `attend`, `plan` and `weights` share."""
        return {
            "mask": self.mask,
            "q_start": self.q_start,
            "bias": self.bias,
            "scale": self.scale,
            "softcap": self.softcap,
        }

    def attend(self, *, engine: str = "auto") -> Tensor:
        """The output, [batch, heads, query, dim]."""
        how: dict[str, Any] = {**self.options, "dropout": self.dropout, "engine": engine}
        if self.sinks is None:
            return attend(self.query, self.key, self.value, **how)
        out, lse = attend(self.query, self.key, self.value, **how, return_lse=True)
        return out * self._kept(lse).to(out.dtype)

    def weights(self) -> Tensor:
        """The exact weights before dropout, [batch, heads, query, key]: as much memory as that says."""
        found = weights(self.query, self.key, **self.options)
        if self.sinks is None:
            return found
        _, lse = attend(self.query, self.key, self.value, **self.options, return_lse=True)
        return found * self._kept(lse)

    def _kept(self, lse: Tensor) -> Tensor:
        """What a sink leaves to the keys: e^lse / (e^lse + e^sink)."""
        assert self.sinks is not None
        return torch.sigmoid(lse - self.sinks.view(1, -1, 1).to(lse.dtype)).unsqueeze(-1)
