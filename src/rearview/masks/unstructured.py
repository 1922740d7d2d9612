"""Masks with no range form: your own rule, every n-th position, and a tensor whose rows are not a few ranges.

>>> from rearview import causal, where
>>> (causal() & where(lambda i, j: (i - j) % 3 != 2)).to_bool(4).int().tolist()
[[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1]]
"""

import inspect
from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.constructors import expression
from rearview.masks.data import check_plain, described, is_readable
from rearview.masks.explicit import DenseRanges, check_rows, dense_sizes
from rearview.masks.frame import Frame, whole_number
from rearview.masks.mask import Mask, family
from rearview.masks.runs import has_few_runs, runs_of


class Unstructured(Mask):
    __slots__ = ()

    @property
    def has_ranges(self) -> bool:
        return False


@family()
class Dilated(Unstructured):
    is_arithmetic = True
    step: int

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key) % self.step == 0

    def __repr__(self) -> str:
        return f"dilated({self.step})"


@family()
class Where(Unstructured):
    """`rule(i, j)`, or `rule(b, h, i, j)` for the declared batch and heads."""

    rule: Callable[..., Tensor]
    takes_batch_and_head: bool
    _batch: int | None
    _heads: int | None

    @property
    def batch(self) -> int | None:
        return self._batch

    @property
    def heads(self) -> int | None:
        return self._heads

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if self.takes_batch_and_head:
            b = batch if self._batch is not None else Undeclared("batch")
            h = head if self._heads is not None else Undeclared("heads")
            answer = self.rule(b, h, query, key)
        else:
            answer = self.rule(query, key)
        if not isinstance(answer, Tensor) or answer.dtype != torch.bool:
            got = answer.dtype if isinstance(answer, Tensor) else type(answer).__name__
            raise BadArgument("where(rule)", expected="a rule that returns a bool tensor", got=got)
        # A rule that is asked inside another one may get an undeclared batch or head.
        indices = [index for index in (batch, head, query, key) if isinstance(index, Tensor)]
        whole = torch.broadcast_tensors(*indices)[0].shape
        sizes = zip(answer.shape[::-1], whole[::-1], strict=False)
        if answer.ndim > len(whole) or any(size not in (1, most) for size, most in sizes):
            expected = f"an answer for each pair, of a shape that broadcasts to {list(whole)}"
            raise BadArgument("where(rule)", expected=expected, got=list(answer.shape))
        return answer

    def __repr__(self) -> str:
        return f"where({getattr(self.rule, '__name__', type(self.rule).__name__)})"


class Undeclared:
    """Stands for the index of an axis whose size was not declared: any use of it raises.

    A rule that reads the batch item would otherwise be evaluated for item 0 and applied to all.
    """

    def __init__(self, axis: str):
        self.axis = axis

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise BadArgument(
            "where(rule)",
            expected=f"the size of the axis that the rule reads: where(rule, {self.axis}=...)",
            got=f"a rule that uses the {self.axis} index without it",
        )

    # Python looks operators up on the class, so each one is listed here; `if b` would otherwise simply be true.
    __bool__ = __index__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __pow__ = __neg__ = _refuse
    __floordiv__ = __truediv__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __lshift__ = __rshift__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> NoReturn:
        # In table[b, i] it is inside a tuple.
        flat = (leaf for arg in args for leaf in (arg if isinstance(arg, (tuple, list)) else (arg,)))
        next(leaf for leaf in flat if isinstance(leaf, cls))._refuse()


@family()
class Dense(Unstructured):
    """`tensor`: bool [batch or 1, heads or 1, rows, columns]; its last row is at the last column's position."""

    tensor: Tensor

    @property
    def batch(self) -> int | None:
        return self.tensor.shape[0] if self.tensor.shape[0] > 1 else None

    @property
    def heads(self) -> int | None:
        return self.tensor.shape[1] if self.tensor.shape[1] > 1 else None

    @property
    def own_length(self) -> int | None:
        return self.tensor.shape[-1]

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        tensor = self.tensor.to(key.device)
        items, heads, rows, columns = tensor.shape
        row, column = (query - (columns - rows)).clamp(0, rows - 1), key.clamp(0, columns - 1)
        return tensor[batch if items > 1 else 0, head if heads > 1 else 0, row, column]

    def _check(self, frame: Frame) -> None:
        check_rows(frame, rows=self.tensor.shape[2], columns=self.tensor.shape[3])

    def __repr__(self) -> str:
        return f"dense(<{dense_sizes(self.tensor.shape)} bool>)"


