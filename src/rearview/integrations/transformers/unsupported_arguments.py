"""Arguments that `attend` cannot honour: they raise `Unsupported`, where transformers would ignore them silently.

    >>> import torch
    >>> x = torch.zeros(1, 1, 4, 8)
    >>> refuse_unsupported(torch.nn.Linear(1, 1), x, x, None, {"sliding_window": 2}, ours=True)
    Traceback (most recent call last):
    ...
    rearview.errors.Unsupported: the attention of Linear cannot be done exactly:
      - there is a sliding window of 2 over 4 keys, and no mask
    model.set_attn_implementation("sdpa") or "eager" runs the model as transformers does.

Models pass all keyword arguments of their own call on to their attention. Numbers, strings and flags among them concern
other parts of the model. A tensor may change who is heard, so only known tensors are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rearview.errors import Unsupported

# Handled by other modules of this package.
TRANSLATED = frozenset(["indices", "block_indices", "cu_seq_lens_q", "cu_seq_lens_k"])
# The model has already used these for the mask or the positions, or they concern other parts of the model.
ELSEWHERE = frozenset(
    [
        *("position_ids", "cache_position", "position_embeddings", "input_ids", "inputs_embeds", "token_type_ids"),
        *("labels", "num_items_in_batch", "logits_to_keep", "max_length_q", "max_length_k"),
    ]
)


def refuse_unsupported(
    module: nn.Module, query: Tensor, key: Tensor, attention_mask: object, others: Mapping[str, object], *, ours: bool
) -> None:
    """Raise `Unsupported` if `others` has an argument that would be ignored. `ours`: the call is for "rearview"."""
    given = {name: value for name, value in others.items() if value is not None}
    reasons = [
        f"the keyword {name!r} holds a tensor, which may change who is heard"
        for name, value in given.items()
        if isinstance(value, Tensor) and name not in TRANSLATED | ELSEWHERE
    ]
    if "cache" in given:
        reasons.append("continuous batching passes its keys in pages")
    if ours:
        window, k_len = given.get("sliding_window"), key.shape[2]
        if attention_mask is None and isinstance(window, int) and window < k_len:
            reasons.append(f"there is a sliding window of {window} over {k_len} keys, and no mask")
        if not _is_one_packed_row(query, key, given.get("cu_seq_lens_q"), given.get("cu_seq_lens_k")):
            reasons.append("cu_seq_lens is supported for a single row whose queries and keys are the same positions")
    if reasons:
        as_theirs = 'model.set_attn_implementation("sdpa") or "eager" runs the model as transformers does.'
        raise Unsupported(
            f"the attention of {type(module).__name__} cannot be done exactly",
            reasons,
            advice=as_theirs if ours else "The model can run this way only while it is not watched.",
        )


def _is_one_packed_row(query: Tensor, key: Tensor, q_ends: object, k_ends: object) -> bool:
    """Whether the batch is one row of packed sequences; also True where nothing is packed."""
    if not isinstance(q_ends, Tensor):
        return k_ends is None
    same = k_ends is None or (isinstance(k_ends, Tensor) and torch.equal(q_ends, k_ends))
    return same and query.shape[0] == 1 and query.shape[2] == key.shape[2]
