"""Ops that create tensors. What they compute from shapes and numbers is constant; random or unset values are not.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> prove(lambda x: torch.zeros_like(x) + torch.arange(3).view(1, 3, 1), torch.rand(1, 3, 4)).matrix().any().item()
False
"""

from typing import Any

from torch import Tensor

from rearview.auditing.proof.op_call import Heard, OpCall
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import everything, join


@rule(
    *("zeros", "ones", "full", "arange", "eye", "tril_indices", "triu_indices", "scalar_tensor", "zeros_like"),
    *("ones_like", "new_zeros", "new_ones", "zero", "hann_window", "hamming_window"),
)
def constant(call: OpCall) -> None:
    """Constant, since only the shape and the dtype of an input are read."""
    return None


@rule("linspace", "logspace")
def spaced(call: OpCall) -> Tensor | None:
    """Between two ends, each of them a number or a tensor without axes."""
    return join(call.out.dim(), *(everything(item.sets) for item in call.inputs))


@rule("full_like", "new_full", "fill")
def filled(call: OpCall) -> Tensor | None:
    value = call["value"] if call.name == "fill" else call["fill_value"]
    return value.sets if isinstance(value, Heard) else call.state.number(call.out.dim())


@rule("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted")
def uninitialized(call: OpCall) -> Tensor:
    """Whatever was computed before and freed may still be there."""
    return call.state.uninitialized(call.out.dim())


@rule(
    *("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "random", "geometric"),
    "log_normal",
)
def unset(call: OpCall) -> Tensor | None:
    """Not known in advance. The largest number of randint_like may be a tensor."""
    high = call["high"]
    limit = everything(high.sets) if isinstance(high, Heard) else None
    return join(call.out.dim(), call.state.unknown(0), limit)


@rule("_local_scalar_dense", "equal", "is_nonzero", "item")
def to_python(call: OpCall) -> Any:
    """A value leaves the tensors. If it heard a source, so does everything that the program does from here on."""
    return call.state.leaves(call)


@rule(
    *("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_functional_assert_async", "_async_error"),
    "_linalg_check_errors",
)
def checked(call: OpCall) -> Any:
    """Either the program stops, or nothing happens."""
    return None
