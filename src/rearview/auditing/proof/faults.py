"""Exceptions of ops that depend on values, and whether the program would catch them.

Whether an exception occurs depends on the input, so a program that catches one has a branch that the run does not
show. Ops that may raise and have heard something are collected during the proof, in groups: by the guards around them
(`guards.py`) or, without a guard, by their function, since Python itself ends a few loops at an IndexError. Then the
program is run again, and an op of a group fails on purpose: if the program does not stop, it has caught the exception,
and nothing is proven. A handler may act on a counter or on the length, so the ops of a guard fail one after the other,
at every shape that is proven.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> table = torch.zeros(9, 2)
>>> def rare(tokens):
...     try:
...         return table[tokens]
...     except IndexError:
...         return torch.ones(*tokens.shape, 2) * tokens.sum()
>>> prove(rare, torch.zeros(1, 3, dtype=torch.long)).value_escapes[0].place.op
'index, which may raise an exception that the program catches'
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from rearview.auditing.model.dispatch import OpMode
from rearview.auditing.proof.guards import Guard, call_path
from rearview.auditing.proof.kernels import definition_of
from rearview.auditing.proof.op_call import Heard, OpCall
from rearview.auditing.proof.result import OpLocation

# The ops with a rule that may raise, without namespace, overload and final underscore. All those without a rule may.
MAY_FAIL = {
    *("index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put", "index_select", "index_add"),
    *("index_copy", "index_fill", "index_reduce", "gather", "take", "put", "scatter", "scatter_add", "scatter_reduce"),
    *("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only", "embedding_renorm"),
    *("masked_scatter", "nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss", "multilabel_margin_loss"),
    *("_ctc_loss", "multinomial", "bernoulli", "normal", "poisson", "binomial", "geometric", "exponential", "random"),
    "randint_like",
    *("bincount", "histc", "histogram", "repeat_interleave", "combinations", "max_unpool2d", "max_unpool3d"),
    *("cholesky", "inverse", "cholesky_inverse", "_linalg_check_errors", "_linalg_svd", "_linalg_eigh", "linalg_eig"),
    *("_linalg_eigvals", "linalg_lstsq", "linalg_eigvals", "linalg_ldl_solve", "geqrf", "linalg_pinv"),
    *("_assert_async", "_functional_assert_async", "_assert_scalar", "_async_error", "segment_reduce"),
    *("_pack_padded_sequence", "_pad_packed_sequence", "_cdist_forward", "searchsorted", "linalg_lu_solve"),
}
# The ops of one guarded group that fail in turn. Most groups have fewer.
MOST_TRIED = 16
# Another name for the same tensor. Torch makes more of them for sealed tensors than for others, so they do not count.
RENAMES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
# These raise for a zero divisor, and only integers.
DIVIDE = {"div", "floor_divide", "remainder", "fmod", "true_divide", "__rdiv__"}


class InjectedFault(IndexError, torch.linalg.LinAlgError, ValueError):  # pyright: ignore[reportPrivateImportUsage]
    """An error that the proof raises in place of an op."""

    is_read = False
    """Whether the program has read the message, which may decide what it does with the error of the real op."""

    def __str__(self) -> str:
        self.is_read = True
        return "raised on purpose, to see whether the program catches it"

    __repr__ = __str__

    @property
    def args(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (str(self),)


# What ops raise. A handler may test for one of these types exactly, which the subclass above is not.
EXACT_TYPES = (IndexError, RuntimeError, ValueError, torch.linalg.LinAlgError)  # pyright: ignore[reportPrivateImportUsage]


class FallibleOps:
    """The ops of a run that are to fail in turn, by their numbers.

    Of a guarded group these are all ops, or `MOST_TRIED` of them; of a function the first and the last.
    """

    def __init__(self) -> None:
        self.numbers: dict[Hashable, list[int]] = {}
        self.places: dict[int, OpLocation] = {}
        self.guarded: set[Hashable] = set()
        self.are_left_out = False
        """Whether a guarded group had too many ops for each of them to fail."""

    def add(self, guards: tuple[Guard, ...], number: int, place: OpLocation) -> None:
        group = guards or call_path()
        self.numbers.setdefault(group, []).append(number)
        self.places[number] = place
        if guards:
            self.guarded.add(group)

    def untried(self, tried: set[Hashable], shape: Hashable) -> Iterator[tuple[int, OpLocation, Exception]]:
        """The ops of groups that are not among those `tried`, and now are, each with what it is to raise.

        What a handler does may depend on the shape of the input, so guarded groups are tried at each.
        """
        for group, numbers in self.numbers.items():
            guarded = group in self.guarded
            self.are_left_out |= guarded and len(numbers) > MOST_TRIED
            key = (group, shape) if guarded else group
            if key in tried:
                continue
            tried.add(key)
            ends = {numbers[0], numbers[-1]}
            for number in _spread(numbers, MOST_TRIED) if guarded else sorted(ends):
                for kind in (InjectedFault, *(EXACT_TYPES if guarded and number in ends else ())):
                    yield number, self.places[number], kind()


def _spread(numbers: list[int], count: int) -> list[int]:
    """At most `count` of the numbers, the first and the last among them.

    >>> _spread([1, 2, 3, 5, 8, 13], 3)
    [1, 3, 13]
    """
    last = len(numbers) - 1
    return numbers if last < count else [numbers[round(n * last / (count - 1))] for n in range(count)]


def may_fail(call: OpCall) -> bool:
    """Whether an op with a rule raises for some values of its inputs."""
    if call.name in MAY_FAIL or call["check_errors"]:
        return True
    if call.name not in DIVIDE:
        return False
    divisor = call.args[1] if len(call.args) > 1 else None
    return isinstance(divisor, Heard) and not divisor.value.is_floating_point() and not divisor.value.is_complex()


class OpList(OpMode):
    """Lists the ops that a program calls and, if `fail_at` is given, raises `fault` in place of that one."""

    def __init__(self, fail_at: int | None = None, fault: Exception | None = None):
        super().__init__()
        self.ops: list[Any] = []
        self.fail_at, self.fault = fail_at, fault or InjectedFault()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in RENAMES:
            return func(*args, **(kwargs or {}))
        self.ops.append(func)
        if len(self.ops) - 1 == self.fail_at:
            raise self.fault
        # As in the proof, whose operators by definition have the memory layout of the definition.
        definition = definition_of(func)
        return (func if definition is None else definition.run)(*args, **(kwargs or {}))


def catches(run: Callable[[Tensor], Any], x: Tensor, number: int, fault: Exception) -> bool:
    """Whether the program goes on when its op `number` raises, or reads the message before it raises it again."""
    listed = OpList(fail_at=number, fault=fault)
    try:
        with listed:
            run(x)
    except Exception as error:
        # The fault itself, or what the program raises in its place.
        return error is fault and isinstance(fault, InjectedFault) and fault.is_read
    return len(listed.ops) > number
