"""Which time position each element of a tensor stands for, followed from the input through every op.

>>> import torch
>>> from rearview.auditing.place.positions import PositionTracker
>>> x = torch.randn(1, 4, 4)
>>> tracker = PositionTracker(x, axis=1)
>>> turned = x.transpose(1, 2)
>>> tracker.follow(torch.ops.aten.transpose.int, (x, 1, 2), {}, [turned])
>>> [positions.flatten().tolist() for positions in tracker.of(turned)]
[[0, 1, 2, 3]]
>>> tracker.of(turned)[0].shape    # its last axis is time, although all axes are as long
torch.Size([1, 1, 4])

The size of an axis does not say what it is: 16 positions, 16 features and 16 heads look alike. So the positions are
followed from op to op. A *map* is an integer tensor that broadcasts to the tensor and holds the time position of each
element, or -1 where there is none (padding, memory tokens). Scores have two maps, one for their queries and one for
their keys. Ops that move data (slices, padding, reshapes, gathers) move the map in the same way. A reduction over part
of the time keeps the last position of the part. A reduction over all of it, or a top-k, leaves no map: time is *lost*.

An axis that holds positions and is as long as the input is read as the positions in order, whatever was moved into it.
This is how a roll, a flip or a shift by one shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Maps = tuple[Tensor, ...]

RESHAPES = ("view", "_unsafe_view", "reshape", "_reshape_alias")
MOVES = (
    "transpose", "permute", "t", "unsqueeze", "squeeze", "select", "slice", "expand", "split", "split_with_sizes",
    "unbind", "chunk", "flip", "roll", "repeat", "unfold", "diagonal", "tile", "movedim", "narrow", "as_strided",
)  # fmt: skip
LOOKUPS = ("index_select", "gather", "index", "take_along_dim", "repeat_interleave")
PADS = ("constant_pad_nd", "replication_pad1d", "reflection_pad1d", "pad")
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "matmul", "mv", "dot", "_grouped_mm")
# Like a product with the transpose of the second factor.
DISTANCES = ("_cdist_forward", "_euclidean_dist", "cdist")
REDUCTIONS = (
    "mean", "sum", "amax", "amin", "max", "min", "any", "all", "prod", "logsumexp", "linalg_vector_norm", "norm", "var",
    "var_mean", "std", "std_mean", "argmax", "argmin", "median", "nanmedian", "nansum", "nanmean", "aminmax",
    "count_nonzero", "mode",
)  # fmt: skip
RESIZES = ("pool", "upsample")
ORDERED = ("topk", "sort", "kthvalue", "argsort", "msort")
CHOSEN = ("nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "multinomial", "bincount")
# These write into their first argument, which keeps its layout.
WRITES = ("scatter", "index_put", "index_add", "index_copy", "slice_scatter", "select_scatter", "masked_scatter")


class PositionTracker:
    """Follows the positions of one axis of `source`, the varied input of a model.

    `ordered` says whether an axis as long as that of `source` is read as the positions in order. It is for time; batch
    items stay what they are, wherever they are moved.
    """

    def __init__(self, source: Tensor, axis: int, *, batch: int = 1, ordered: bool = True):
        self.length, self.batch, self.ordered = source.shape[axis], batch, ordered
        self._source = source
        spread = [1] * source.ndim
        spread[axis] = self.length
        self._first = (torch.arange(self.length).view(spread),)
        self._known: Any = WeakTensorKeyDictionary()

    def of(self, tensor: Tensor) -> Maps | None:
        """The maps of a tensor; empty where time was lost; None where nothing is known about it."""
        found = self._known.get(tensor)
        if found is None and tensor.shape == self._source.shape and _same_memory(tensor, self._source):
            return self._first
        return found

    def derived(self, tensor: Tensor) -> bool:
        """Whether a tensor was computed from the source."""
        return tensor in self._known or self.of(tensor) is not None

    def follow(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], outputs: Sequence[Tensor]) -> None:
        """Find the maps of the outputs of an op."""
        inputs = _tensors((*args, *kwargs.values()))
        if not any(self.derived(tensor) for tensor in inputs):
            return
        name = str(func).split(".")[1] if "." in str(func) else str(func)
        name = "index_copy" if name == "copy_" else name.rstrip("_")
        try:
            found = _Call(self, func, name, args, kwargs, inputs, list(outputs)).maps()
        except (RuntimeError, IndexError, TypeError, ValueError):
            # An op that shares its name with another, and has other arguments: its positions are not known.
            found = [None for _ in outputs]
        for output, maps in zip(outputs, found, strict=True):
            self._known[output] = maps


class _Call:
    """One op whose outputs need maps."""

    def __init__(
        self,
        tracker: PositionTracker,
        func: Any,
        name: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        inputs: list[Tensor],
        outputs: list[Tensor],
    ):
        self.tracker, self.func, self.name = tracker, func, name
        self.args, self.kwargs, self.inputs, self.outputs = args, kwargs, inputs, outputs

    def maps(self) -> list[Maps | None]:
        name, outputs = self.name, self.outputs
        if name in CHOSEN:
            return [() for _ in outputs]
        if name in RESHAPES or name in MOVES or name in LOOKUPS or name in PADS or name in ("cat", "stack"):
            return self._moved()
        if name in PRODUCTS or name in DISTANCES:
            return [self._product(output) for output in outputs]
        if name in REDUCTIONS or name in ORDERED:
            return [self._reduced(output) for output in outputs]
        if name.startswith("_fft"):
            return [self._transformed(output) for output in outputs]
        if name.startswith("embedding") and len(self.args) > 1 and isinstance(self.args[1], Tensor):
            maps = self.tracker.of(self.args[1])
            return [None if maps is None else tuple(m.unsqueeze(-1) for m in maps) for _ in outputs]
        if "attention" in str(self.func):
            return [self._attended(output) for output in outputs]
        if "convolution" in name or name.startswith("conv"):
            return [self._convolved(output) for output in outputs]
        if name.startswith("new_"):
            return [None for _ in outputs]
        if any(name.startswith(write) for write in WRITES):
            own = self.tracker.of(self.inputs[0])
            return [own if own else self._broadcast(output) for output in outputs]
        return [self._broadcast(output) for output in outputs]

    def _broadcast(self, output: Tensor) -> Maps | None:
        """The maps of the inputs, aligned at the last axis as in broadcasting."""
        found: list[Maps] = []
        is_lost, is_unknown = False, False
        for tensor in self.inputs:
            maps = self.tracker.of(tensor)
            if maps is None:
                is_unknown |= self.tracker.derived(tensor)
                continue
            fitting = tuple(fitted for one in maps if (fitted := _aligned(one, output)) is not None)
            found += [fitting] if fitting else []
            is_lost |= not maps
            is_unknown |= len(fitting) < len(maps)
        if found:
            maps = joined(found, ordered=self.tracker.ordered)
            # A loop over time combines one position with a state that belongs to several.
            return () if is_lost and not any(varying(one) for one in maps) else maps
        if is_lost and not is_unknown:
            return ()
        return self._resized(output) if any(word in self.name for word in RESIZES) else None

    def _resized(self, output: Tensor) -> Maps | None:
        """Pooled or interpolated along time: each new position stands for the last of those that it was made of."""
        known = [(tensor, maps) for tensor in self.inputs if (maps := self.tracker.of(tensor))]
        if len(known) != 1 or known[0][0].ndim != output.ndim or len(known[0][1]) != 1:
            return None
        tensor, (positions,) = known[0]
        changed = [axis for axis in range(output.ndim) if tensor.shape[axis] != output.shape[axis]]
        if changed != varying(positions):
            return None
        (axis,) = changed
        old, new = tensor.shape[axis], output.shape[axis]
        if self.tracker.ordered and new == self.tracker.length:
            return (_along(output, axis, new),)
        last = (torch.arange(1, new + 1) * old).div(new, rounding_mode="floor").clamp(1, old) - 1
        return (positions.index_select(axis, last),)

    def _moved(self) -> list[Maps | None]:
        """The maps of the moved data, moved by the op itself."""
        data = [self.args[0]] if isinstance(self.args[0], Tensor) else list(self.args[0])
        known = [self.tracker.of(tensor) for tensor in data]
        count = max((len(maps) for maps in known if maps is not None), default=0)
        if not count and self.name in ("cat", "stack"):
            return [self._pieced(data)]
        if not count:
            lost = any(maps == () for maps in known)
            # What is looked up in a constant at positions has these positions.
            looked = self._broadcast(self.outputs[0]) if self.name in LOOKUPS and not lost else None
            return [looked if looked is not None else () if lost else None for _ in self.outputs]
        by_output: list[list[Tensor]] = [[] for _ in self.outputs]
        for number in range(count):
            full = [
                _spread(maps[number], tensor) if maps and number < len(maps) else _nowhere(tensor)
                for tensor, maps in zip(data, known, strict=True)
            ]
            for at, moved in enumerate(self._apply(full)):
                by_output[at].append(self._in_order(compact(full[0].cpu()), compact(moved.cpu()), self.outputs[at]))
        return [tuple(maps) for maps in by_output]

    def _pieced(self, data: list[Tensor]) -> Maps | None:
        """Pieces without positions, one for each position as in a loop over time, are put together in order."""
        output, axis = self.outputs[0], self.args[1] if len(self.args) > 1 else self.kwargs.get("dim", 0)
        ordered = self.tracker.ordered and len(data) == output.shape[axis] == self.tracker.length
        return (_along(output, axis % output.ndim, self.tracker.length),) if ordered else None

    def _apply(self, full: list[Tensor]) -> list[Tensor]:
        if self.name in RESHAPES:
            return [full[0].reshape(self.outputs[0].shape)]
        if self.name == "cat" or self.name == "stack":
            # An empty tensor of one axis may be concatenated to anything.
            return [self.func([part for part in full if part.numel() or part.ndim > 1], *self.args[1:], **self.kwargs)]
        if self.name in PADS and self.name != "constant_pad_nd":
            return [self.func(full[0].double(), *self.args[1:], **self.kwargs).long()]
        if self.name == "constant_pad_nd":
            return [self.func(full[0], self.args[1], -1)]
        if self.name == "as_strided":
            return [_restrided(self.args[0], full[0], self.outputs[0])]
        moved = self.func(full[0], *self.args[1:], **self.kwargs)
        return [moved] if isinstance(moved, Tensor) else list(moved)

    def _in_order(self, before: Tensor, positions: Tensor, output: Tensor) -> Tensor:
        """The positions in order, where the map fills an axis as long as the input."""
        tracker = self.tracker
        if not tracker.ordered or any(tracker.derived(tensor) for tensor in self._indices()):
            return positions
        ordered = self._whole_in_order(positions, output)
        if ordered is not positions:
            return ordered
        whole = [axis for axis, size in enumerate(output.shape) if size == tracker.length]
        # A reshape that spreads the positions over another axis mixes them.
        if self.name in RESHAPES and len(whole) == 1 and positions.numel() > tracker.batch * before.numel():
            return _along(output, whole[0], tracker.length)
        return positions

    def _whole_in_order(self, positions: Tensor, output: Tensor) -> Tensor:
        """The positions in order, where the map fills a single axis that is as long as the input."""
        axes = varying(positions)
        if self.tracker.ordered and len(axes) == 1 and output.shape[axes[0]] == self.tracker.length:
            return _along(output, axes[0], self.tracker.length)
        return positions

    def _indices(self) -> list[Tensor]:
        return _tensors((*self.args[1:], *self.kwargs.values())) if self.name in LOOKUPS else []

    def _product(self, output: Tensor) -> Maps | None:
        """Rows of the left factor and columns of the right one; what varies along the summed axis is gone."""
        left, right = (self.inputs[0], self.inputs[1]) if self.name == "_grouped_mm" else self.inputs[-2:]
        found: list[Tensor] = []
        lost = unknown = False
        for is_right, tensor, summed in ((False, left, -1), (True, right, -2 if right.ndim > 1 else -1)):
            maps = self.tracker.of(tensor)
            if maps is None:
                unknown |= self.tracker.derived(tensor)
                continue
            if is_right and self.name in DISTANCES:
                maps = tuple(one.transpose(-1, -2) for one in maps)
            kept = [one for one in maps if one.shape[summed] == 1]
            lost |= len(kept) < len(maps) or not maps
            kept = [one.squeeze(-1) if right.ndim == 1 else one for one in kept]
            fitting = [fitted for one in kept if (fitted := _aligned(one, output)) is not None]
            found += fitting
            unknown |= len(fitting) < len(kept)
        if found:
            return tuple(found)
        return () if lost and not unknown else None

    def _reduced(self, output: Tensor) -> Maps | None:
        tensor = self.inputs[0]
        maps = self.tracker.of(tensor)
        if maps is None:
            return None
        dims, keep = self._dims(tensor)
        if self.name in ORDERED:
            kept = [one for one in maps if all(one.shape[dim] == 1 for dim in dims)]
            return tuple(fitted for one in kept if (fitted := _aligned(one, output)) is not None)
        found: list[Tensor] = []
        for one in maps:
            axes = varying(one)
            if axes and not set(axes) - set(dims):
                continue
            if not axes and len(maps) > 1 and any(tensor.shape[dim] == 1 for dim in dims):
                # The only key, which is summed.
                continue
            one = one.amax(dims, keepdim=True) if dims and one.ndim else one
            one = one if keep else one.view([size for axis, size in enumerate(one.shape) if axis not in dims])
            if (fitted := _aligned(one, output)) is not None:
                found.append(self._whole_in_order(fitted, output))
        return tuple(found)

    def _transformed(self, output: Tensor) -> Maps | None:
        """A Fourier transform mixes all positions along its axes."""
        maps = self.tracker.of(self.inputs[0])
        if maps is None:
            return None
        dims = {dim % output.ndim for dim in self.args[1]}
        return tuple(one for one in maps if not dims & set(varying(one)) and _aligned(one, output) is not None)

    def _dims(self, tensor: Tensor) -> tuple[list[int], bool]:
        """The axes that are reduced or ordered, and whether they are kept with size 1."""
        given: dict[str, Any] = dict(self.kwargs)
        formal = [argument.name for argument in self.func._schema.arguments]
        given.update(dict(zip(formal, self.args, strict=False)))
        dim = given.get("dim", -1 if self.name in ORDERED and "dim" in formal else None)
        dims = list(range(tensor.ndim)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
        return [axis % max(1, tensor.ndim) for axis in dims], bool(given.get("keepdim", False))

    def _attended(self, output: Tensor) -> Maps | None:
        """Attention, fused: an output for each query."""
        query = self.inputs[0]
        maps = self.tracker.of(query)
        if maps is None:
            return None
        maps = tuple(one for one in maps if one.shape[-1] == 1)
        if output.shape[:-1] == query.shape[:-1]:
            return maps
        if output.shape == query.shape[:-1]:
            return tuple(one.squeeze(-1) for one in maps)
        return None

    def _convolved(self, output: Tensor) -> Maps | None:
        maps = self.tracker.of(self.inputs[0])
        if not maps:
            return maps
        if output.shape[-1] == self.inputs[0].shape[-1]:
            return self._broadcast(output)
        along_time = any(varying(one) == [one.ndim - 1] for one in maps)
        if along_time and output.shape[-1] == self.tracker.length:
            return (_along(output, output.ndim - 1, self.tracker.length),)
        return None


def joined(inputs: Sequence[Maps], *, ordered: bool = True) -> Maps:
    """The maps of several tensors that are combined element by element.

    Where two of them disagree, the later position counts or, if positions are not `ordered`, that of the first tensor.
    A map over fewer axes than a map of another tensor, such as that of a summary for each chunk, is left out.

    >>> joined([(torch.tensor([[1, 2]]),), (torch.tensor([[0, 1]]), torch.tensor([[0], [1]]))])
    (tensor([[1, 2]]), tensor([[0],
            [1]]))
    """
    by_axes = [{tuple(varying(one)): one for one in maps} for maps in inputs]
    found: dict[tuple[int, ...], Tensor] = {}
    for axes in dict.fromkeys(axes for maps in by_axes for axes in maps):
        same = [maps[axes] for maps in by_axes if axes in maps]
        if any(axes not in maps and any(set(axes) < set(finer) for finer in maps) for maps in by_axes):
            continue
        if not axes and any(not torch.equal(one, same[0]) for one in same):
            # One position each, as in a loop over time: the result belongs to neither.
            continue
        latest = same[0]
        for one in same[1:] if ordered else ():
            latest = torch.maximum(latest, one)
        found[axes] = latest
    return tuple(found.values())


def varying(positions: Tensor) -> list[int]:
    """The axes along which a compact map has more than one entry."""
    return [axis for axis, size in enumerate(positions.shape) if size > 1]


def compact(positions: Tensor) -> Tensor:
    """The map with size 1 along every axis along which it is constant.

    >>> compact(torch.tensor([[3, 4], [3, 4]])).tolist()
    [[3, 4]]
    """
    for axis, size in enumerate(positions.shape):
        if size > 1:
            first = positions.narrow(axis, 0, 1)
            if positions.stride(axis) == 0 or bool((positions == first).all()):
                positions = first
    return positions


def _aligned(positions: Tensor, output: Tensor) -> Tensor | None:
    if positions.ndim > output.ndim:
        return None
    positions = positions.reshape((1,) * (output.ndim - positions.ndim) + positions.shape)
    fits = all(size in (1, whole) for size, whole in zip(positions.shape, output.shape, strict=True))
    return positions if fits else None


def _along(tensor: Tensor, axis: int, length: int) -> Tensor:
    return torch.arange(length).view([length if n == axis else 1 for n in range(tensor.ndim)])


def _spread(positions: Tensor, tensor: Tensor) -> Tensor:
    """The map at the full shape of its tensor, unless an op such as `transpose_` has changed that shape already."""
    fits = all(size in (1, whole) for size, whole in zip(positions.shape, tensor.shape, strict=True))
    return positions.to(tensor.device).expand(tensor.shape) if fits else positions.clone()


def _nowhere(tensor: Tensor) -> Tensor:
    return torch.full((1,) * tensor.ndim, -1, device=tensor.device).expand(tensor.shape)


def _restrided(tensor: Tensor, positions: Tensor, output: Tensor) -> Tensor:
    """The positions in memory, read as the output reads the memory of the tensor."""
    memory = torch.full((tensor.untyped_storage().nbytes() // tensor.element_size(),), -1, device=tensor.device)
    memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(positions)
    return memory.as_strided(output.shape, output.stride(), output.storage_offset())


def _same_memory(a: Tensor, b: Tensor) -> bool:
    try:
        return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()
    except (RuntimeError, NotImplementedError):
        # Sparse and other tensors have no address.
        return False


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found
