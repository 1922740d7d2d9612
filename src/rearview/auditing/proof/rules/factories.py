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


@rule(
    *(
        "zeros",
        "ones",
        "full",
        "arange",
        "linspace",
        "logspace",
        "eye",
        "tril_indices",
        "triu_indices",
        "scalar_tensor",
    ),
    *("zeros_like", "ones_like", "new_zeros", "new_ones", "zero", "hann_window", "hamming_window"),
)
def constant(call: OpCall) -> None:
    """Constant, since only the shape and the dtype of an input are read."""
    return None


@rule("full_like", "new_full", "fill")
def filled(call: OpCall) -> Tensor | None:
    value = call["value"] if call.name == "fill" else call["fill_value"]
    return value.sets if isinstance(value, Heard) else call.state.number(call.out.dim())


@rule(
    *(
        "empty",
        "empty_like",
        "new_empty",
        "new_empty_strided",
        "empty_strided",
        "rand",
        "randn",
        "randint",
        "rand_like",
    ),
    *("randn_like", "randint_like", "randperm", "random", "geometric", "log_normal", "empty_permuted"),
)
def unset(call: OpCall) -> Tensor:
    return call.state.unknown(call.out.dim())


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
