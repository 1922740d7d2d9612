"""Calls that are repeated: what `attend` worked out for a call, remembered with the mask for calls of the same kind.

    >>> import torch
    >>> from rearview import attend, causal
    >>> mask, x = causal(), torch.randn(1, 2, 8, 16)
    >>> first, second = attend(x, x, x, mask=mask), attend(x, x, x, mask=mask)
    >>> torch.equal(first, second), len(plans_of(mask)) > 0
    (True, True)

The checks of the arguments, the choice of an engine and what the engine derives from the mask depend on shapes,
strides, dtypes, the device, options, and on modes of torch, but not on the values of the tensors. A `Kind` has all of
them, so a call of a known kind goes straight to the function that its engine prepared. Masks are immutable, so what is
remembered stays valid; it is dropped together with the mask.

A call is not remembered under a transform, a mode or a compiler, with tensors that are not plain, and with options that
are not listed in `PLAIN_OPTIONS`. Such calls take the usual way, and so do all calls that raise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from rearview.attention.bias import Alibi
from rearview.attention.call import Call
from rearview.attention.engines import ENGINES
from rearview.attention.sequence_shard import active_shard
from rearview.masks import Mask

# (query, key, value, sinks, and lengths if there are any) -> out, log-sum-exp. None where it cannot serve the call.
Prepared = Callable[..., "tuple[Tensor, Tensor | None] | None"]
Kind = tuple[Any, ...]

DEFAULT_MASK: Mask = inspect.signature(Call.of).parameters["mask"].default
# Bound once: a call asks all of them, and the way through the modules takes as long as the question.
dispatch_modes, function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
is_transforming, is_tracing = torch._C._are_functorch_transforms_active, torch._C._is_tracing
any_autocast, is_deterministic = torch._C._is_any_autocast_enabled, torch._C._get_deterministic_algorithms
STRIDED = torch.strided
# Options whose value is a part of the kind; and options that are tensors, whose shape and dtype are.
PLAIN_OPTIONS = {"mask", "q_start", "bias", "scale", "softcap", "dropout", "generator", "pages", "batch_invariant"}
PLAIN_VALUES = (type(None), int, float, bool, Alibi)
TENSOR_OPTIONS = ("sinks", "lengths")
# The kinds that a mask remembers. A generation has a few; a training has one or two.
MOST_KINDS = 64


def plans_of(mask: Mask) -> dict[Kind, Prepared | None]:
    """What is remembered for a mask, by kind; None for a kind that its engine prepares nothing for."""
    try:
        return mask._prepared
    except AttributeError:
        plans: dict[Kind, Prepared | None] = {}
        object.__setattr__(mask, "_prepared", plans)
        return plans


def kind_of(
    query: Tensor, key: Tensor, value: Tensor, engine: str, return_lse: bool, options: Mapping[str, Any]
) -> Kind | None:
    """All that an answer depends on besides the mask and the values of tensors; None for a call that is not plain."""
    if dispatch_modes() or function_modes() or is_transforming() or is_tracing() or forward_ad._current_level >= 0:
        return None
    # Not everything can be looked up, and 1 is equal to True.
    if type(engine) is not str or type(return_lse) is not bool:
        return None
    # On a layout the tensors are one rank's rows, and keys are exchanged first.
    if active_shard() is not None or not (_is_plain(query) and _is_plain(key) and _is_plain(value)):
        return None
    shape, key_shape, value_shape = query.shape, key.shape, value.shape
    if len(shape) != 4 or len(key_shape) != 4 or len(value_shape) != 4:
        return None
    if shape[2] == 1 and options.get("q_start") is None:
        # A step with a cache: the next one has one key more.
        if key_shape[2] != value_shape[2] or not key_shape[2]:
            return None
        key_shape, value_shape = (key_shape[0], key_shape[1], key_shape[3]), (*value_shape[:2], value_shape[3])
    device, grad = query.device, torch.is_grad_enabled()
    cast = None
    if any_autocast() and torch.is_autocast_enabled(device.type):
        cast = torch.get_autocast_dtype(device.type)
        if not query.dtype == key.dtype == value.dtype == cast:
            return None
    needs_grad = grad and (query.requires_grad or key.requires_grad or value.requires_grad)
    own = []
    for name, option in options.items():
        if name in TENSOR_OPTIONS:
            if option is not None:
                if not _is_plain(option) or option.device != device:
                    return None
                # On the usual way, sinks are cast to the dtype of sums.
                if name == "sinks" and option.dtype != (
                    torch.float64 if query.dtype == torch.float64 else torch.float32
                ):
                    return None
                needs_grad = needs_grad or (grad and option.requires_grad)
                option = (option.shape, option.stride(), option.dtype)
        elif name not in PLAIN_OPTIONS or (name != "mask" and type(option) not in PLAIN_VALUES):
            return None
        elif name == "mask":
            continue
        # 1, 1.0 and True are equal, and not all of them are accepted.
        own.append((name, option, type(option)))
    return (
        shape, query.stride(), query.dtype, device, key_shape, key.stride(), key.dtype, key.device,
        value_shape, value.stride(), value.dtype, value.device, engine, return_lse, needs_grad, cast,
        is_deterministic(), *own,
    )  # fmt: skip


def prepare(name: str, call: Call) -> Prepared | None:
    """The function for calls like this one that engine `name` prepares; None where it prepares none."""
    ready: Callable[[Call], Prepared | None] | None = getattr(ENGINES[name], "prepared", None)
    # What a dropout drops is another each time.
    return None if ready is None or call.dropout else ready(call)


def _is_plain(tensor: object) -> bool:
    """Whether this is an ordinary dense tensor whose memory holds its numbers."""
    kind = type(tensor)
    if kind is not Tensor and kind is not Parameter:
        return False
    return tensor.layout is STRIDED and not (tensor.is_neg() or tensor.is_nested)  # pyright: ignore[reportAttributeAccessIssue]
