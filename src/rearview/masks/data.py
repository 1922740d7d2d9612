"""The tensors of a mask: copied from the caller, checked, and printed.

>>> printed(torch.tensor([3, 5]), "lengths"), printed(torch.zeros(64), "ids")
('[3, 5]', '<64 ids>')
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.errors import BadArgument

# A tensor of more values than this is summarised when the mask is printed.
PRINTED_VALUES = 32


def as_data(values: object, argument: str, *, expected: str) -> Tensor:
    try:
        # A copy: writing into the original must not change the mask.
        return torch.as_tensor(values).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadArgument(argument, expected=expected, got=repr(values)) from error


def as_lengths(values: Sequence[int] | Tensor, argument: str) -> Tensor:
    expected = "integers of at least 0, one for each batch item"
    lengths = as_data(values, argument, expected=expected)
    whole = not (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool)
    if lengths.ndim != 1 or not whole or lengths.numel() == 0:
        raise BadArgument(argument, expected=expected, got=described(lengths))
    if bool((lengths < 0).any()):
        raise BadArgument(argument, expected=expected, got=f"a minimum of {int(lengths.min())}")
    return lengths.long()


def is_readable(tensor: Tensor) -> bool:
    """Whether its values can be read now. They cannot while a graph is traced, on the meta device, or if they are fake.

    A subclass of Tensor whose values can be read says so by an attribute `is_readable`.

    >>> is_readable(torch.zeros(2)), is_readable(torch.zeros(2, device="meta"))
    (True, False)
    """
    has_values = type(tensor) is Tensor or getattr(tensor, "is_readable", False)
    return not torch.compiler.is_compiling() and has_values and not tensor.is_meta


def described(tensor: Tensor) -> str:
    return f"a {str(tensor.dtype).removeprefix('torch.')} tensor of shape {list(tensor.shape)}"


def printed(tensor: Tensor, of_what: str) -> str:
    if tensor.numel() <= PRINTED_VALUES:
        return str(tensor.tolist())
    return f"<{' x '.join(map(str, tensor.shape))} {of_what}>"
