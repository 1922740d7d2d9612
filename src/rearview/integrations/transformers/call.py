"""The call of an attention function of transformers, as a `Call`.

>>> import torch
>>> from rearview.attention.functional import run
>>> module, x = torch.nn.Module(), torch.zeros(1, 2, 4, 8)
>>> call = call_of(module, x, x, x, None, scaling=0.5)
>>> call.mask, call.scale, run(call)[0].shape
(causal(), 0.5, torch.Size([1, 2, 4, 8]))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rearview.attention.call import Call
from rearview.attention.sequence_shard import activated, active_shard
from rearview.errors import Unsupported
from rearview.integrations.transformers.attention_mask import read
from rearview.integrations.transformers.mask_tensor import MaskTensor
from rearview.integrations.transformers.sharded_mask import check_sharded
from rearview.integrations.transformers.unsupported_arguments import refuse_unsupported
from rearview.masks import Frame, Mask, dense, documents

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def call_of(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    *,
    implementation: str = "rearview",
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: object,
) -> Call:
    """The `Call` for the arguments of an attention function, which have transformers' names.

    `implementation` is the implementation that was called: "sdpa", "eager" and "flex_attention" write their masks
    differently, and "rearview" receives arguments that the others do not. Raises `Unsupported` for what `attend` cannot
    do.
    """
    ours = implementation == "rearview"
    refuse_unsupported(module, query, key, attention_mask, others, ours=ours)
    if ours and isinstance(blocks := others.get("block_indices"), Tensor):
        attention_mask = _with_blocks(module, blocks, attention_mask, query, key)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    mask, q_start, bias = read(attention_mask, query, key, is_causal=bool(is_causal), implementation=implementation)
    if position_bias is not None:
        crop = position_bias[..., : key.shape[2]]
        bias = crop if bias is None else crop + bias
    shard = active_shard()
    # Gradient checkpointing computes the call again, perhaps after the block in which the layout was active.
    again = attention_mask.shard if shard is None and isinstance(attention_mask, MaskTensor) else None
    if shard is not None or again is not None:
        check_sharded(module, shard or again, attention_mask, others, ours=ours)
    elif ours:
        mask, q_start = _narrowed(mask, q_start, query, key, others)
    with activated(again):
        return Call.of(
            query,
            key,
            value,
            mask=mask,
            q_start=q_start,
            bias=bias,
            scale=scaling,
            softcap=softcap,
            sinks=s_aux,
            # Some models pass their dropout in evaluation mode too; eager attention also checks the module's mode.
            dropout=dropout if module.training else 0.0,
        )


def _narrowed(
    mask: Mask, q_start: int | None, query: Tensor, key: Tensor, others: Mapping[str, object]
) -> tuple[Mask, int | None]:
    """The mask, narrowed by what transformers passes in other arguments to implementations except eager and SDPA."""
    if isinstance(ends := others.get("cu_seq_lens_q"), Tensor):
        # The ends of packed sequences. If the model made its mask from them, this adds nothing.
        position = torch.arange(key.shape[2], device=ends.device)
        mask = mask & documents(torch.bucketize(position, ends.long(), right=True))
    if isinstance(indices := others.get("indices"), Tensor):
        frame = Frame.of(query.shape[2], key.shape[2], q_start)
        visible = mask.visible_in(frame, query.device) & _keys_at(indices, k_len=frame.k_len)
        mask, q_start = dense(visible), None
    return mask, q_start


# Models with sparse attention choose the keys that each query may hear. For eager attention and SDPA they write the
# choice into the mask; other implementations get the mask without it, and the choice as `indices` or `block_indices`.


def _keys_at(indices: Tensor, *, k_len: int) -> Tensor:
    """Bool [batch, 1, query, key], True at the keys in `indices` [batch, query, choice]."""
    none = torch.zeros(*indices.shape[:2], k_len, dtype=torch.bool, device=indices.device)
    return none.scatter(-1, indices.long(), True).unsqueeze(1)


def _with_blocks(
    module: nn.Module, block_indices: Tensor, attention_mask: Tensor | BlockMask | None, query: Tensor, key: Tensor
) -> Tensor:
    """The mask with the chosen blocks, as the module makes it for eager attention."""
    build = getattr(getattr(module, "indexer", None), "build_block_mask", None)
    if build is None or attention_mask is None:
        raise Unsupported(
            f"{type(module).__name__} with block_indices",
            ["the module has no indexer.build_block_mask, or was called without a mask to combine the blocks with"],
            advice='Use model.set_attn_implementation("sdpa").',
        )
    return build(block_indices, attention_mask, key.shape[2], query.dtype, query.device, None)
