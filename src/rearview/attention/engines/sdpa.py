"""PyTorch's fused kernels, for what they express exactly.

    >>> import torch
    >>> from rearview import attend, causal
    >>> x = torch.randn(1, 2, 5, 8)
    >>> attend(x, x, x, mask=causal(), engine="sdpa").shape
    torch.Size([1, 2, 5, 8])

Four traps of `scaled_dot_product_attention` are dealt with here:

- its `is_causal` counts from the top left, so it is used only for queries that start at position 0;
- a row with no visible key is NaN or the mean of V on some backends, so it is given one key and its output set to 0;
- a dense mask is *added* to the scores, and some kernels split float32 into smaller numbers, so a finite but huge
  number at a forbidden key can become NaN there: the engine refuses inputs that large;
- cuDNN blocks with a finite number where a dense mask says -inf, which a large score outweighs: it gets no dense mask.
"""

import contextlib
import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rearview.attention.bias import Alibi
from rearview.attention.request import Request
from rearview.masks.families import Causal

name = "sdpa"
summary = "PyTorch's fused kernels"

HALVES = (torch.float16, torch.bfloat16)
SHORT_PAIRS = 256 * 256


def needs_dense_mask(request: Request) -> bool:
    """Can neither "no mask", over the keys that are heard, nor `is_causal` say it?"""
    if request.bias is not None:
        return True
    return not (request.hears_everything or _is_causal_from_zero(request) or request.heard_ranges is not None)


def refusals(request: Request) -> list[str]:
    reasons = []
    if request.return_lse:
        reasons.append("it does not return the log-sum-exp")
    if request.softcap is not None:
        reasons.append("it has no softcap")
    if request.dropout and request.generator is not None:
        reasons.append("its dropout takes no generator")
    if request.bias is not None and request.device.type != "cpu":
        dtype = request.work_dtype if isinstance(request.bias, Alibi) else request.bias.dtype
        if dtype != request.query.dtype:
            reasons.append(f"it would round a bias of {dtype} to {request.query.dtype}")
    if not reasons and _may_overflow(request):
        reasons.append("inputs this large can overflow to inf at keys that the mask forbids, and inf x 0 is NaN")
    return reasons


def run(request: Request) -> tuple[Tensor, None]:
    query, key, value, attn_mask, empty = request.query, request.key, request.value, None, None
    dense = needs_dense_mask(request)
    is_causal = not dense and _is_causal_from_zero(request)
    if is_causal:
        # Keys after the last query are heard by nobody; is_causal must not see them.
        key, value = key[:, :, : request.frame.q_len], value[:, :, : request.frame.q_len]
    elif dense:
        key, value = request.shielded()
        attn_mask, empty = _dense_mask(request)
    elif not request.hears_everything:
        return _one_query(request), None
    kernels = _kernels(request, dense=dense)
    if _is_slow_in_half(request):
        query, key, value = query.float(), key.float(), value.float()
        attn_mask = attn_mask.float() if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
        # Autocast would cast them back.
        kernels = torch.autocast("cpu", enabled=False)
    with kernels:
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attn_mask,
            is_causal=is_causal,
            dropout_p=request.dropout,
            scale=request.scale,
            enable_gqa=request.key_heads != request.heads,
        )
    out = out.to(request.query.dtype)
    return (out if empty is None else out.masked_fill(empty, 0)), None


def _one_query(request: Request) -> Tensor:
    """What is heard, cut out of the keys: item by item where they differ, as in a batch that is not equally far."""
    assert request.heard_ranges is not None, "a mask that nothing else can say is dense, or a few ranges"
    whole = (request.query, request.key, request.value)
    items = [whole] if len(request.heard_ranges) == 1 else list(zip(*(each.split(1) for each in whole), strict=True))
    heard = [
        F.scaled_dot_product_attention(
            query,
            _cut(key, ranges),
            _cut(value, ranges),
            dropout_p=request.dropout,
            scale=request.scale,
            enable_gqa=request.key_heads != request.heads,
        )
        for (query, key, value), ranges in zip(items, request.heard_ranges, strict=True)
    ]
    return heard[0] if len(heard) == 1 else torch.cat(heard)


