"""The tensors of a mask: copied from the caller, checked, and printed.

>>> printed(torch.tensor([3, 5]), "lengths"), printed(torch.zeros(64), "ids")
('[3, 5]', '<64 ids>')
"""

import reprlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rearview.errors import BadArgument

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)

# A tensor of more values than this is summarised when the mask is printed.
PRINTED_VALUES = 32


def as_data(values: Any, argument: str, *, expected: str) -> Tensor:
    try:
        if not isinstance(values, Tensor) and hasattr(values, "__array__"):
            # torch cannot read an array that is stored backwards, but its copy.
            values = values.__array__().copy()
        # A copy: writing into the original must not change the mask.
        tensor = torch.as_tensor(values).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadArgument(argument, expected=expected, got=reprlib.repr(values)) from error
    check_plain(tensor, argument, expected=expected)
    return _signed(tensor, argument, expected) if tensor.dtype in UNSIGNED else tensor


def check_plain(tensor: Tensor, argument: str, *, expected: str, advice: str = "Convert it with .to_dense().") -> None:
    """Raise for a tensor that is sparse, nested or quantized."""
    if tensor.is_nested or tensor.is_quantized:
        raise BadArgument(argument, expected=expected, got=described(tensor))
    if tensor.layout != torch.strided:
        raise BadArgument(argument, expected=expected, got=described(tensor), advice=advice)


def _signed(tensor: Tensor, argument: str, expected: str) -> Tensor:
    # torch can neither compare nor add these dtypes.
    signed = tensor.long()
    if is_readable(tensor) and bool((signed < 0).any()):
        raise BadArgument(argument, expected=expected, got="a number above 2**63 - 1")
    return signed


def as_list(values: Any, argument: str, *, expected: str) -> Any:
    """The values of a tensor or an array as lists; anything else as it is.

    >>> as_list(torch.tensor([3, 5]), "lengths", expected="integers")
    [3, 5]
    """
    if isinstance(values, Tensor):
        values = as_data(values, argument, expected=expected)
        check_readable(values, argument, expected=expected)
    return values.tolist() if hasattr(values, "tolist") else values


def check_readable(tensor: Tensor, argument: str, *, expected: str) -> None:
    """Raise for a tensor without values."""
    if tensor.is_meta:
        raise BadArgument(argument, expected=expected, got=f"{described(tensor)} on meta, which has no values")


def is_number(value: object) -> bool:
    """Whether this is an int or a float; True and False are neither.

    >>> is_number(0.5), is_number(True), is_number("1")
    (True, False, False)
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def true_or_false(value: object, argument: str) -> bool:
    """`value`, or an error that names the argument.

    >>> true_or_false(True, "causal")
    True
    """
    if not isinstance(value, bool):
        raise BadArgument(argument, expected="True or False", got=reprlib.repr(value))
    return value


def as_device(device: torch.device | str | None) -> torch.device:
    """The device, by default the CPU; an error where PyTorch knows no such device, or it is not there.

    >>> as_device(None)
    device(type='cpu')
    """
    if isinstance(device, torch.device):
        return device
    try:
        found = torch.device("cpu" if device is None else device)
        if found.type not in ("cpu", "meta"):
            torch.empty(0, device=found)
    except (TypeError, ValueError, RuntimeError, AssertionError, ImportError) as error:
        expected = "a device that PyTorch can use here, such as 'cpu' or 'cuda:0'"
        raise BadArgument("device", expected=expected, got=reprlib.repr(device)) from error
    return found


def is_whole(tensor: Tensor) -> bool:
    """Whether it holds integers; True and False are none.

    >>> is_whole(torch.tensor([1])), is_whole(torch.tensor([1.0])), is_whole(torch.tensor([True]))
    (True, False, False)
    """
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def as_lengths(values: Sequence[int] | Tensor, argument: str) -> Tensor:
    expected = "integers of at least 0, one for each batch item"
    lengths = as_data(values, argument, expected=expected)
    check_readable(lengths, argument, expected=expected)
    if lengths.ndim != 1 or not is_whole(lengths) or lengths.numel() == 0:
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


def described(value: object) -> str:
    """A value in an error message: a tensor by its dtype, layout and shape, anything else by its type.

    >>> described(torch.zeros(2, 3)), described(torch.tensor(1)), described([1])
    ('a float32 tensor of shape [2, 3]', 'an int64 tensor of shape []', 'list')
    """
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.is_nested:
        return "a nested tensor"
    words = [] if value.layout == torch.strided else [str(value.layout).removeprefix("torch.")]
    words = [*words, str(value.dtype).removeprefix("torch."), "tensor"]
    article = "an" if words[0].startswith("i") else "a"
    return f"{article} {' '.join(words)} of shape {list(value.shape)}"


def printed(tensor: Tensor, of_what: str) -> str:
    """The values of a tensor; if they are many, or cannot be read now, their number."""
    if tensor.numel() <= PRINTED_VALUES and is_readable(tensor):
        return str(tensor.tolist())
    return f"<{' x '.join(map(str, tensor.shape))} {of_what}>"
