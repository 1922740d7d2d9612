"""FlexAttention: no op, but an operator that calls the user's mask_mod and score_mod. It is run by its definition.

>>> import torch
>>> from torch.nn.attention.flex_attention import create_block_mask, flex_attention
>>> from rearview.audit.proof import prove
>>> mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 3, 3, device="cpu")
>>> attend = lambda x: flex_attention(x[:, None], x[:, None], x[:, None], block_mask=mask)[:, 0]
>>> prove(attend, torch.randn(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [1, 1, 0], [1, 1, 1]]
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Without it, flex_attention insists on a compiler, which does not work while ops are watched.
SWITCH = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"


@contextmanager
def flex_in_the_open() -> Iterator[None]:
    """flex_attention calls its operator directly, if the program has it at all."""
    module = sys.modules.get("torch.nn.attention.flex_attention")
    before = getattr(module, SWITCH, None)
    if module is None or before is None:
        yield
        return
    setattr(module, SWITCH, True)
    try:
        yield
    finally:
        setattr(module, SWITCH, before)


def is_flex(func: Any) -> bool:
    return getattr(func, "__name__", "") == "flex_attention" and "higher_order" in type(func).__module__


def flex(*args: Any, **kwargs: Any) -> Any:
    """Scores, score_mod, mask_mod, softmax, values: dense, op by op."""
    from torch._higher_order_ops.flex_attention import math_attention

    return math_attention(*args, **kwargs)
