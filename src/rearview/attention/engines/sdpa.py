"""PyTorch's fused kernels, for what they express exactly.

    >>> import torch
    >>> from rearview import attend, causal
    >>> x = torch.randn(1, 2, 5, 8)
    >>> attend(x, x, x, mask=causal(), engine="sdpa").shape
    torch.Size([1, 2, 5, 8])

Five traps of `scaled_dot_product_attention` are dealt with here:

- its `is_causal` counts from the top left, so it is used only for queries that start at position 0;
- a row with no visible key is NaN or the mean of V on some backends, so it is given one key and its output set to 0;
- a dense mask is *added* to the scores, and some kernels split float32 into smaller numbers, so a finite but huge
  number at a forbidden key can become NaN there: the engine refuses inputs that large;
- cuDNN blocks with a finite number where a dense mask says -inf, which a large score outweighs: it gets no dense mask;
- a scale of 0 or below gives NaN in its causal CPU kernel, so the sign goes into the query.
"""

import contextlib
import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rearview.attention.bias import Alibi
from rearview.attention.call import Call
from rearview.drawing.cells import in_bytes

name = "sdpa"
summary = "PyTorch's fused kernels"
where = "anywhere"

HALVES = (torch.float16, torch.bfloat16)
SHORT_PAIRS = 256 * 256
# Up to this many pairs per sequence the overhead of calls dominates, and one call on all pairs is the fastest.
SMALL_PAIRS = 128 * 128


def refusals(call: Call) -> list[str]:
    reasons = []
    if call.pages is not None:
        reasons.append("it does not read pages")
    if call.batch_invariant:
        reasons.append("PyTorch's kernels add up in an order that depends on the sizes")
    if call.needs_lse:
        reasons.append("it does not return the log-sum-exp")
    if call.softcap is not None:
        reasons.append("it has no softcap")
    if call.dropout and call.generator is not None:
        reasons.append("its dropout takes no generator")
    if call.bias is not None and call.device.type != "cpu":
        dtype = call.work_dtype if isinstance(call.bias, Alibi) else call.bias.dtype
        if dtype != call.query.dtype:
            reasons.append(f"it would round a bias of {dtype} to {call.query.dtype}")
    if call.has_tangents:
        reasons.append("it has no forward-mode derivatives")
    if not reasons and _may_overflow(call):
        reasons.append("inputs this large can overflow to inf at keys that the mask forbids, and inf x 0 is NaN")
    return reasons


def reason_to_take(call: Call) -> str | None:
    if not call.needs_dense_mask:
        return "the fused kernel expresses this mask without a dense tensor"
    # A single query is cut to its ranges by other engines with one slice.
    if call.frame.q_len > 1 and call.frame.q_len * call.frame.k_len <= SMALL_PAIRS:
        return "at this size one fused call with a dense mask costs less than several exact ones"
    return None


def reason_not_taken(call: Call, taken: str) -> str:
    if call.needs_dense_mask:
        return f"it would compute every pair, with a dense mask of {in_bytes(memory(call))}"
    return f"it expresses this mask exactly too, but {taken} was measured to be faster"


def memory(call: Call) -> int:
    if not call.needs_dense_mask:
        return 0
    # One bool per pair; with a bias, one number per pair, for every item and head in which either of the two differs.
    pairs, batch, heads, bias = (
        call.frame.q_len * call.frame.k_len,
        call.mask.batch or 1,
        call.mask.heads or 1,
        call.bias,
    )
    if bias is None:
        return batch * heads * pairs
    own = (1, len(bias.slopes)) if isinstance(bias, Alibi) else bias.shape[:2]
    return max(batch, own[0]) * max(heads, own[1]) * pairs * call.work_dtype.itemsize


def run(call: Call) -> tuple[Tensor, None]:
    (query, scale), key, value, attn_mask, empty = _with_positive_scale(call), call.key, call.value, None, None
    dense = call.needs_dense_mask
    is_causal = not dense and call.is_causal_from_zero
    if is_causal:
        # No query hears the keys after the last query; is_causal must not see them.
        key, value = key[:, :, : call.frame.q_len], value[:, :, : call.frame.q_len]
        query, key, value = (_as_rows(tensor) for tensor in (query, key, value))
    elif dense:
        key, value = call.shielded()
        attn_mask, empty = _dense_mask(call)
    elif not call.hears_everything:
        return _one_query(call), None
    kernels = _kernels(call, dense=dense)
    if _is_slow_in_half(call):
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
            dropout_p=call.dropout,
            scale=scale,
            enable_gqa=call.key_heads != call.heads,
        )
    out = out.to(call.query.dtype)
    return (out if empty is None else out.masked_fill(empty, 0)), None


