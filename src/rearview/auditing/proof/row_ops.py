"""Ops that treat every row (the first axis) in the same way and without the other rows.

They commute with a permutation or a selection of rows, so `routes.py` may apply them before the rows travel.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rearview.auditing.proof.op_call import Heard, OpCall
from rearview.auditing.proof.rules.copies import clone
from rearview.auditing.proof.rules.pointwise import (
    add,
    both,
    either,
    exponential,
    glu,
    masked_fill,
    multiply,
    pointwise,
    where,
)

ELEMENTWISE = (pointwise, multiply, add, both, either, where, masked_fill, exponential, clone, glu)


def acts_on_rows(call: OpCall, rule: Any) -> bool:
    """Whether the op treats every row alike, and without the others."""
    outs = [call.out] if isinstance(call.out, Tensor) else list(call.out)
    tagged = [item for item in call.inputs if item.tag is not None]
    count = len(tagged[0].tag.route.chosen)
    if any(item.tag.role not in ("rows", "keys") or item.shape[:1] != (count,) for item in tagged):
        return False
    if not all(isinstance(out, Tensor) and out.dim() and out.shape[0] == count for out in outs):
        return False
    if rule in ELEMENTWISE and call.name != "copy":
        if call.name == "glu" and call["dim"] % tagged[0].ndim == 0:
            return False
        return all(aligned(item, outs[0].dim()) for item in call.inputs)
    first = call.args[0]
    if call.name in ("mm", "addmm", "linear"):
        rows = call.args[1] if call.name == "addmm" else first
        return rows.tag is not None and len(tagged) == 1 and aligned(first, 2)
    if call.name == "bmm":
        return len(tagged) == 2
    if call.name == "native_layer_norm" or call.name == "_fused_rms_norm":
        return first.tag is not None and len(tagged) == 1 and len(call["normalized_shape"]) < first.ndim
    if not isinstance(first, Heard) or first.tag is None or len(tagged) != 1 or len(call.inputs) != 1:
        return False
    if call.name in ("detach", "alias"):
        return True
    whole = first.tag.route.whole
    if call.name in ("view", "_unsafe_view", "reshape") and call.func._overloadname != "dtype":
        # Row-major: with as many elements per row, each keeps its own. A given number of rows may be equal by accident,
        # and no rows may have any size.
        same = call.out.shape[1:].numel() == first.shape[1:].numel()
        return same and (whole or call["size"][0] == -1)
    if call.name == "expand":
        return call.out.dim() == first.ndim and (whole or call["size"][0] == -1)
    if call.name == "unsqueeze":
        return call["dim"] % (first.ndim + 1) != 0
    if call.name == "permute":
        return call["dims"][0] % first.ndim == 0
    if call.name == "transpose":
        return 0 not in (call["dim0"] % first.ndim, call["dim1"] % first.ndim)
    if call.name in ("slice", "select", "split", "split_with_sizes", "unbind", "squeeze", "_softmax", "topk"):
        dim = call["dim"] if call["dim"] is not None or call.name == "squeeze" else -1 if call.name == "topk" else 0
        return dim is not None and 0 not in call.dims(dim, first.ndim)
    if call.name in ("sum", "mean", "amax", "max", "argmax", "any"):
        return call["dim"] not in (None, []) and 0 not in call.dims(call["dim"], first.ndim)
    return False


def aligned(item: Heard, ndim: int) -> bool:
    """Whether an input has the same rows, or is the same for every row."""
    if item.tag is not None:
        return item.ndim == ndim
    return item.ndim < ndim or item.shape[0] == 1
