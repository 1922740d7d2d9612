"""Writing by index. A constant index says where; any other index may write anywhere along its axis.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> cache = lambda x: torch.zeros(1, 3, 4).index_copy(1, torch.tensor([2, 1, 0]), x)
>>> prove(cache, torch.rand(1, 3, 4)).matrix().int().tolist()
[[0, 0, 1], [0, 1, 0], [1, 0, 0]]
"""

from typing import Any

import torch
from torch import Tensor

from rearview.auditing.proof.op_call import Heard, OpCall
from rearview.auditing.proof.rules.indexing import is_mask, used_dims
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import align, compact, everything, join, over, spread, unmark


def full(item: Heard, call: OpCall) -> Tensor:
    """The sets at the full shape, as a copy that may be written to."""
    if item.sets is None:
        return torch.zeros(*item.shape, call.state.columns, dtype=torch.bool, device=call.state.device)
    return spread(item.sets, item.shape).clone()


@rule("scatter", "scatter_add", "scatter_reduce")
def scatter(call: OpCall) -> Tensor | None:
    item, index = call.args[0], call["index"]
    source = call["src"] if isinstance(call["src"], Heard) else None
    if item.ndim == 0 or index.ndim == 0:
        return join(item.ndim, *(everything(i.sets) for i in call.inputs))
    dim = call["dim"] % item.ndim
    adds = call.name != "scatter" or call["reduce"] is not None
    ndim = item.ndim
    if index.is_constant:
        sets = full(item, call).to(torch.uint8)
        columns = sets.shape[-1]
        numbers = index.value.long().unsqueeze(-1).expand(*index.shape, columns)
        written = torch.zeros(*index.shape, columns, dtype=torch.uint8, device=sets.device)
        if source is not None and source.sets is not None:
            part = spread(source.sets, source.shape)
            for axis in range(ndim):
                part = part.narrow(axis, 0, index.shape[axis])
            written = part.to(torch.uint8)
        # Where two elements are written to one place, either may win, so both are heard.
        return unmark(compact(sets.scatter_reduce(dim, numbers, written, "amax", include_self=adds) > 0))
    writers = join(ndim, source_sets(source, index), index.sets)
    assert writers is not None
    writers = over(writers, [dim], keepdim=True)
    return unmark(join(ndim, item.sets, padded(writers, index.shape, item.shape, dim)))


def source_sets(source: Heard | None, index: Heard) -> Tensor | None:
    if source is None or source.sets is None:
        return None
    sets = align(source.sets, source.ndim)
    for axis in range(source.ndim):
        if sets.shape[axis] > index.shape[axis]:
            sets = sets.narrow(axis, 0, index.shape[axis])
    return sets


def padded(sets: Tensor, small: torch.Size, large: torch.Size, dim: int) -> Tensor:
    """Pad the sets: an index that is smaller than the tensor along other axes writes only into its corner."""
    pads: list[int] = []
    sizes = list(sets.shape)
    for axis in range(len(large)):
        if axis != dim and small[axis] < large[axis]:
            sizes[axis] = small[axis]
            pads = [0, large[axis] - small[axis], *pads]
        else:
            pads = [0, 0, *pads]
    return torch.constant_pad_nd(sets.expand(sizes), [0, 0, *pads], 0) if any(pads) else sets


@rule("index_add", "index_copy", "index_fill", "index_reduce")
def index_add(call: OpCall) -> Tensor | None:
    item, index = call.args[0], call["index"]
    source = call["source"] if call["source"] is not None else call["value"]
    if item.ndim == 0:
        return join(0, *(everything(i.sets) for i in call.inputs))
    dim = call["dim"] % item.ndim
    adds = call.name in ("index_add", "index_reduce")
    if isinstance(source, Heard):
        own = source.sets if source.ndim == item.ndim else everything(source.sets)
    else:
        own = None
    if not index.is_constant:
        at = everything(index.sets)
        writers = None if own is None else over(align(own, item.ndim), [dim], keepdim=True)
        return unmark(join(item.ndim, item.sets, writers, at))
    numbers = index.value.reshape(-1).long()
    sets = full(item, call)
    shape = [len(numbers) if axis == dim else size for axis, size in enumerate(item.shape)]
    if not adds:
        sets.index_fill_(dim, numbers, False)
    if own is not None:
        written = spread(own, shape)
        sets = sets.int().index_add(dim, numbers, written.int()) > 0
    return unmark(compact(sets))


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(call: OpCall) -> Any:
    """x[i, j] = values. With a single value, a mask that heard a source acts as a `where`."""
    item, indices, values = call.args[0], list(call.args[1]), call["values"]
    ndim = item.ndim
    unsure = [i for i in indices if i is not None and not i.is_constant]
    if any(is_mask(i) for i in unsure):
        return masked_put(call, item, indices, values)
    if unsure:
        union = [everything(i.sets) for i in indices if i is not None]
        used = used_dims(indices)
        # Axes after the indexed ones keep their places; those before them are joined.
        after = ndim - 1 - max(used)
        if values.sets is not None:
            sets = align(values.sets, values.ndim)
            lead = max(values.ndim - after, 0)
            union.append(over(sets, list(range(lead)), keepdim=False))
        return unmark(join(ndim, item.sets, *union))
    numbers = [None if i is None else i.value for i in indices]
    sets = full(item, call)
    yes = torch.ones((), dtype=torch.bool, device=sets.device)
    if not call["accumulate"]:
        sets = torch.ops.aten.index_put.default(sets, numbers, ~yes)
    if values.sets is not None:
        place = torch.ops.aten.index.Tensor(sets, numbers)
        written = spread(values.sets, values.shape)
        written = align(written, place.dim() - 1).expand(place.shape)
        sets = torch.ops.aten.index_put.default(sets.int(), numbers, written.int(), True) > 0
    return unmark(compact(sets))


def masked_put(call: OpCall, item: Heard, indices: list[Heard | None], values: Heard) -> Any:
    first = indices[0]
    if values.value.numel() != 1 or first is None or any(i is not None for i in indices[1:]):
        return call.state.escape(call)
    after = item.ndim - first.ndim
    mask = align(first.sets, first.ndim) if first.sets is not None else None
    shaped = None if mask is None else mask.reshape(*mask.shape[:-1], *[1] * after, mask.shape[-1])
    return unmark(join(item.ndim, item.sets, shaped, everything(values.sets)))


@rule("masked_scatter")
def masked_scatter(call: OpCall) -> Tensor | None:
    """Element n of the source goes to the n-th True, whose place depends on the whole mask."""
    item, mask, source = call.args[:3]
    return unmark(join(call.out.dim(), item.sets, everything(mask.sets), everything(source.sets)))
