"""Linear systems: row i of the solution of A X = B hears the rows that A connects it with.

Let R be the indices that i reaches through elements of A that are not certainly 0. The rows R of the system have
unknowns in R only, so they are a system of their own, which has a solution if the whole one does. X[i] is determined by
it, and hears the rows R of A and B and nothing else.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> lower = lambda x: torch.eye(3) + (x @ x.transpose(1, 2)).tril(-1)
>>> prove(lambda x: torch.linalg.solve(lower(x), x), torch.rand(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [1, 1, 0], [1, 1, 1]]
"""

from typing import Any

import torch
from torch import Tensor

from rearview.auditing.proof.op_call import Heard, OpCall
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import align, everything, forget, join, unmark


@rule("linalg_solve_triangular", "triangular_solve")
def solve_triangular(call: OpCall) -> Any:
    a, b = call.args[:2]
    if call.name == "triangular_solve" or not call["left"]:
        return call.state.all_of(call)
    ones = torch.ones(a.shape[-2:], dtype=torch.bool, device=a.value.device)
    return solution(a, b, ones.triu() if call["upper"] else ones.tril(), call.out)


@rule("_linalg_solve_ex", "linalg_solve_ex")
def solve(call: OpCall) -> Any:
    a, b = call.args[:2]
    everywhere = call.state.all_of(call)
    if call["left"] is False or b.ndim < 2 or b.ndim != a.ndim:
        return everywhere
    ones = torch.ones(a.shape[-2:], dtype=torch.bool, device=a.value.device)
    # The factors and the pivots come after the solution.
    return [solution(a, b, ones, call.out[0]), *everywhere[1:]]


@rule("linalg_inv_ex", "inverse")
def inverse(call: OpCall) -> Any:
    """The solution for the columns of the unit matrix, which are constants."""
    a = call.args[0]
    unit = Heard(torch.eye(a.shape[-1], dtype=a.value.dtype, device=a.value.device), None)
    ones = torch.ones(a.shape[-2:], dtype=torch.bool, device=a.value.device)
    everywhere = call.state.all_of(call)
    first = call.out if isinstance(call.out, Tensor) else call.out[0]
    return [solution(a, unit, ones, first), *everywhere[1:]]


def solution(a: Heard, b: Heard, read: Tensor, out: Tensor) -> Tensor | None:
    """The sets of X in A X = B, of whose A the elements `read`, [n, n], are used."""
    n, ndim = a.shape[-1], out.dim()
    zero = a.equal_to(0)
    used = read if zero is None else read & ~zero
    # Which row reaches which: powers of the relation, doubling until n.
    reach = used | torch.eye(n, dtype=torch.bool, device=used.device)
    for _ in range(max(1, n.bit_length())):
        reach = (reach.float() @ reach.float()) > 0
    rows = None
    if a.sets is not None:
        sets = unmark(align(a.sets, a.ndim))
        # [.., i, k, c] over k, of the elements that are read
        rows = forget(sets, ~used).any(dim=-2).unsqueeze(-2)
    heard = join(ndim, rows, None if b.sets is None else unmark(align(b.sets, b.ndim)))
    if heard is None:
        return None
    heard = heard.expand(*heard.shape[:-3], n, *heard.shape[-2:])
    passed = torch.matmul(reach.float(), heard.flatten(-2).float()) > 0
    passed = passed.unflatten(-1, heard.shape[-2:])
    if (zero := b.equal_to(0)) is not None:
        # A column whose part in R is certainly 0 has the solution 0 there.
        live = torch.matmul(reach.float(), (~zero).float()) > 0
        passed = forget(passed, ~live & (out == 0))
    return passed


@rule("linalg_lu_solve", "cholesky_solve", "linalg_ldl_solve")
def solve_factored(call: OpCall) -> Any:
    """Every element hears the whole factors; a column of the solution hears its own column only."""
    items = [item for item in call.inputs if item is not call["B"] and item is not call.args[0]]
    right = call["B"] if call["B"] is not None else call.args[0]
    if call["left"] is False or right.ndim < 2:
        return call.state.all_of(call)
    rest = [everything(item.sets) for item in [*items, *([] if right is call.args[0] else [call.args[0]])]]
    own = None if right.sets is None else unmark(align(right.sets, right.ndim)).any(dim=-3, keepdim=True)
    return join(call.out.dim(), own, *(None if part is None else unmark(part) for part in rest))
