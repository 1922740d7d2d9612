"""Ops over whole axes: sums, extremes, order, transforms. Every output hears all that stood along the axis.

Constants have heard nobody, so a -inf or a 0 that is certain adds nothing to a sum, a maximum or a top-k.

>>> import torch
>>> from rearview.audit.proof import prove
>>> prove(lambda x: x - x.mean(dim=1, keepdim=True), torch.rand(1, 3, 4)).matrix().int().tolist()
[[1, 1, 1], [1, 1, 1], [1, 1, 1]]
"""

from typing import Any

import torch
from torch import Tensor

from rearview.audit.proof.call import Call
from rearview.audit.proof.rules.attention import hidden
from rearview.audit.proof.rules.matmul import contract
from rearview.audit.proof.rules.pointwise import pointwise
from rearview.audit.proof.rules.registry import rule
from rearview.audit.proof.sets import align, forget, join, over, unmark

LARGEST = ("amax", "max", "argmax", "logsumexp")


def outputs(call: Call) -> int:
    return 1 if isinstance(call.out, Tensor) else len(call.out)


@rule(
    *("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "var", "std", "logsumexp"),
    *("norm", "linalg_vector_norm", "aminmax", "median", "nanmedian", "mode", "var_mean", "std_mean", "nansum"),
    *("nanmean", "kthvalue", "count_nonzero", "trace"),
)
def reduce(call: Call) -> Any:
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
        # As in a softmax: what stays far below the largest neither is it nor adds to it.
        sets = forget(sets, gone)
    sets = over(sets, dims, keepdim=bool(call["keepdim"]))
    first = call.out if isinstance(call.out, Tensor) else call.out[0]
    sets = align(sets, first.dim()) if sets.dim() <= first.dim() + 1 else sets.reshape(*[1] * first.dim(), -1)
    return [sets] * outputs(call)


@rule("sort", "topk", "argsort", "msort")
def order(call: Call) -> Any:
    """Who is at place k depends on everyone along the axis, and so does the index."""
    item = call.args[0]
    sets = unmark(item.sets)
    if sets is None or item.ndim == 0:
        return [sets] * outputs(call)
    dim = call["dim"] if call["dim"] is not None else -1
    sets = over(align(sets, item.ndim), [dim % item.ndim], keepdim=True)
    return [sets] * outputs(call)


@rule("_fft_r2c", "_fft_c2r", "_fft_c2c")
def fft(call: Call) -> Tensor | None:
    item = call.args[0]
    sets = unmark(item.sets)
    return None if sets is None else over(align(sets, item.ndim), call.dims(call["dim"], item.ndim), keepdim=True)


@rule(
    *("linalg_inv_ex", "inverse", "linalg_cholesky_ex", "cholesky", "linalg_qr", "linalg_eigh", "_linalg_eigh"),
    *("_linalg_svd", "_linalg_det", "_linalg_slogdet", "linalg_lu_factor_ex", "linalg_matrix_exp", "linalg_pinv"),
    *("linalg_eig", "_linalg_eigvals"),
)
def matrices(call: Call) -> Any:
    """Each matrix (the last two axes) is one thing."""
    item = call.args[0]
    sets = unmark(item.sets)
    if sets is None:
        return [None] * outputs(call)
    sets = over(align(sets, item.ndim), [item.ndim - 2, item.ndim - 1], keepdim=True)
    outs = [call.out] if isinstance(call.out, Tensor) else call.out
    batch = item.ndim - 2
    return [sets.reshape(*sets.shape[:batch], *[1] * (out.dim() - batch), sets.shape[-1]) for out in outs]


@rule("histc", "bincount", "isin", "unique_dim", "_unique2", "unique_consecutive")
def whole(call: Call) -> Any:
    """All of the input decides each output; and its shape, except for histc and isin."""
    return call.trace.all_of(call) if call.name in ("histc", "isin") else call.trace.escape(call)


@rule("linalg_solve_triangular", "triangular_solve")
def solve_triangular(call: Call) -> Any:
    """Row i of the solution of A X = B hears, along the chain of what is not certainly 0 in A, earlier rows."""
    a, b = call.args[:2]
    if call.name == "triangular_solve" or not call["left"]:
        return call.trace.all_of(call)
    n = a.shape[-1]
    zero = a.equal_to(0)
    used = torch.ones(n, n, dtype=torch.bool, device=a.value.device)
    used = used.triu() if call["upper"] else used.tril()
    used = used if zero is None else used & ~zero
    # Who reaches whom: powers of the relation, doubling until n.
    reach = used | torch.eye(n, dtype=torch.bool, device=used.device)
    for _ in range(max(1, n.bit_length())):
        reach = (reach.float() @ reach.float()) > 0
    ndim = call.out.dim()
    rows = None
    if a.sets is not None:
        sets = unmark(align(a.sets, a.ndim))
        # [.., i, k, c] over k, of the entries that are read
        rows = forget(sets, ~used).any(dim=-2).unsqueeze(-2)
    heard = join(ndim, rows, None if b.sets is None else unmark(align(b.sets, b.ndim)))
    if heard is None:
        return None
    heard = heard.expand(*heard.shape[:-3], n, *heard.shape[-2:])
    passed = torch.matmul(reach.float(), heard.flatten(-2).float()) > 0
    return passed.unflatten(-1, heard.shape[-2:])


@rule("_cdist_forward", "_euclidean_dist", "cdist")
def distances(call: Call) -> Tensor | None:
    a, b = call.args[:2]
    sets_b = None if b.sets is None else align(b.sets, b.ndim).transpose(-3, -2)
    sets_a = None if a.sets is None else align(a.sets, a.ndim)
    return contract(sets_a, None, sets_b, None, call.out.dim())
