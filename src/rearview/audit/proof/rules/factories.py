"""Ops that make tensors. What they make from shapes and numbers is constant; what they draw, or leave unset, is not.

>>> import torch
>>> from rearview.audit.proof import prove
>>> prove(lambda x: torch.zeros_like(x) + torch.arange(3).view(1, 3, 1), torch.rand(1, 3, 4)).matrix().any().item()
False
"""

from typing import Any

from torch import Tensor

from rearview.audit.proof.call import Call, Heard
from rearview.audit.proof.rules.registry import rule


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
def constant(call: Call) -> None:
    """Whatever the input: only its shape and type were read."""
    return None


@rule("full_like", "new_full", "fill")
def filled(call: Call) -> Tensor | None:
    value = call["value"] if call.name == "fill" else call["fill_value"]
    return value.sets if isinstance(value, Heard) else call.trace.number(call.out.dim())


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
def unset(call: Call) -> Tensor:
    return call.trace.unknown(call.out.dim())


@rule("_local_scalar_dense", "equal", "is_nonzero", "item")
def to_python(call: Call) -> Any:
    """A value leaves the tensors. If it heard someone, what the program does from here on does too."""
    return call.trace.leaves(call)


@rule(
    *("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_functional_assert_async", "_async_error"),
    "_linalg_check_errors",
)
def checked(call: Call) -> Any:
    """Either the program stops or nothing happens."""
    return None