def _cut(keys: Tensor, ranges: tuple[slice, ...]) -> Tensor:
    parts = [keys[:, :, part] for part in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _is_slow_in_half(request: Request) -> bool:
    # On a CPU the backward of short sequences in half precision takes three times as long as the copies to float32
    # and back; from a few hundred positions on they are even.
    short = request.frame.q_len * request.frame.k_len <= SHORT_PAIRS
    return short and request.query.dtype in HALVES and request.device.type == "cpu" and request.needs_grad


def _is_causal_from_zero(request: Request) -> bool:
    frame = request.frame
    return isinstance(request.simplified, Causal) and frame.q_start == 0 and frame.q_len <= frame.k_len


def _dense_mask(request: Request) -> tuple[Tensor, Tensor | None]:
    visible, empty = request.visible(), None
    spans = request.spans
    if spans is None or spans.some_row_empty:
        empty = ~visible.any(-1, keepdim=True)
        first_key = torch.zeros_like(visible)
        first_key[..., 0] = True
        visible = visible | (empty & first_key)
    bias = request.dense_bias()
    if bias is None:
        return visible, empty
    # A CPU takes a bias in the query's dtype or in the one that it computes in, and no other.
    bias = bias if bias.dtype == request.query.dtype else bias.to(request.work_dtype)
    return torch.where(visible, bias, -torch.inf), empty


def _may_overflow(request: Request) -> bool:
    """Could a finite input become inf where the mask forbids, and be noticed?"""
    dense = needs_dense_mask(request)
    # Keys that are cut out need no mask at all.
    masks_by_filling = not dense and (request.device.type == "cpu" or request.query.dtype in HALVES)
    masks_nothing = request.hears_everything or (not dense and request.heard_ranges is not None)
    # Sums of products of float16 numbers fit float32. Reading the values stops a compiled graph: there, they are
    # trusted. (On a GPU it waits for the stream.)
    exempt = request.query.dtype == torch.float16 or torch.compiler.is_compiling()
    if masks_by_filling or masks_nothing or exempt or 0 in (request.query.numel(), request.key.numel()):
        return False
    try:
        # What nobody hears may be anything. It is looked past, at the price of a copy, only where it may matter.
        if _stays_in_range(request, request.key, request.value):
            return False
        key, value = request.shielded()
        return not _stays_in_range(request, key, value) and _all_finite(request.query, key, value)
    except RuntimeError:
        # Under vmap there are no values to read; they are trusted, as in a compiled graph.
        return False


def _stays_in_range(request: Request, key: Tensor, value: Tensor) -> bool:
    # One stack, so that a GPU is waited for once. A NaN anywhere hides how large the rest is: out of range.
    tops = torch.stack([tensor.detach().abs().amax() for tensor in (request.query, key, value)]).double().tolist()
    query_top, key_top, value_top = tops
    score = query_top * key_top * request.query.shape[-1] * max(1.0, abs(request.scale))
    return all(map(math.isfinite, tops)) and max(score, 2 * value_top) < torch.finfo(request.work_dtype).max


def _all_finite(*tensors: Tensor) -> bool:
    # Inputs that are inf or NaN where somebody hears them are not this engine's to judge.
    return all(bool(tensor.detach().isfinite().all()) for tensor in tensors)


def _kernels(request: Request, *, dense: bool) -> contextlib.AbstractContextManager[object]:
    # Choosing kernels takes longer than one query does, and there any kernel is as good.
    if request.device.type != "cuda" or (request.frame.q_len == 1 and not dense):
        return contextlib.nullcontext()
    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if not dense:
        # On Hopper cuDNN's kernel is 1.3-1.8 times faster than the one that PyTorch prefers.
        order.insert(0 if _is_hopper(request.device) else 2, SDPBackend.CUDNN_ATTENTION)
    return sdpa_kernel(order, set_priority=True)


@cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9