@expression("dilated(step)")
def dilated(step: int) -> Mask:
    """Every `step`-th position, counted from the query in both directions: `step` divides i - j.

    >>> from rearview import causal
    >>> (causal() & dilated(2)).to_bool(4).int().tolist()
    [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
    """
    return Dilated(whole_number(step, "dilated(step)", at_least=1))


def where(rule: Callable[..., Tensor], *, batch: int | None = None, heads: int | None = None) -> Mask:
    """Your own rule on positions: `rule(i, j)` or `rule(b, h, i, j)`, tensors in, a bool tensor out, no side effects.

    A rule that reads `b` or `h` must declare their number: `where(rule, batch=4)`.

    >>> where(lambda i, j: j % 2 == 0).to_bool(1, 4).tolist()
    [[True, False, True, False]]
    """
    advice = "Write lambda i, j: ... or lambda b, h, i, j: ..."
    try:
        parameters = list(inspect.signature(rule).parameters.values())
    except (TypeError, ValueError) as error:
        raise BadArgument("where(rule)", expected="a function", got=repr(rule), advice=advice) from error
    counted = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(counted) not in (2, 4):
        raise BadArgument("where(rule)", expected="2 or 4 parameters", got=len(counted), advice=advice)
    if len(counted) == 2 and (batch is not None or heads is not None):
        raise BadArgument("where(rule)", expected="rule(b, h, i, j) when batch or heads is given", got="rule(i, j)")
    sizes = (
        None if batch is None else whole_number(batch, "batch", at_least=1),
        None if heads is None else whole_number(heads, "heads", at_least=1),
    )
    return Where(rule, len(counted) == 4, *sizes)


def _bits(rows: object) -> Tensor:
    try:
        tensor = torch.tensor(rows)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.tensor([2])
    if tensor.is_floating_point() or not bool(((tensor == 0) | (tensor == 1)).all()):
        raise ValueError("dense takes rows of equal length, of 0 and 1 or of True and False")
    return tensor.bool()


@expression("dense([[1, 0], [1, 1]])", read=_bits)
def dense(tensor: Tensor) -> Mask:
    """A bool tensor, True = may be heard: [query, key] or [batch, head, query, key] (axes of size 1 broadcast).

    Its rows are at the last positions of its columns. Where each row is a few runs of keys, the mask keeps these as
    its ranges, and prints their number; other tensors are kept as they are. For a tensor where True means blocked, use
    `from_bool(tensor, true_means="blocked")`.

    >>> import torch
    >>> dense(torch.tensor([[True, False], [True, True]])).to_bool(2).int().tolist()
    [[1, 0], [1, 1]]
    """
    expected = "a bool tensor, True = may be heard"
    if isinstance(tensor, Tensor):
        check_plain(tensor, "dense(tensor)", expected=expected)
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
        advice = "For an additive mask use from_additive(tensor)."
        raise BadArgument("dense(tensor)", expected=expected, got=described(tensor), advice=advice)
    if tensor.ndim not in (2, 4) or tensor.numel() == 0:
        raise BadArgument(
            "dense(tensor)",
            expected="shape [query, key] or [batch, head, query, key], none of them 0",
            got=list(tensor.shape),
            advice="A [batch, key] padding mask is padding(tensor); for three axes add the missing one "
            "with tensor[:, None] or tensor[None].",
        )
    tensor = tensor.detach()[(None,) * (4 - tensor.ndim)]
    # A traced tensor has no values yet. It stays dense.
    if is_readable(tensor) and has_few_runs(tensor):
        return DenseRanges(*runs_of(tensor), tensor.shape[-1])
    return Dense(tensor.clone())
