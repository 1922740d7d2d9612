"""What an attention function is told and could not do: refused, where transformers drops it without a word.

    >>> import torch
    >>> x = torch.zeros(1, 1, 4, 8)
    >>> refuse_what_would_be_dropped(torch.nn.Linear(1, 1), x, x, None, {"sliding_window": 2}, ours=True)
    Traceback (most recent call last):
    ...
    rearview.errors.Unsupported: the attention of Linear cannot be done exactly:
      - a sliding window of 2 over 4 keys came without a mask
    model.set_attn_implementation("sdpa") or "eager" runs the model as transformers does.

Models hand everything that they were called with down to their attention. Numbers, names and switches there concern
other parts; a tensor may change who is heard, so only those that are known are let through.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rearview.errors import Unsupported

# Done elsewhere in this package.
TRANSLATED = frozenset(["indices", "block_indices", "cu_seq_lens_q", "cu_seq_lens_k"])
# The model has used it for the mask or the positions, or it concerns other parts of the model.
ELSEWHERE = frozenset(
    [
        *("position_ids", "cache_position", "position_embeddings", "input_ids", "inputs_embeds", "token_type_ids"),
        *("labels", "num_items_in_batch", "logits_to_keep", "max_length_q", "max_length_k"),
    ]
)


def refuse_what_would_be_dropped(
    module: nn.Module, query: Tensor, key: Tensor, attention_mask: Any, others: dict[str, Any], *, ours: bool
) -> None:
    """Raise `Unsupported` for what `others` say and nobody does. `ours`: the call is for "rearview" itself."""
    given = {name: value for name, value in others.items() if value is not None}
    reasons = [
        f"the keyword {name!r} holds a tensor, which may change who is heard"
        for name, value in given.items()
        if isinstance(value, Tensor) and name not in TRANSLATED | ELSEWHERE
    ]
    if "cache" in given:
        reasons.append("continuous batching hands over its keys in pages")
    if ours:
        window, k_len = given.get("sliding_window"), key.shape[2]
        if attention_mask is None and window is not None and window < k_len:
            reasons.append(f"a sliding window of {window} over {k_len} keys came without a mask")
        if not _is_one_packed_row(query, key, given.get("cu_seq_lens_q"), given.get("cu_seq_lens_k")):
            reasons.append("cu_seq_lens for a batch, or for queries that are not the keys")
    if reasons:
        as_theirs = 'model.set_attn_implementation("sdpa") or "eager" runs the model as transformers does.'
        raise Unsupported(
            f"the attention of {type(module).__name__} cannot be done exactly",
            reasons,
            advice=as_theirs if ours else "The model runs so when it is not watched.",
        )


def _is_one_packed_row(query: Tensor, key: Tensor, q_ends: Tensor | None, k_ends: Tensor | None) -> bool:
    """Also when nothing is packed."""
    if q_ends is None:
        return k_ends is None
    same = k_ends is None or torch.equal(q_ends, k_ends)
    return same and query.shape[0] == 1 and query.shape[2] == key.shape[2]
