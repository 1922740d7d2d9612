"""Reads that are no op: methods that take a tensor's memory or its length, seen by their Python names.

>>> import torch
>>> from rearview.audit.proof import prove
>>> proof = prove(lambda x: x + sum(x.flatten().tolist()), torch.rand(1, 3))
>>> proof.value_escapes[0].place.op, bool(proof.hears.all())
('tolist', True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rearview.audit.proof.sets import heard

if TYPE_CHECKING:
    from rearview.audit.proof.trace import Trace

# Methods that read memory without an op.
READERS = {
    *("tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage", "_typed_storage"),
    *("__reduce_ex__", "apply_", "map_", "map2_", "share_memory_", "__repr__", "__format__"),
}
# Those that tell how long a tensor is.
LENGTHS = {"size", "__len__", "numel", "nelement", "__iter__", "stride"}
# Those that read the numbers of their second argument: where to cut, how long each sequence is.
BY_TENSOR = {"tensor_split", "lstm", "gru", "rnn_tanh", "rnn_relu"}


def one_hot(func: Any, tensor: Tensor, num_classes: int = -1) -> Tensor:
    """torch's own looks at the largest index, to raise an error; that is no reason to give up."""
    if num_classes < 0:
        return func(tensor, num_classes)
    zeros = torch.zeros(*tensor.shape, num_classes, dtype=torch.int64, device=tensor.device)
    return zeros.scatter(-1, tensor.unsqueeze(-1), 1)


class Readers(TorchFunctionMode):
    """Sees the methods that read a tensor's memory without an op."""

    def __init__(self, trace: Trace):
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if self.trace.selections and (name in LENGTHS or name == "__get__"):
            self.length(func, name, args)
        if name == "one_hot":
            return one_hot(func, *args, **(kwargs or {}))
        if name in BY_TENSOR and len(args) > 1 and isinstance(args[1], Tensor):
            with torch._C.DisableTorchFunction():
                if args[1].dtype is torch.int64:
                    self.read(name, args[1])
        if name in READERS and args and isinstance(args[0], Tensor):
            with torch._C.DisableTorchFunction():
                self.read(name, args[0])
        return func(*args, **(kwargs or {}))

    def length(self, func: Any, name: str, args: Any) -> None:
        """The number of rows that a value has chosen is itself a value."""
        if name == "__get__" and getattr(getattr(func, "__self__", None), "__name__", "") != "shape":
            return
        with torch._C.DisableTorchFunction():
            if args and isinstance(args[0], Tensor) and self.trace.memory.selected(args[0]):
                self.trace.escaped(name)

    def read(self, name: str, tensor: Tensor) -> None:
        trace = self.trace
        if tensor.layout is not torch.strided or heard(trace.memory.read(tensor)):
            trace.escaped(name)
        elif trace.memory.read(tensor) is not None:
            trace.numbers_are_constants = False