def prepared(call: Call) -> Callable[..., tuple[Tensor, None] | None] | None:
    """`run` for calls like this one, where it is a single call of PyTorch and no value is read."""
    if call.frame.q_len == 1:
        return _prepared_step(call)
    reads_values = not call.hears_everything and not _masks_by_filling(call)
    are_rows = all([_is_rows(tensor) for tensor in (call.query, call.key, call.value)])
    is_one_call = call.is_causal_from_zero or call.hears_everything
    if not (are_rows and is_one_call) or call.needs_dense_mask or reads_values:
        return None
    if call.scale <= 0 or _is_slow_in_half(call):
        return None
    is_causal, q_len, scale, grouped = (
        call.is_causal_from_zero,
        call.frame.q_len,
        call.scale,
        call.key_heads != call.heads,
    )
    cut = is_causal and q_len < call.frame.k_len
    order = None
    if call.device.type == "cuda":
        order = [int(each) for each in _order(call, dense=False)]  # pyright: ignore[reportArgumentType]
        order += [each for each in torch._C._get_sdp_priority_order() if each not in order]

    def forward(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> tuple[Tensor, None]:
        if cut:
            key, value = key[:, :, :q_len], value[:, :, :q_len]
        if order is None:
            out = F.scaled_dot_product_attention(
                query, key, value, is_causal=is_causal, scale=scale, enable_gqa=grouped
            )
            return out, None
        # What `sdpa_kernel(order, set_priority=True)` does to the order, without the 30 us that it takes.
        before = torch._C._get_sdp_priority_order()
        torch._C._set_sdp_priority_order(order)
        try:
            out = F.scaled_dot_product_attention(
                query, key, value, is_causal=is_causal, scale=scale, enable_gqa=grouped
            )
        finally:
            torch._C._set_sdp_priority_order(before)
        return out, None

    return forward


def _prepared_step(call: Call) -> Callable[..., tuple[Tensor, None] | None] | None:
    """One query at the last position of any number of keys, of which it hears one range."""
    is_last = call.frame.q_start == call.frame.k_len - 1 and call.bias is None
    if not is_last or call.scale <= 0 or _is_slow_in_half(call) or call.mask.range_of_step(call.frame.k_len) is None:
        return None
    mask, scale, grouped = call.mask, call.scale, call.key_heads != call.heads

    def step(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> tuple[Tensor, None] | None:
        k_len = key.shape[2]
        heard = mask.range_of_step(k_len)
        if heard is None:
            return None
        if heard != (0, k_len):
            key, value = key[:, :, heard[0] : heard[1]], value[:, :, heard[0] : heard[1]]
        return F.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=grouped), None

    return step


def _with_positive_scale(call: Call) -> tuple[Tensor, float]:
    """The query and a scale above 0 that give the same scores."""
    if call.scale > 0:
        return call.query, call.scale
    return (-call.query, -call.scale) if call.scale < 0 else (call.query * 0, 1.0)


def _one_query(call: Call) -> Tensor:
    """Attention on the ranges that are heard, sliced out of the keys; item by item where the ranges differ."""
    assert call.heard_ranges is not None, "a mask that nothing else can say is dense, or a few ranges"
    query, scale = _with_positive_scale(call)
    whole = (query, call.key, call.value)
    items = [whole] if len(call.heard_ranges) == 1 else list(zip(*(each.split(1) for each in whole), strict=True))
    heard = [
        F.scaled_dot_product_attention(
            query,
            _cut(key, ranges),
            _cut(value, ranges),
            dropout_p=call.dropout,
            scale=scale,
            enable_gqa=call.key_heads != call.heads,
        )
        for (query, key, value), ranges in zip(items, call.heard_ranges, strict=True)
    ]
    return heard[0] if len(heard) == 1 else torch.cat(heard)


def _cut(keys: Tensor, ranges: tuple[slice, ...]) -> Tensor:
    parts = [keys[:, :, part] for part in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _is_slow_in_half(call: Call) -> bool:
    # On a CPU the backward of short sequences in half precision takes three times as long as the copies to float32
    # and back; from a few hundred positions on they are even.
    short = call.frame.q_len * call.frame.k_len <= SHORT_PAIRS
    return short and call.query.dtype in HALVES and call.device.type == "cpu" and call.needs_grad


def _dense_mask(call: Call) -> tuple[Tensor, Tensor | None]:
    visible, empty = call.visible(), None
    spans = call.spans
    if spans is None or spans.some_row_empty:
        empty = ~visible.any(-1, keepdim=True)
        first_key = torch.zeros_like(visible)
        first_key[..., 0] = True
        visible = visible | (empty & first_key)
    bias = call.dense_bias()
    if bias is None:
        return visible, empty
    # A CPU takes a bias in the query's dtype or in the one that it computes in, and no other.
    bias = bias if bias.dtype == call.query.dtype else bias.to(call.work_dtype)
    return torch.where(visible, bias, -torch.inf), empty


def _may_overflow(call: Call) -> bool:
    """Could a finite input become inf where the mask forbids, and be noticed?"""
    dense = call.needs_dense_mask
    # Keys that are cut out need no mask at all.
    masks_by_filling = not dense and _masks_by_filling(call)
    masks_nothing = call.hears_everything or (not dense and call.heard_ranges is not None)
    # Sums of products of float16 numbers fit float32. Reading the values stops a compiled graph: there, they are
    # trusted. (On a GPU it waits for the stream.)
    exempt = call.query.dtype == torch.float16 or torch.compiler.is_compiling()
    if masks_by_filling or masks_nothing or exempt or 0 in (call.query.numel(), call.key.numel()):
        return False
    try:
        # Keys that no query hears may hold anything. They are zeroed, which takes a copy, only where it may matter.
        if _stays_in_range(call, call.key, call.value):
            return False
        key, value = call.shielded()
        return not _stays_in_range(call, key, value) and _all_finite(call.query, key, value)
    except RuntimeError:
        # Under vmap there are no values to read; they are trusted, as in a compiled graph.
        return False


def _masks_by_filling(call: Call) -> bool:
    """Whether the kernel that PyTorch takes for `is_causal` fills forbidden scores in, so that they may be inf.

    Its slow path adds -inf, and inf - inf is NaN. On a CPU that is the path for dropout, for values of another dim than
    the keys, and for rows that are not contiguous in memory, which `run` copies.
    """
    if call.device.type == "cpu":
        return not call.dropout and call.value.shape[-1] == call.query.shape[-1]
    return call.query.dtype in HALVES


def _is_rows(tensor: Tensor) -> bool:
    return tensor.stride(-1) == 1


def _as_rows(tensor: Tensor) -> Tensor:
    # A tensor of one column counts as contiguous with any stride, and is not copied by contiguous().
    return tensor if _is_rows(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def _stays_in_range(call: Call, key: Tensor, value: Tensor) -> bool:
    # One stack, so that a GPU is waited for once. A NaN anywhere hides how large the rest is: out of range.
    tops = torch.stack([tensor.detach().abs().amax() for tensor in (call.query, key, value)]).double().tolist()
    query_top, key_top, value_top = tops
    score = query_top * key_top * call.query.shape[-1] * max(1.0, abs(call.scale))
    return all(map(math.isfinite, tops)) and max(score, 2 * value_top) < torch.finfo(call.work_dtype).max


def _all_finite(*tensors: Tensor) -> bool:
    # Inputs that are inf or NaN at keys that are heard give whatever arithmetic gives: that is no reason to refuse.
    return all(bool(tensor.detach().isfinite().all()) for tensor in tensors)


def _kernels(call: Call, *, dense: bool) -> contextlib.AbstractContextManager[object]:
    # Choosing kernels takes longer than one query does, and there any kernel is as good.
    if call.device.type != "cuda" or (call.frame.q_len == 1 and not dense):
        return contextlib.nullcontext()
    return sdpa_kernel(_order(call, dense=dense), set_priority=True)


def _order(call: Call, *, dense: bool) -> list[SDPBackend]:
    """PyTorch's kernels on a GPU, in the order in which they should be tried."""
    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if not dense:
        # On Hopper cuDNN's kernel is 1.3-1.8 times faster than the one that PyTorch prefers.
        order.insert(0 if _is_hopper(call.device) else 2, SDPBackend.CUDNN_ATTENTION)
    return order


@cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9
