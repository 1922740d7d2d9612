"""Dependence sets: the sources that each element of a tensor may have heard, as a bool tensor with one more axis.

The last axis has a column for each time position, then one for each batch item, then two more: *weights* (the value is
not known in advance: it comes from a parameter, from state or from a random generator) and *low* (a finite number was
added instead of -inf). A source (item, time) sets two columns, so an element may have heard any of its times in any of
its items: this is exact for whoever hears one item only, and the number of columns grows with batch + time. An element
without any source and without weights is a constant: it has the same value for every input and all weights.

All other axes are those of the tensor, or of size 1 where all elements along the axis heard the same. `None` stands for
the sets of a tensor of constants.

>>> import torch
>>> sets = sources(batch=1, time=3)              # [1, 3, 3 + 1 + 2]
>>> mean = over(sets, [1], keepdim=True)         # a mean over time hears every position
>>> mean.int().tolist()
[[[1, 1, 1, 1, 0, 0]]]
>>> constants(join(2, sets[:, :1] & False, mean & False)).tolist()
[[True]]
"""

from collections.abc import Sequence
from math import prod
from typing import overload

import torch
from torch import Tensor

# After the sources: the value comes from weights, state or chance; a large negative number stands for -inf.
WEIGHTS = -2
LOW = -1
EXTRA = 2


def sources(*, batch: int, time: int) -> Tensor:
    """[batch, time, time + batch + 2]: each position has heard its own time and item."""
    times = torch.eye(time, dtype=torch.bool).expand(batch, time, time)
    items = torch.eye(batch, dtype=torch.bool).unsqueeze(1).expand(batch, time, batch)
    return torch.nn.functional.pad(torch.cat([times, items], dim=-1), (0, EXTRA))


def pairs(sets: Tensor, *, batch: int, time: int) -> Tensor:
    """[..., batch, time]: the sources (item, time) that the columns stand for.

    >>> pairs(sources(batch=2, time=3), batch=2, time=3)[1, 2].int().tolist()
    [[0, 0, 0], [0, 0, 1]]
    """
    return sets[..., time : time + batch].unsqueeze(-1) & sets[..., :time].unsqueeze(-2)


def align(sets: Tensor, ndim: int) -> Tensor:
    """Add axes of size 1 in front until there are `ndim`, and the columns."""
    missing = ndim + 1 - sets.dim()
    return sets if missing <= 0 else sets.view(*[1] * missing, *sets.shape)


def join(ndim: int, *many: Tensor | None) -> Tensor | None:
    """The elementwise union of sets, which broadcast like their tensors."""
    union = None
    for sets in many:
        if sets is not None:
            sets = align(sets, ndim)
            union = sets if union is None else union | sets
    return union


def over(sets: Tensor, dims: Sequence[int], *, keepdim: bool) -> Tensor:
    """The union along axes of the tensor (non-negative numbers)."""
    if not dims:
        return sets
    small = all(sets.shape[dim] == 1 for dim in dims)
    if keepdim:
        return sets if small else sets.any(dim=tuple(dims), keepdim=True)
    return sets.squeeze(tuple(dims)) if small else sets.any(dim=tuple(dims))


@overload
def everything(sets: Tensor) -> Tensor: ...
@overload
def everything(sets: Tensor | None) -> Tensor | None: ...
def everything(sets: Tensor | None) -> Tensor | None:
    """The union over all elements: [columns]."""
    return None if sets is None else sets.reshape(-1, sets.shape[-1]).any(dim=0)


def heard(sets: Tensor | None) -> bool:
    """Whether the sets hold any source."""
    return sets is not None and bool(sets[..., :-EXTRA].any())


@overload
def unmark(sets: Tensor) -> Tensor: ...
@overload
def unmark(sets: Tensor | None) -> Tensor | None: ...
def unmark(sets: Tensor | None) -> Tensor | None:
    """Remove the marks of finite masks, for an output that is no longer a score."""
    return flag(sets, LOW, False) if sets is not None and bool(sets[..., LOW].any()) else sets


def constants(sets: Tensor) -> Tensor:
    """Which elements are constants: the same for every input and all weights."""
    return ~sets[..., :LOW].any(dim=-1)


def forget(sets: Tensor, where: Tensor) -> Tensor:
    """Empty the sets of the elements that are True in `where`."""
    return sets & ~where.unsqueeze(-1)


def flag(sets: Tensor, column: int, where: Tensor | bool) -> Tensor:
    """Set one column to `where`, which broadcasts like the tensor."""
    if isinstance(where, Tensor):
        shape = torch.broadcast_shapes(sets.shape[:-1], where.shape)
        sets = sets.expand(*shape, sets.shape[-1])
    sets = sets.clone()
    sets[..., column] = where
    return sets


def fits(sets: Tensor | None, shape: Sequence[int], columns: int) -> bool:
    """Whether sets describe a tensor of this shape: each axis has its size, or 1, and all columns are there.

    >>> fits(torch.zeros(1, 3, 6), (2, 3), 6), fits(torch.zeros(0, 3, 6), (2, 3), 6)
    (True, False)
    """
    if sets is None:
        return True
    sizes = sets.shape[:-1]
    return (
        sets.shape[-1] == columns
        and len(sizes) <= len(shape)
        and all(size in (1, wanted) for size, wanted in zip(reversed(sizes), reversed(shape), strict=False))
    )


def spread(sets: Tensor, shape: Sequence[int]) -> Tensor:
    """Expand every axis to its full size, without a copy."""
    return align(sets, len(shape)).expand(*shape, sets.shape[-1])


def spread_axes(sets: Tensor, dims: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Expand some axes to their full size, without a copy."""
    sets = align(sets, len(shape))
    full = [shape[dim] if dim in dims else size for dim, size in enumerate(sets.shape[:-1])]
    return sets.expand(*full, sets.shape[-1])


def compact(sets: Tensor) -> Tensor:
    """Reduce every axis along which all elements heard the same to size 1."""
    for dim in range(sets.dim() - 1):
        if sets.shape[dim] > 1:
            first = sets.narrow(dim, 0, 1)
            if bool((sets == first).all()):
                sets = first
    return sets


def regroup(sets: Tensor, old: Sequence[int], new: Sequence[int]) -> Tensor:
    """The sets of `tensor.view(new)`. Axes that merge are expanded only where their elements differ."""
    assert prod(old) == prod(new), (old, new)
    sets = align(sets, len(old))
    columns = sets.shape[-1]
    if 0 in old or 0 in new or all(size == 1 for size in sets.shape[:-1]):
        return sets.new_zeros(*new, columns) if 0 in new else sets.reshape(*[1] * len(new), columns)
    spread_to: list[int] = []
    shape: list[int] = []
    i = j = 0
    while i < len(old) or j < len(new):
        # The shortest runs of old and new axes with the same number of elements.
        i_end, j_end = min(i + 1, len(old)), min(j + 1, len(new))
        while (a := prod(old[i:i_end])) != (b := prod(new[j:j_end])):
            if a < b:
                i_end += 1
            else:
                j_end += 1
        same = all(size == 1 for size in sets.shape[i:i_end])
        spread_to += list(sets.shape[i:i_end]) if same else list(old[i:i_end])
        shape += [1] * (j_end - j) if same else list(new[j:j_end])
        i, j = i_end, j_end
    return sets.expand(*spread_to, columns).reshape(*shape, columns)
