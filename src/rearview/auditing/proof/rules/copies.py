"""Ops that assemble copies of their inputs: cat, stack, pad, roll, repeat. Constants that they add stay constants.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> prove(lambda x: torch.roll(x, 1, dims=1), torch.rand(1, 3, 4)).matrix().int().tolist()
[[0, 0, 1], [1, 0, 0], [0, 1, 0]]
"""

from typing import Any

import torch
from torch import Tensor

from rearview.auditing.proof.op_call import Heard, OpCall, raw
from rearview.auditing.proof.rules.pointwise import pointwise
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import align, compact, spread


@rule("clone", "_to_copy", "copy", "to", "resolve_conj", "_conj_physical")
def clone(call: OpCall) -> Any:
    # copy(self, source) overwrites what was there before.
    if call.name == "copy":
        source = call.args[1]
        return source.sets if isinstance(source, Heard) else None
    return pointwise(call)


@rule("cat", "concat", "concatenate")
def cat(call: OpCall) -> Tensor | None:
    # Empty tensors with one axis may be concatenated with anything.
    items = [item for item in call.args[0] if tuple(item.shape) != (0,)]
    ndim = call.out.dim()
    dim = (call["dim"] or 0) % ndim
    if all(item.sets is None for item in items) or not items:
        return None
    columns = call.state.columns
    parts = [
        torch.zeros(*[1] * ndim, columns, dtype=torch.bool, device=call.out.device)
        if item.sets is None
        else align(item.sets, ndim)
        for item in items
    ]
    if all(part.shape[dim] == 1 for part in parts) and all(torch.equal(part, parts[0]) for part in parts[1:]):
        return parts[0]
    sizes = [max(part.shape[axis] for part in parts) for axis in range(ndim)]
    full = []
    for part, item in zip(parts, items, strict=True):
        sizes[dim] = item.shape[dim]
        full.append(part.expand(*sizes, columns))
    return torch.cat(full, dim=dim)


@rule("stack")
def stack(call: OpCall) -> Tensor | None:
    items = call.args[0]
    ndim = call.out.dim()
    dim = (call["dim"] or 0) % ndim
    if all(item.sets is None for item in items):
        return None
    columns = call.state.columns
    parts = [
        torch.zeros(*[1] * (ndim - 1), columns, dtype=torch.bool, device=call.out.device)
        if item.sets is None
        else align(item.sets, ndim - 1)
        for item in items
    ]
    if all(torch.equal(part, parts[0]) for part in parts[1:]):
        return parts[0].unsqueeze(dim)
    sizes = [max(part.shape[axis] for part in parts) for axis in range(ndim - 1)]
    return torch.stack([part.expand(*sizes, columns) for part in parts], dim=dim)


@rule("constant_pad_nd")
def constant_pad_nd(call: OpCall) -> Tensor | None:
    item = call.args[0]
    if item.sets is None:
        return None
    sets = align(item.sets, item.ndim)
    pads = list(call["pad"])
    full = list(sets.shape[:-1])
    for i in range(len(pads) // 2):
        if pads[2 * i] or pads[2 * i + 1]:
            full[item.ndim - 1 - i] = item.shape[item.ndim - 1 - i]
    return torch.constant_pad_nd(sets.expand(*full, sets.shape[-1]), [0, 0, *pads], 0)


@rule("flip")
def flip(call: OpCall) -> Tensor | None:
    item = call.args[0]
    if item.sets is None:
        return None
    return align(item.sets, item.ndim).flip([dim % item.ndim for dim in call["dims"]])


@rule("repeat")
def repeat(call: OpCall) -> Tensor | None:
    item = call.args[0]
    if item.sets is None:
        return None
    sets = align(item.sets, call.out.dim())
    shape = [1] * (call.out.dim() - item.ndim) + list(item.shape)
    # Along an axis where all elements heard the same, repeating changes nothing.
    times = [1 if sets.shape[dim] == 1 else times for dim, times in enumerate(call["repeats"])]
    assert len(times) == len(shape)
    return sets.repeat(*times, 1)


@rule(
    *("roll", "rot90", "slice_scatter", "select_scatter", "diagonal_scatter", "reflection_pad1d", "reflection_pad2d"),
    *("reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d", "im2col", "pixel_shuffle"),
    *("pixel_unshuffle", "channel_shuffle", "unfold_copy", "diag_embed", "diagonal_copy", "upsample_nearest1d"),
    *("upsample_nearest2d", "_upsample_nearest_exact1d", "block_diag", "diag"),
)
def moved(call: OpCall) -> Tensor | None:
    """Run the op on the numbers of the elements instead of their values, to find where each of them went.

    Number 0 stands for no element: the op fills in 0.
    """
    return follow_numbers(call, call.args)


def follow_numbers(call: OpCall, numbered_args: Any) -> Tensor:
    flat: list[Tensor] = [torch.zeros(1, call.state.columns, dtype=torch.bool, device=call.state.device)]
    first = 1

    def numbered(value: Any) -> Any:
        nonlocal first
        if isinstance(value, Heard):
            count = value.value.numel()
            numbers = torch.arange(first, first + count, dtype=torch.float64, device=value.value.device)
            first += count
            sets = value.sets
            if sets is None:
                flat.append(flat[0].expand(count, -1))
            else:
                flat.append(spread(sets, value.shape).reshape(count, -1))
            return numbers.view(value.shape)
        if isinstance(value, (list, tuple)):
            return type(value)(numbered(item) for item in value)
        return value

    args = [numbered(arg) if any(arg is n for n in numbered_args) else raw(arg) for arg in call.args]
    kwargs = {name: numbered(value) for name, value in call.kwargs.items()}
    numbers = call.func(*args, **kwargs)
    numbers = numbers if isinstance(numbers, Tensor) else numbers[0]
    return compact(torch.cat(flat)[numbers.long()])


@rule("as_strided_copy")
def strided_copy(call: OpCall) -> Tensor | None:
    """Elements by their address in the storage, which may lie outside of the tensor."""
    view = call.args[0].value.as_strided(call["size"], call["stride"], call["storage_offset"])
    return call.state.memory.read(view)


@rule("as_strided_scatter")
def strided_scatter(call: OpCall) -> Any:
    item = call.args[0].value
    if item.is_contiguous() and item.storage_offset() == 0:
        return moved(call)
    # Only there is the address of an element its number.
    return call.state.all_of(call)


@rule("_pack_padded_sequence", "_pad_packed_sequence")
def packed(call: OpCall) -> list[Tensor | None]:
    """Pack sequences of given lengths, and unpack them. Lengths that are not constant decide a shape."""
    lengths = call.args[1]
    if not lengths.is_constant or (call["padding_value"] or 0) != 0:
        return call.state.escape(call)
    return [follow_numbers(call, [call.args[0]]), None]
