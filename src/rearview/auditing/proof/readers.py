"""Reads without an op: methods that read the memory of a tensor, seen by their Python names.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> proof = prove(lambda x: x + sum(x.flatten().tolist()), torch.rand(1, 3))
>>> proof.value_escapes[0].place.op, bool(proof.hears.all())
('tolist', True)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rearview.auditing.proof.sealed import LENGTH_ATTRIBUTES, LENGTHS, READERS, SealedSelection, SealedTensor
from rearview.auditing.proof.sets import heard

if TYPE_CHECKING:
    from rearview.auditing.proof.state import ProofState

# Functions that read the values of their second argument: where to split, how long each sequence is.
BY_TENSOR = {"tensor_split", "lstm", "gru", "rnn_tanh", "rnn_relu"}
# These give a number, or a copy; the others leave the memory itself with the program.
COPIES = {"tolist", "__reduce_ex__", "__repr__", "__format__", *BY_TENSOR}


# These give the tensor itself where its memory is contiguous, and a copy elsewhere.
MAY_COPY = {"contiguous", "reshape", "reshape_as", "flatten", "ravel"}

# Functions that write to memory without an op, run as one op each.
WHOLE = {"_pad_packed_sequence": torch.ops.aten._pad_packed_sequence.default}


class Substitutes(TorchFunctionMode):
    """Runs a few functions of torch in another way, because they read or write memory without an op."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "one_hot":
            return one_hot(func, *args, **(kwargs or {}))
        if name in WHOLE:
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                return self.whole(WHOLE[name], args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def whole(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an op without its parts being seen."""
        return func(*args, **kwargs)


def one_hot(func: Any, tensor: Tensor, num_classes: int = -1) -> Tensor:
    """one_hot without a look at the largest index, which torch takes only to raise an error."""
    if num_classes < 0:
        return func(tensor, num_classes)
    zeros = torch.zeros(*tensor.shape, num_classes, dtype=torch.int64, device=tensor.device)
    return zeros.scatter(-1, tensor.unsqueeze(-1), 1)


def reads_length(func: Any, name: str) -> bool:
    """Whether a function such as torch.numel, an op, or the getter of an attribute reads the length of its argument."""
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", "") in LENGTH_ATTRIBUTES
    # An op is called, for example, sym_size.int. Those that read sizes do not reach a dispatch mode.
    return name.partition(".")[0].removeprefix("sym_") in LENGTHS


def length_decides_layout(selection: Tensor) -> bool:
    """Whether a part of a selection is contiguous only where it is of a single row.

    >>> rows = torch.rand(5, 4)
    >>> length_decides_layout(rows), length_decides_layout(rows[:, :2])
    (False, True)
    """
    if selection.dim() == 0:
        return False
    row = 1
    for size, stride in zip(reversed(selection.shape[1:]), reversed(selection.stride()[1:]), strict=True):
        if size != 1 and stride != row:
            return False
        row *= size
    return selection.stride(0) != row


def shows_length(func: Any, name: str, selection: SealedSelection) -> bool:
    """Whether a function tells the program how long a selection is."""
    return reads_length(func, name) or (name in MAY_COPY and length_decides_layout(selection.value))


class Readers(Substitutes):
    """Reports methods that read the memory of a tensor that is not sealed, and functions that read a sealed one."""

    def __init__(self, state: ProofState, step: Callable[[Any, Any, Any], Any]):
        super().__init__()
        self.state, self.step = state, step
        self.depth = 0
        """The number of functions of torch that are running, one inside the other."""
        self.has_length = False
        """Whether the outermost of them has asked for the length of a selection."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in BY_TENSOR and len(args) > 1 and isinstance(args[1], Tensor):
            with torch._C.DisableTorchFunction():
                if args[1].dtype is torch.int64:
                    args = self.with_value(name, args)
        elif name in READERS and args and isinstance(args[0], Tensor) and not isinstance(args[0], SealedTensor):
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                self.read(name, args[0])
        elif name == "__set__" and len(args) > 1 and isinstance(args[1], SealedTensor):
            with torch._C.DisableTorchFunction():
                return self.assign(func, *args)
        elif not self.depth:
            first = args[0] if args else next(iter((kwargs or {}).values()), None)
            if isinstance(first, SealedSelection) and shows_length(func, name, first):
                self.state.escaped(name)
        self.has_length &= self.depth > 0
        self.depth += 1
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            self.depth -= 1

    def whole(self, func: Any, args: Any, kwargs: Any) -> Any:
        return self.step(func, args, kwargs)

    def with_value(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with the value of the second, which torch reads without an op."""
        tensor = args[1]
        value = tensor.value if isinstance(tensor, SealedTensor) else tensor
        self.read(name, value)
        with torch._C._DisableTorchDispatch():
            return (args[0], value.clone(), *args[2:])

    def assign(self, func: Any, target: Tensor, sealed: SealedTensor) -> Any:
        """`tensor.data = sealed`, for a tensor from outside of the run."""
        if heard(self.state.memory.read(sealed.value)):
            self.state.escaped("a write into memory from outside of the run")
        return func(target, sealed.value)

    def read(self, name: str, value: Tensor) -> None:
        state = self.state
        if value.layout is not torch.strided or heard(state.memory.read(value)):
            state.escaped(name, [None if value.layout is not torch.strided else state.memory.read(value)])
        elif state.memory.read(value) is not None:
            state.weights_are_read(as_numbers=True)
        if name not in COPIES and value.layout is torch.strided:
            state.memory.record(value).exposed = True
