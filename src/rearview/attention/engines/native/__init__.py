"""The CPU kernel of rearview: C++ on ranges, forward and backward, called through a plain C interface.

    >>> import torch
    >>> from rearview import attend, causal, window
    >>> x = torch.randn(1, 2, 6, 8)
    >>> if library.MISSING is None:
    ...     got = attend(x, x, x, mask=causal() & window(3), engine="native")
    ...     assert torch.allclose(got, attend(x, x, x, mask=causal() & window(3), engine="reference"), atol=1e-6)

`isas()` are the instruction sets at hand, `isa()` is the one in use, `force_isa(name)` chooses. The source is in
native/ at the top of the repository; how it is built is in docs/native.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rearview.attention.call import Call
from rearview.attention.engines import sdpa
from rearview.attention.engines.native import kernel, library, op
from rearview.attention.engines.native.cascade import in_pages
from rearview.attention.engines.native.function import NativeAttention, PlainAttention, is_plain
from rearview.attention.engines.native.library import force_isa, isa, isas
from rearview.attention.engines.native.measured import sdpa_is_faster
from rearview.attention.engines.native.ranges import keys_to_name, one_range, ranges_for
from rearview.masks.encoding import can_encode

name = "native"
summary = "our C++ kernel on ranges"
where = "CPUs"

LARGEST_DIM = 256

__all__ = [
    "force_isa", "isa", "isas", "memory", "name", "prepared", "reason_not_taken", "reason_to_take", "refusals", "run",
    "summary", "where",
]  # fmt: skip


def refusals(call: Call) -> list[str]:
    if library.MISSING is not None:
        return [library.MISSING]
    if library.WRONG_ENVIRONMENT:
        library.check_environment()
    reasons = []
    if call.device.type != "cpu":
        reasons.append(f"it is a CPU kernel, and the tensors are on {call.device.type}")
    if not call.mask.has_ranges:
        reasons.append("the mask has no range form, and ranges are all that it reads of one")
    if max(call.query.shape[-1], call.value.shape[-1]) > LARGEST_DIM:
        reasons.append(f"its head dims go up to {LARGEST_DIM}")
    if call.has_tangents:
        reasons.append("it has no forward-mode derivatives")
    if call.batch_invariant and call.dropout:
        reasons.append("what its dropout drops depends on the place in the batch")
    if call.pages is not None:
        if call.needs_grad:
            reasons.append("it has no gradients through pages")
        if torch.compiler.is_compiling() or not is_plain(*_tensors(call)):
            reasons.append("it reads pages of plain tensors only, outside of compiled graphs and transforms")
    if torch.compiler.is_compiling():
        if not can_encode(call.mask):
            reasons.append("the mask cannot be carried by a compiled graph")
        if call.dropout and call.generator is not None:
            reasons.append("a compiled graph cannot draw from a generator; torch.manual_seed works")
    return reasons


def reason_to_take(call: Call) -> str | None:
    """On a CPU, wherever it was measured to be the fastest, at any length, mask and option.

    Not under torch.func and forward-mode derivatives, of which it supports only a part. Nor where PyTorch's kernel
    needs no dense mask and is faster by the table in `measured.py`.
    """
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    if not library.IS_FAST or call.device.type != "cpu" or transformed:
        return None
    slower = sdpa_is_faster(call, isa=library.ISA, has_tiles=library.HAS_TILES)
    if slower and not call.needs_dense_mask and not sdpa.refusals(call):
        return None
    return "the C++ kernel computes the visible pairs only, on all cores"


def reason_not_taken(call: Call, taken: str) -> str:
    return f"on this processor, or under torch.func, it was not measured to be faster than {taken}"


def memory(call: Call) -> int:
    # The log-sum-exp; per thread, the values of one head and, for backward, its queries in the forms that it reads.
    dims, rows = call.query.shape[-1] + call.value.shape[-1], call.frame.q_len * call.queries_per_key_head
    per_head = call.frame.k_len * call.value.shape[-1] + (rows * 3 * dims if call.needs_grad else 0)
    lse = call.batch * call.heads * call.frame.q_len
    return (lse + torch.get_num_threads() * per_head) * call.work_dtype.itemsize


def run(call: Call) -> tuple[Tensor, Tensor]:
    tensors = _tensors(call)
    # torch.jit.trace would record the memory that is made for the answer, and not what fills it.
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return op.attention(*tensors, *op.options_of(call, call.drawn_seed()))
    plain = is_plain(*tensors)
    if not plain or call.needs_grad:
        function = PlainAttention if plain else NativeAttention
        return function.apply(*tensors, _drawn(call).without_tensors())  # pyright: ignore[reportReturnType]
    if call.pages is not None:
        return in_pages(_drawn(call))
    if call.frame.q_len == 1 and tensors[3] is None and (heard := call.simplified.one_range(call.frame)):
        return _step(call.query, call.key, call.value, *heard, kernel.terms_of(_drawn(call), call.sinks))
    return kernel.forward(*tensors[:4], ranges_for(call, call.key_heads), kernel.terms_of(_drawn(call), call.sinks))


def prepared(call: Call) -> Callable[..., tuple[Tensor, Tensor] | None] | None:
    """`run` for calls like this one, of plain tensors; with any number of keys if there is one query."""
    if call.bias_tensor is not None or call.pages is not None or not is_plain(*_tensors(call)):
        return None
    if call.frame.q_len == 1 and call.frame.q_start == call.frame.k_len - 1 and not call.needs_grad:
        return None if call.simplified.one_range(call.frame) is None else _prepared_step(call)
    if call.frame.q_len == 1:
        return None
    if call.needs_grad:
        kept = call.without_tensors()
        return lambda query, key, value, sinks: PlainAttention.apply(query, key, value, None, sinks, kept)  # pyright: ignore[reportReturnType]
    ranges, terms = ranges_for(call, call.key_heads), kernel.terms_of(call)

    def forward(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        own: kernel.Terms = terms if sinks is None else {**terms, "sinks": sinks.detach().contiguous()}
        return kernel.forward(query, key, value, None, ranges, own)

    return forward


def _prepared_step(call: Call) -> Callable[..., tuple[Tensor, Tensor] | None]:
    mask, terms = call.mask, kernel.terms_of(call)

    def step(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor] | None:
        k_len = key.shape[2]
        heard = mask.range_of_step(k_len)
        if heard is None:
            return None
        own: kernel.Terms = {**terms, "q_start": k_len - 1}
        if sinks is not None:
            own["sinks"] = sinks.detach().contiguous()
        return _step(query, key, value, *heard, own)

    return step


def _tensors(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    return call.query, call.key, call.value, call.bias_tensor, call.sinks


def _drawn(call: Call) -> Call:
    return replace(call, seed=call.drawn_seed()) if call.dropout else call


def _step(
    query: Tensor, key: Tensor, value: Tensor, start: int, end: int, terms: kernel.Terms
) -> tuple[Tensor, Tensor]:
    """One query and the keys [start, end), which are all that it hears: they need no mask any more."""
    if terms["batch_invariant"]:
        # In a prefill the same query is summed up over the keys from position 0 on, in the same tiles.
        heard = one_range(start, end, keys=keys_to_name(query, end))
        return kernel.forward(query, key[:, :, :end], value[:, :, :end], None, heard, terms)
    if (start, end) != (0, key.shape[2]):
        key, value = key[:, :, start:end], value[:, :, start:end]
        # Positions count from the first key that is there.
        terms["q_start"] -= start
    return kernel.forward(query, key, value, None, one_range(0, end - start), terms)
