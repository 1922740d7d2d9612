"""What is probably wrong, in words, judged by the op to blame and the ops around it.

>>> import torch
>>> from rearview.auditing import Hears
>>> forbidden = torch.ones(4, 4).triu(1).bool()
>>> shape_words(Hears(torch.ones(4, 4), forbidden, (0, 1, 2, 3)))
'every position hears everything that it must not'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from rearview.auditing.evidence.leak import Leak
from rearview.auditing.place.positions import varying
from rearview.auditing.place.recording import Op, base_name
from rearview.auditing.place.scores import BLOCKS, block_size, fault_of_mask, fault_of_scores, square
from rearview.auditing.reporting.report import Hears
from rearview.masks import Mask
from rearview.masks.encoding import decode

REDUCTIONS = {
    "mean": "a mean",
    "sum": "a sum",
    "amax": "a maximum",
    "max": "a maximum",
    "amin": "a minimum",
    "min": "a minimum",
    "any": "an any",
    "all": "an all",
    "prod": "a product",
    "logsumexp": "a log-sum-exp",
    "linalg_vector_norm": "a norm",
    "aminmax": "a range",
}
SPREADS = ("var", "var_mean", "std", "std_mean")
ORDERED = {"topk": "top-k", "sort": "a sort", "argsort": "a sort", "kthvalue": "a rank", "median": "a median"}
NORMS = ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
MOVES = ("slice", "cat", "constant_pad_nd", "index", "gather", "index_select", "select", "stack", "take_along_dim")
PRODUCTS = ("bmm", "mm", "addmm", "matmul", "baddbmm", "linear", "dot", "mv")
# Views, dropout and casts between a softmax and the product with the values.
MOST_STEPS = 8
SHAPES = ("view", "_unsafe_view", "reshape", "clone", "transpose", "permute", "expand", "as_strided")


def hint_for(
    op: Op, ops: Sequence[Op], leak: Leak, module: nn.Module | None, forbidden: Tensor, hears: Hears | None
) -> str:
    """One sentence; empty where the fault is not known."""
    hint = _hint(op, ops, leak, module, forbidden, hears)
    if leak.subject.training and hint:
        return f"{hint} (only in train mode)"
    return hint


def _hint(
    op: Op, ops: Sequence[Op], leak: Leak, module: nn.Module | None, forbidden: Tensor, hears: Hears | None
) -> str:
    name = base_name(op.name)
    if isinstance(module, nn.RNNBase) and module.bidirectional:
        return "a bidirectional RNN: its second direction reads the sequence from the end"
    if leak.kind == "length":
        return "the length of the input enters here: earlier outputs change as the sequence grows"
    if isinstance(module, (_InstanceNorm, nn.GroupNorm)):
        return "normalization over time: mean and variance are taken over all positions"
    if isinstance(module, _BatchNorm) or name in ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"):
        return "batch normalization: its statistics are taken over all positions and batch items"
    if leak.kind == "batch":
        return _over_the_batch(name)
    if name in NORMS or name in SPREADS:
        return "normalization over time: mean and variance are taken over all positions"
    if "softmax" in name:
        return _softmax(op, ops, forbidden)
    if "scaled_dot_product" in name or "flash_attention" in name or "efficient_attention" in name:
        return _fused(op, forbidden)
    if op.name.startswith("rearview.attention"):
        return f"attend was called with the mask {_mask_in_words(op)!r}"
    if "convolution" in name or name.startswith(("conv", "mkldnn_convolution")):
        return _convolution(op, hears)
    if name in REDUCTIONS:
        normalizes = any(
            base_name(other.name) in ("rsqrt", "sqrt", "div", "pow") for other in ops[op.index : op.index + 8]
        )
        over = f"{REDUCTIONS[name]} over the time axis hears every position"
        return (
            f"normalization over time: {over}" if normalizes and name in ("mean", "sum", "linalg_vector_norm") else over
        )
    if name in ORDERED:
        return f"{ORDERED[name]} over the whole sequence: later positions compete with earlier ones"
    if name in ("argmax", "argmin"):
        return f"{name} over the whole sequence: it hears every position"
    if name == "flip":
        around = ops[max(0, op.index - 4) : op.index + 5]
        turned = any(base_name(other.name).startswith("cum") for other in around)
        return (
            "a cumulative sum from the wrong end" if turned else "the sequence is reversed: early outputs read the end"
        )
    if name.startswith(("cum", "logcumsumexp")):
        return "a cumulative sum from the wrong end, or over the wrong axis"
    if name == "roll":
        return "a roll: positions wrap around, or each one holds the next"
    if "fft" in name:
        return "a Fourier transform over time mixes all positions"
    if name in PRODUCTS:
        if isinstance(module, nn.Linear):
            return "a linear layer over the time axis mixes all positions"
        return _product(op, ops, forbidden)
    if name in MOVES or name == "expand":
        return shape_words(hears) or "it reads later positions"
    if name in SHAPES:
        words = shape_words(hears)
        return words if "blocks" in words else "a reshape without a transpose: positions are mixed with another axis"
    if name == "_local_scalar_dense":
        return "a number is read out of a tensor (.item()) that hears every position"
    return shape_words(hears)


def _over_the_batch(name: str) -> str:
    if name in REDUCTIONS or name in SPREADS or name in NORMS:
        return "it is computed over the batch axis: batch items hear each other"
    if name in ORDERED:
        return f"{ORDERED[name]} over the whole batch: batch items compete with each other"
    if name in SHAPES:
        return "a reshape without a transpose: batch items are mixed with another axis"
    return "batch items are mixed here"


def _softmax(op: Op, ops: Sequence[Op], forbidden: Tensor) -> str:
    scores, forbidden = _in_time(op, forbidden)
    time = len(forbidden)
    dim = next((value for value in op.arguments[1:] if isinstance(value, int) and not isinstance(value, bool)), -1)
    if square(scores, time) is None:
        return "a softmax over the time axis hears every position"
    if dim % scores.ndim == scores.ndim - 2:
        return (
            f"softmax over queries (dim={dim}): each weight is divided by a sum over later queries. Use the last axis"
        )
    fault = fault_of_scores(scores, forbidden)
    if fault.startswith("no mask") and _masked_after(op, ops, forbidden):
        return "the mask is applied after the softmax, whose denominator has already heard everything"
    return fault


def _in_time(op: Op, forbidden: Tensor) -> tuple[Tensor, Tensor]:
    """The scores, and what is forbidden of them, without queries and keys that have no position (memory, padding)."""
    scores, maps = op.inputs[0], op.input_positions[0] or ()
    by_axis = {tuple(varying(one)): one.flatten() for one in maps}
    query, key = by_axis.get((scores.ndim - 2,)), by_axis.get((scores.ndim - 1,))
    if query is None or key is None or (len(query) == len(key) == len(forbidden)):
        return scores, forbidden
    rows, columns = (query >= 0).nonzero().flatten(), (key >= 0).nonzero().flatten()
    if not torch.equal(query[rows], key[columns]):
        return scores, forbidden
    part = scores.cpu().index_select(-2, rows).index_select(-1, columns)
    return part, forbidden[query[rows]][:, key[columns]]


def _masked_after(op: Op, ops: Sequence[Op], forbidden: Tensor) -> bool:
    """Whether one of the next ops sets the forbidden weights to zero."""
    for other in ops[op.index + 1 : op.index + 8]:
        for output in other.outputs:
            weights = square(output, len(forbidden))
            if weights is not None and weights.is_floating_point():
                zero = bool((weights[:, forbidden] == 0).all())
                if zero and bool((weights[:, ~forbidden] != 0).any()):
                    return True
    return False


def _fused(op: Op, forbidden: Tensor) -> str:
    flags = [value for value in _values(op) if isinstance(value, bool)]
    masks = [tensor for tensor in op.inputs[3:] if tensor.ndim >= 2]
    q_len, k_len = op.inputs[0].shape[-2], op.inputs[1].shape[-2]
    if any(flags) and not masks:
        if q_len != k_len:
            return f"is_causal aligns these {q_len} queries with the first of {k_len} keys instead of the last"
        return ""
    if not masks:
        return "no mask reaches this attention: attn_mask is None and is_causal is False"
    mask = masks[0] if masks[0].dtype == torch.bool else masks[0] > BLOCKS
    if mask.shape[-2] not in (1, q_len) or mask.shape[-1] not in (1, k_len) or not q_len <= k_len <= len(forbidden):
        return ""
    rows = mask.expand(*mask.shape[:-2], q_len, k_len).reshape(-1, q_len, k_len)
    q_start = k_len - q_len
    return fault_of_mask(rows, forbidden[q_start:k_len, :k_len], q_start)


def _mask_in_words(op: Op) -> Mask:
    names = [argument.name for argument in torch.ops.rearview.attention.default._schema.arguments]
    words, numbers, data = (op.arguments[names.index(name)] for name in ("mask", "numbers", "data"))
    # The tensors of the mask are the last inputs.
    return decode(words, numbers, op.inputs[len(op.inputs) - len(data) :])


def _values(op: Op) -> list[Any]:
    *positional, keywords = op.arguments
    return [*positional, *keywords.values()]


def _convolution(op: Op, hears: Hears | None) -> str:
    sizes = op.inputs[1].shape[2:]
    # In two dimensions the kernel is longer than 1 along time only.
    axis = max(range(len(sizes)), key=lambda n: (sizes[n] > 1, n)) - len(sizes)
    kernel = sizes[axis]
    lists = [
        value for value in op.arguments if isinstance(value, (list, tuple)) and value and isinstance(value[0], int)
    ]
    dilation = lists[2][axis] if len(lists) > 2 else 1
    pad = lists[1][axis] if len(lists) > 1 else 0
    whole = (kernel - 1) * dilation
    ahead = whole - pad if pad else min(whole, _lookahead(hears))
    if not ahead:
        return "the convolution reads ahead"
    steps = f"{ahead} step{'s' if ahead > 1 else ''}"
    return (
        f"the convolution pads the future: its kernel of {kernel} reaches {steps} ahead. Pad {whole} on the left only"
    )


def softmax_before(op: Op, run: Sequence[Op]) -> Op | None:
    """The softmax that gave a matrix product its weights, a few ops before it."""
    if base_name(op.name) not in PRODUCTS:
        return None
    seen = {op.index}
    front = [op]
    for _ in range(MOST_STEPS):
        front = [run[origin[0]] for here in front for origin in here.origins if origin and origin[0] not in seen]
        seen |= {here.index for here in front}
        for here in front:
            if "softmax" in here.name:
                return here
    return None


def _product(op: Op, ops: Sequence[Op], forbidden: Tensor) -> str:
    softmax = softmax_before(op, ops)
    if softmax is not None and square(softmax.inputs[0], len(forbidden)) is not None:
        return _softmax(softmax, ops, forbidden)
    for tensor in op.inputs:
        weights = square(tensor, len(forbidden))
        if weights is not None:
            fault = fault_of_mask(weights != 0, forbidden)
            return fault.replace("reaches this attention", "reaches these weights")
    return "a product over the time axis mixes positions"


def _lookahead(hears: Hears | None) -> int:
    if hears is None or not bool(hears.leaks.any()):
        return 0
    query, column = hears.leaks.nonzero().unbind(-1)
    return int((torch.tensor(hears.sources)[column] - query).max().clamp(min=0))


def shape_words(hears: Hears | None) -> str:
    """The pattern of the leak in words: how far ahead, or within which blocks.

    >>> forbidden = torch.ones(4, 4).triu(1).bool()
    >>> shape_words(Hears(torch.ones(4, 4).tril(1), forbidden, (0, 1, 2, 3)))
    'each position hears exactly the next one'
    """
    if hears is None or not bool(hears.leaks.any()):
        return ""
    query, column = hears.leaks.nonzero().unbind(-1)
    ahead = torch.tensor(hears.sources)[column] - query
    if torch.equal(hears.leaks, hears.forbidden):
        return "every position hears everything that it must not"
    if bool((ahead == 1).all()):
        return "each position hears exactly the next one"
    size = block_size(hears.leaks, hears.forbidden)
    if size:
        return f"positions hear ahead within blocks of {size}"
    if bool((ahead > 0).all()) and int(ahead.max()) < len(hears.amounts) // 2:
        return f"positions hear up to {int(ahead.max())} positions ahead"
    if bool((ahead < 0).all()):
        return f"positions hear as far back as {int((-ahead).max())} positions"
    return f"{len(query)} of {int(hears.forbidden.sum())} forbidden pairs are heard"
