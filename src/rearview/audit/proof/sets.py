"""Dependence sets: for each element of a tensor, whom it may have heard, as a bool tensor with one more axis.

The last axis has a column for each source, then two more: *weights* (the value is not known in advance: it comes from a
parameter, from state or from a generator) and *low* (a finite stand-in for -inf was added to this element). An element
without any source and without weights is a constant: it holds the value that we see for every input and all weights.

All other axes are those of the tensor, or of size 1 where every element along the axis heard the same. `None` stands
for a tensor of constants.

>>> import torch
>>> sets = sources(batch=1, time=3)              # [1, 3, 3 + 2]
>>> mean = over(sets, [1], keepdim=True)         # a mean over time hears everybody
>>> mean.int().tolist()
[[[1, 1, 1, 0, 0]]]
>>> constants(join(2, sets[:, :1] & False, mean & False)).tolist()
[[True]]
"""

from collections.abc import Sequence
from math import prod
from typing import overload

import torch
from torch import Tensor

# Behind the sources: the value comes from weights, state or chance; a large negative number stands in for -inf.
WEIGHTS = -2
LOW = -1
EXTRA = 2


def sources(*, batch: int, time: int) -> Tensor:
    """[batch, time, batch * time + 2]: each position has heard itself."""
    sets = torch.eye(batch * time, dtype=torch.bool).view(batch, time, batch * time)
    return torch.nn.functional.pad(sets, (0, EXTRA))


def align(sets: Tensor, ndim: int) -> Tensor:
    """With axes of size 1 in front until there are `ndim` (and the columns)."""
    missing = ndim + 1 - sets.dim()
    return sets if missing <= 0 else sets.view(*[1] * missing, *sets.shape)


def join(ndim: int, *many: Tensor | None) -> Tensor | None:
    """The union, element by element, of sets that broadcast like their tensors."""
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
    """Is there any source in it?"""
    return sets is not None and bool(sets[..., :-EXTRA].any())


@overload
def unmark(sets: Tensor) -> Tensor: ...
@overload
def unmark(sets: Tensor | None) -> Tensor | None: ...
def unmark(sets: Tensor | None) -> Tensor | None:
    """Without the marks of finite masks: what came out is no longer a score."""
    return flag(sets, LOW, False) if sets is not None and bool(sets[..., LOW].any()) else sets


def constants(sets: Tensor) -> Tensor:
    """Which elements hold the same value for every input and all weights."""
    return ~sets[..., :LOW].any(dim=-1)


def forget(sets: Tensor, where: Tensor) -> Tensor:
    """Without what the elements heard that are True in `where`."""
    return sets & ~where.unsqueeze(-1)


def flag(sets: Tensor, column: int, where: Tensor | bool) -> Tensor:
    """With one column set to `where`, which broadcasts like the tensor."""
    if isinstance(where, Tensor):
        shape = torch.broadcast_shapes(sets.shape[:-1], where.shape)
        sets = sets.expand(*shape, sets.shape[-1])
    sets = sets.clone()
    sets[..., column] = where
    return sets


def spread(sets: Tensor, shape: Sequence[int]) -> Tensor:
    """With every axis at its full size (no copy)."""
    return align(sets, len(shape)).expand(*shape, sets.shape[-1])


def spread_axes(sets: Tensor, dims: Sequence[int], shape: Sequence[int]) -> Tensor:
    """With some axes at their full size, the others as they are (no copy)."""
    sets = align(sets, len(shape))
    full = [shape[dim] if dim in dims else size for dim, size in enumerate(sets.shape[:-1])]
    return sets.expand(*full, sets.shape[-1])


def compact(sets: Tensor) -> Tensor:
    """With size 1 for every axis along which all elements heard the same."""
    for dim in range(sets.dim() - 1):
        if sets.shape[dim] > 1:
            first = sets.narrow(dim, 0, 1)
            if bool((sets == first).all()):
                sets = first
    return sets


def regroup(sets: Tensor, old: Sequence[int], new: Sequence[int]) -> Tensor:
    """The sets of `tensor.view(new)`. Axes that merge are spread only if their elements differ."""
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
