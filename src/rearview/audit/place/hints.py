"""What is probably wrong, in words, from the op that let it through and what stands around it.

>>> import torch
>>> from rearview.audit import Hears
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

from rearview.attention.engines.native.words import mask_of
from rearview.audit.leak import Leak
from rearview.audit.place.record import Op, base_name
from rearview.audit.place.scores import BLOCKS, fault_of_mask, fault_of_scores, square
from rearview.audit.report import Hears
from rearview.masks import Mask

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
    """One sentence, or nothing where there is nothing to go by."""
    hint = _hint(op, ops, leak, module, forbidden, hears)
    if leak.subject.training and hint:
        return f"{hint}; only in train mode"
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
        return "normalised over time: mean and variance are taken over all positions"
    if isinstance(module, _BatchNorm) or name in ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"):
        return "batch normalisation: its statistics are taken over all positions and batch items"
    if leak.kind == "batch":
        return _over_the_batch(name)
    if name in NORMS or name in SPREADS:
        return "normalised over time: mean and variance are taken over all positions"
    if "softmax" in name:
        return _softmax(op, ops, forbidden)
    if "scaled_dot_product" in name or "flash_attention" in name or "efficient_attention" in name:
        return _fused(op, forbidden)
    if op.name.startswith("rearview.attention"):
        return f"attend was given the mask {_mask_in_words(op)!r}"
    if "convolution" in name or name.startswith(("conv", "mkldnn_convolution")):
        return _convolution(op, hears)
    if name in REDUCTIONS:
        normalises = any(
            base_name(other.name) in ("rsqrt", "sqrt", "div", "pow") for other in ops[op.index : op.index + 8]
        )
        over = f"{REDUCTIONS[name]} over the time axis hears every position"
        return f"normalised over time: {over}" if normalises and name in ("mean", "sum", "linalg_vector_norm") else over
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
        return "rolled: positions wrap around, or each one holds the next"
    if "fft" in name:
        return "a Fourier transform over time mixes all positions"
    if name in PRODUCTS:
        if isinstance(module, nn.Linear):
            return "a linear layer over the time axis mixes all positions"
        return _product(op, ops, forbidden)
    if name in MOVES or name == "expand":
        return shape_words(hears) or "it reads positions that lie ahead"
    if name in SHAPES:
        words = shape_words(hears)
        return words if "blocks" in words else "reshaped without a transpose: positions are mixed up with another axis"
    if name == "_local_scalar_dense":
        return "a number is read out of a tensor (.item()) that hears every position"
    return shape_words(hears)


def _over_the_batch(name: str) -> str:
    if name in REDUCTIONS or name in SPREADS or name in NORMS:
        return "it is taken over the batch axis: items of the batch hear each other"
    if name in ORDERED:
        return f"{ORDERED[name]} over the whole batch: items compete with each other"
    if name in SHAPES:
        return "reshaped without a transpose: batch items are mixed up with another axis"
    return "items of the batch are mixed here"


def _softmax(op: Op, ops: Sequence[Op], forbidden: Tensor) -> str:
    scores, time = op.inputs[0], len(forbidden)
    dim = next((value for value in op.arguments[1:] if isinstance(value, int) and not isinstance(value, bool)), -1)
    if square(scores, time) is None:
        return "a softmax over the time axis hears every position"
    if dim % scores.ndim == scores.ndim - 2:
        return (
            f"softmax over queries (dim={dim}): each weight is divided by a sum over later queries. Take the last axis"
        )
    fault = fault_of_scores(scores, forbidden)
    if fault.startswith("no mask") and _masked_after(op, ops, forbidden):
        return "the mask is applied after the softmax: the sum that it divides by has heard everything"
    return fault


def _masked_after(op: Op, ops: Sequence[Op], forbidden: Tensor) -> bool:
    """Are the forbidden weights zeroed by one of the next ops?"""
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
            return f"is_causal is aligned at the top left, with {q_len} queries and {k_len} keys: a cache shifts it"
        return ""
    if not masks:
        return "no mask reaches this attention: attn_mask is None and is_causal False"
    mask = masks[0] if masks[0].dtype == torch.bool else masks[0] > BLOCKS
    if mask.shape[-2] not in (1, q_len) or mask.shape[-1] not in (1, k_len) or not q_len <= k_len <= len(forbidden):
        return ""
    rows = mask.expand(*mask.shape[:-2], q_len, k_len).reshape(-1, q_len, k_len)
    q_start = k_len - q_len
    return fault_of_mask(rows, forbidden[q_start:k_len, :k_len], q_start)


def _mask_in_words(op: Op) -> Mask:
    words, numbers, data = op.arguments[6:9]
    # The mask's own tensors are the last of the inputs.
    return mask_of(words, numbers, op.inputs[len(op.inputs) - len(data) :])


def _values(op: Op) -> list[Any]:
    *positional, keywords = op.arguments
    return [*positional, *keywords.values()]


def _convolution(op: Op, hears: Hears | None) -> str:
    weight = op.inputs[1]
    kernel = weight.shape[-1]
    lists = [
        value for value in op.arguments if isinstance(value, (list, tuple)) and value and isinstance(value[0], int)
    ]
    dilation = lists[2][-1] if len(lists) > 2 else 1
    pad = lists[1][-1] if len(lists) > 1 else 0
    whole = (kernel - 1) * dilation
    ahead = whole - pad if pad else _lookahead(hears)
    if not ahead:
        return "the convolution reads ahead"
    steps = f"{ahead} step{'s' if ahead > 1 else ''}"
    return (
        f"the convolution pads the future: its kernel of {kernel} reaches {steps} ahead. Pad {whole} on the left only"
    )


def softmax_before(op: Op, run: Sequence[Op]) -> Op | None:
    """The softmax that a product has its weights from, a few steps before."""
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
    """The shape of the leak in words: how far ahead, or within which blocks.

    >>> forbidden = torch.ones(4, 4).triu(1).bool()
    >>> shape_words(Hears(torch.ones(4, 4).tril(1), forbidden, (0, 1, 2, 3)))
    'each position hears exactly the next one'
    """
    from rearview.audit.place.scores import block_size

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
        return f"positions hear up to {int(ahead.max())} ahead"
    if bool((ahead < 0).all()):
        return f"positions hear as far back as {int((-ahead).max())}"
    return f"{len(query)} of {int(hears.forbidden.sum())} forbidden pairs are heard"
