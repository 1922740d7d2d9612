"""Ops over whole axes: sums, extremes, sorting, transforms. Every output hears everything along the axis.

Constants have heard nothing, so a certain -inf or 0 adds nothing to a sum, a maximum or a top-k.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> prove(lambda x: x - x.mean(dim=1, keepdim=True), torch.rand(1, 3, 4)).matrix().int().tolist()
[[1, 1, 1], [1, 1, 1], [1, 1, 1]]
"""

from typing import Any

from torch import Tensor

from rearview.auditing.proof.op_call import OpCall
from rearview.auditing.proof.rules.attention import hidden
from rearview.auditing.proof.rules.matmul import contract
from rearview.auditing.proof.rules.pointwise import pointwise
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import align, forget, over, unmark

LARGEST = ("amax", "max", "argmax", "logsumexp")


def outputs(call: OpCall) -> int:
    return 1 if isinstance(call.out, Tensor) else len(call.out)


@rule(
    *("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "var", "std", "logsumexp"),
    *("norm", "linalg_vector_norm", "aminmax", "median", "nanmedian", "mode", "var_mean", "std_mean", "nansum"),
    *("nanmean", "kthvalue", "count_nonzero", "trace"),
)
def reduce(call: OpCall) -> Any:
    """Along the given axes, or all of them."""
    if call.func._overloadname == "other":
        return pointwise(call)
    item = call.args[0]
    sets = unmark(item.sets)
    if sets is None:
        return [None] * outputs(call)
    dims = call.dims(call["dim"] if call["dim"] is not None else call["dims"], item.ndim)
    sets = align(sets, item.ndim)
    if call.name in LARGEST and len(dims) == 1 and (gone := hidden(call, item, None, dims[0])) is not None:
        # As in a softmax: what stays far below the largest neither is the largest nor adds to it.
        sets = forget(sets, gone)
    sets = over(sets, dims, keepdim=bool(call["keepdim"]))
    first = call.out if isinstance(call.out, Tensor) else call.out[0]
    sets = align(sets, first.dim()) if sets.dim() <= first.dim() + 1 else sets.reshape(*[1] * first.dim(), -1)
    return [sets] * outputs(call)


@rule("sort", "topk", "argsort", "msort")
def order(call: OpCall) -> Any:
    """Which element is at place k depends on all elements along the axis, and so does the index."""
    item = call.args[0]
    sets = unmark(item.sets)
    if sets is None or item.ndim == 0:
        return [sets] * outputs(call)
    dim = call["dim"] if call["dim"] is not None else -1
    sets = over(align(sets, item.ndim), [dim % item.ndim], keepdim=True)
    return [sets] * outputs(call)


@rule("_fft_r2c", "_fft_c2r", "_fft_c2c")
def fft(call: OpCall) -> Tensor | None:
    item = call.args[0]
    sets = unmark(item.sets)
    return None if sets is None else over(align(sets, item.ndim), call.dims(call["dim"], item.ndim), keepdim=True)


@rule(
    *("linalg_cholesky_ex", "cholesky", "linalg_qr", "linalg_eigh", "_linalg_eigh"),
    *("_linalg_svd", "_linalg_det", "_linalg_slogdet", "linalg_lu_factor_ex", "linalg_matrix_exp", "linalg_pinv"),
    *("linalg_eig", "_linalg_eigvals"),
)
def matrices(call: OpCall) -> Any:
    """Every element of a matrix (the last two axes) hears the whole matrix."""
    item = call.args[0]
    sets = unmark(item.sets)
    if sets is None:
        return [None] * outputs(call)
    sets = over(align(sets, item.ndim), [item.ndim - 2, item.ndim - 1], keepdim=True)
    outs = [call.out] if isinstance(call.out, Tensor) else call.out
    batch = item.ndim - 2
    return [sets.reshape(*sets.shape[:batch], *[1] * (out.dim() - batch), sets.shape[-1]) for out in outs]


@rule("histc", "bincount", "isin", "unique_dim", "_unique2", "unique_consecutive")
def whole(call: OpCall) -> Any:
    """The whole input decides each output and, except for histc and isin, its shape."""
    return call.state.all_of(call) if call.name in ("histc", "isin") else call.state.escape(call)


@rule("_cdist_forward", "_euclidean_dist", "cdist")
def distances(call: OpCall) -> Tensor | None:
    a, b = call.args[:2]
    sets_b = None if b.sets is None else align(b.sets, b.ndim).transpose(-3, -2)
    sets_a = None if a.sets is None else align(a.sets, a.ndim)
    return contract(sets_a, None, sets_b, None, call.out.dim())
