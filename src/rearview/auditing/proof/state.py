"""What is known while a program runs on sets: what each storage heard, and the conditions and escapes so far.

>>> import torch
>>> state = ProofState(torch.rand(1, 2, 3), time_axis=1, batch_axis=0)
>>> state.unknown(1).int().tolist()      # two times, one item, then weights and low
[[0, 0, 0, 1, 0]]
>>> is_constant(torch.tril(torch.ones(3, 3))), is_constant(torch.nn.Parameter(torch.tril(torch.ones(3, 3))))
(True, False)
>>> is_constant(torch.zeros(3)), is_constant(torch.arange(3)), is_constant(torch.tensor([0.0, float("-inf")]))
(False, True, True)

Rules ask it for sets and report to it. A proof must hold for all weights, so the value of a parameter is never used. A
mask in a buffer must be used, or no such mask could be trusted; the proof names the buffers that it read.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rearview.auditing.model.module_stack import ModuleStack
from rearview.auditing.proof.faults import FallibleOps
from rearview.auditing.proof.guards import active_guards
from rearview.auditing.proof.memory import Memory
from rearview.auditing.proof.op_call import STAND_IN, OpCall, tensors
from rearview.auditing.proof.result import Condition, OpLocation, OpRelation
from rearview.auditing.proof.sets import EXTRA, LOW, WEIGHTS, everything, heard, sources
from rearview.auditing.user_code import current_line, is_harmless, shown

# Quantized weights live in these.
SMALL_INTEGERS = (torch.int8, torch.uint8)


class ProofState:
    """The state of one run. Rules get it as `call.state`."""

    def __init__(self, x: Tensor, *, time_axis: int, batch_axis: int | None, origins: bool = True):
        batch = x.shape[batch_axis] if batch_axis is not None else 1
        self.batch, self.time = batch, x.shape[time_axis]
        self.columns = self.time + batch + EXTRA
        self.device = x.device
        self.memory = Memory(columns=self.columns, foreign=self.outside, device=x.device)
        self.modules = ModuleStack()
        # Until a weight has become a Python number, numbers in the program are constants.
        self.numbers_are_constants = True
        self.has_silenced = False
        """Whether a factor 0 has silenced what heard a source. Such a zero is a constant up to its sign."""
        self.assumptions: dict[str, None] = {}
        self.constants_read: dict[int, str] = {}
        """Tensors from before the run that are read as constants, in words, by their storage."""
        self.conditions: dict[OpLocation, Condition] = {}
        self.escapes: dict[OpLocation, int] = {}
        self.escaped_times: dict[OpLocation, set[int]] = {}
        self.unknown_ops: dict[OpLocation, int] = {}
        self.fallible_ops = FallibleOps()
        self.relations: list[OpRelation] = []
        self.origins = origins
        sets = sources(batch=batch, time=self.time).to(x.device)
        if batch_axis is None or batch_axis > time_axis:
            sets = sets.transpose(0, 1)
        shape = [1] * x.dim() + [self.columns]
        shape[time_axis] = self.time
        if batch_axis is not None:
            shape[batch_axis] = batch
        self.memory.new(x, sets.reshape(shape))

    def unknown(self, ndim: int) -> Tensor:
        """Sets of a value that heard no source and is not a constant."""
        sets = torch.zeros(*[1] * ndim, self.columns, dtype=torch.bool, device=self.device)
        sets[..., WEIGHTS] = True
        return sets

    def uninitialized(self, ndim: int) -> Tensor:
        """Sets of memory that nothing was written to: what it holds may have been computed from any source."""
        sets = torch.ones(*[1] * ndim, self.columns, dtype=torch.bool, device=self.device)
        sets[..., LOW] = False
        return sets

    def marked(self, ndim: int) -> Tensor:
        """The same, marked as a finite number that stands for -inf."""
        sets = self.unknown(ndim)
        sets[..., LOW] = True
        return sets

    def number(self, ndim: int) -> Tensor | None:
        """Sets of a Python number. After a weight was read into Python, any number may depend on it."""
        return None if self.numbers_are_constants else self.unknown(ndim)

    def place(self, name: str) -> OpLocation:
        """The op of this name in the module and at the line that are running."""
        path, kind = self.modules.innermost
        file, line = current_line()
        return OpLocation(name, f"{path} ({kind})" if path else kind, f"{shown(file)}:{line}" if file else "")

    def condition(self, call: OpCall, *, margin: float, fill: float, bound: float) -> None:
        """Record that masked scores, up to `fill`, must stay at least `bound` below the others; now it is `margin`."""
        place = self.place(call.name)
        old = self.conditions.get(place, Condition(place, fill, margin, bound, count=0))
        self.conditions[place] = Condition(
            place, max(fill, old.fill), min(margin, old.margin), max(bound, old.bound), count=old.count + 1
        )

    def escape(self, call: OpCall) -> list[Tensor | None]:
        """A value decides a shape or the control flow: an escape, unless it comes from weights or constants only."""
        if any(heard(item.sets) for item in call.inputs):
            self.escaped(call.name, [item.sets for item in call.inputs])
        return self.all_of(call)

    def escaped(self, name: str, sets: Iterable[Tensor | None] = ()) -> None:
        """Record an escape, and what the value has heard, unless the function that reads the value only checks it."""
        if is_harmless():
            return
        place = self.place(name)
        self.escapes[place] = self.escapes.get(place, 0) + 1
        times = self.escaped_times.setdefault(place, set())
        for one in sets:
            if one is not None:
                times.update(everything(one)[: self.time].nonzero().flatten().tolist())

    def without_rule(self, name: str) -> None:
        """Record an op that counts as hearing everything, since it has no rule."""
        place = self.place(name)
        self.unknown_ops[place] = self.unknown_ops.get(place, 0) + 1

    def fallible(self, call: OpCall, number: int) -> None:
        """Record that op `number` of the run may raise for other inputs."""
        if any(heard(item.sets) for item in call.inputs):
            place = self.place(call.name)
            self.fallible_ops.add(active_guards(), number, place)

    def write(self, tensor: Tensor, sets: Tensor | None) -> None:
        """Give the elements of a tensor these sets."""
        if self.memory.record(tensor).exposed and heard(sets):
            # The program, or another, may read this memory without an op.
            self.escaped("a write into memory from outside of the run")
        self.memory.write(tensor, sets)

    def assume(self, what: str) -> None:
        self.assumptions[what] = None

    def leaves(self, call: OpCall) -> list[Tensor | None]:
        """A value becomes a Python number: an escape where it heard a source, a weight where it comes from one."""
        union = [item.sets for item in call.inputs if item.sets is not None]
        if any(heard(sets) for sets in union):
            return self.escape(call)
        unsure = [item for item in call.inputs if not item.is_constant]
        if unsure:
            self.weights_are_read(as_numbers=any(item.value.dtype is not torch.bool for item in unsure))
        return []

    def weights_are_read(self, *, as_numbers: bool) -> None:
        """Python reads weights or random numbers; if not only whether they are true, any number may depend on them."""
        self.assume("branches and sizes that depend on weights or on random numbers are as in this run")
        if as_numbers:
            self.numbers_are_constants = False

    def all_of(self, call: OpCall) -> list[Tensor | None]:
        """Every element of the outputs hears everything that any element of the inputs heard."""
        union = self.unknown(0)
        for item in call.inputs:
            if item.sets is not None:
                union = union | everything(item.sets)
        union[LOW] = False
        return [union.view(*[1] * out.dim(), -1) for out in tensors(call.out)]

    def outside(self, tensor: Tensor) -> Tensor | None:
        """The sets of a tensor from before the run."""
        key = self.memory.key(tensor)
        # A view of a parameter is a weight, and so may be what numpy has computed from a weight.
        is_weight = isinstance(tensor, nn.Parameter) or key in self.modules.parameters()
        if is_weight or (is_of_numpy(tensor) and not self.numbers_are_constants) or not reads_as_constant(tensor):
            return self.unknown(0)
        line = self.place("").line
        self.constants_read[key] = f"a tensor {list(tensor.shape)}{f' at {line}' if line else ''}"
        return None


def is_of_numpy(tensor: Tensor) -> bool:
    """Whether its memory belongs to numpy, or to another library: torch cannot resize it."""
    return not tensor.untyped_storage().resizable()


def reads_as_constant(tensor: Tensor) -> bool:
    """Whether a tensor from before the run is constant; its whole storage decides, whichever part is seen first."""
    length = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.numel() == length:
        return is_triangular(tensor) or is_constant(tensor)
    return is_constant(tensor) and is_constant(tensor.detach().as_strided((length,), (1,), 0))


def is_triangular(tensor: Tensor) -> bool:
    """Whether a float tensor from before the run is a table of decays: zeros above the diagonal, and few others.

    >>> is_triangular(torch.rand(2, 5, 5).tril()), is_triangular(torch.rand(5, 5)), is_triangular(torch.zeros(5, 5))
    (True, False, False)
    """
    if tensor.requires_grad or not tensor.is_floating_point() or tensor.dim() < 2 or tensor.shape[-1] < 2:
        return False
    if tensor.shape[-1] != tensor.shape[-2] or bool(tensor[..., 0, 1:].any()):
        return False
    below = tensor.tril().count_nonzero().item()
    return not bool(tensor.triu(1).any()) and 4 * below > tensor.numel()


def is_constant(tensor: Tensor) -> bool:
    """Whether a tensor from before the run is constant: integers, booleans, and floats that can only be a mask."""
    if isinstance(tensor, nn.Parameter) or tensor.requires_grad:
        return False
    if tensor.dtype is torch.bool:
        return True
    if tensor.numel() == 0:
        return True
    if not tensor.is_floating_point() and not tensor.is_complex():
        return tensor.dtype not in SMALL_INTEGERS or bool(((tensor == 0) | (tensor == 1)).all())
    if tensor.is_complex():
        return False
    low = tensor <= STAND_IN
    zero, one = tensor == 0, tensor == 1
    if not bool((low | zero | one).all()):
        return False
    # State and weights are initialized to all zeros or all ones.
    return bool(low.any()) or (bool(zero.any()) and bool(one.any()))
