"""The launches of a pass, recorded to be repeated with other tensors of the same shapes, strides and dtypes.

What a pass works out for its arguments takes ten times as long as its launches, and is the same for a kind of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from rearview.attention.engines.hopper.launcher import ALIGNMENT, Compiled, Repeated, Tiled, launch

# (shape, strides, dtype) of what a pass allocates.
Made = tuple[torch.Size, tuple[int, ...], torch.dtype]


class Recording:
    """A pass that is run and recorded.

    Args:
        given: the tensors that will be others in the next call.
        kept: the tensors that will be the same. A pass that reads any further tensor cannot be repeated.
    """

    def __init__(self, given: Iterable[Tensor], kept: Iterable[Tensor]) -> None:
        self._given, self._kept = list(given), list(kept)
        self._made: list[Tensor] = []
        self._launches: list[tuple[Compiled | None, tuple[int, ...], Sequence[Any]]] = []

    def made(self, tensor: Tensor) -> Tensor:
        """A tensor that the pass has allocated, and that a repetition must allocate too."""
        self._made.append(tensor)
        return tensor

    def keep(self, *tensors: Tensor) -> None:
        """Further tensors that will be the same."""
        self._kept += tensors

    def launch(
        self, kernel: Any, programs: tuple[int, ...], arguments: Sequence[Any], constants: Mapping[str, object]
    ) -> None:
        self._launches.append((launch(kernel, programs, arguments, constants), programs, arguments))

    def repetition(self) -> Repetition | None:
        """What repeats the pass; None where that is not possible, as after launches that were the first of their kind.

        It holds none of the tensors that were given or made.
        """
        changing = [*self._given, *self._made]
        if any(each.data_ptr() % ALIGNMENT for each in changing):
            return None
        # Where one tensor has two roles, the first counts.
        places = {id(each): place for place, each in reversed(list(enumerate([*changing, *self._kept])))}
        launches = []
        for compiled, programs, arguments in self._launches:
            tensors = [each.tensor if isinstance(each, Tiled) else each for each in arguments]
            tensors = [each for each in tensors if isinstance(each, Tensor)]
            if compiled is None or any(id(each) not in places for each in tensors):
                return None
            # Of one item it would return no tuple, but a kernel reads one tensor and writes another.
            chosen = itemgetter(*(places[id(each)] for each in tensors))
            launches.append((Repeated(compiled, programs, arguments), chosen))
        made = [(each.shape, each.stride(), each.dtype) for each in self._made]
        return Repetition(self._given[0].device, made, self._kept, launches)


class Repetition:
    """A function of the tensors that are given, in the order of the recording; returns those that the pass makes."""

    def __init__(
        self,
        device: torch.device,
        made: Sequence[Made],
        kept: Sequence[Tensor],
        launches: Sequence[tuple[Repeated, Callable[[Sequence[int]], tuple[int, ...]]]],
    ) -> None:
        self._device, self._made, self._launches = device, made, launches
        # Kept alive: only their addresses are read.
        self._kept = tuple(kept)
        self._fixed = tuple(each.data_ptr() for each in kept)

    def __call__(self, given: Sequence[Tensor]) -> list[Tensor] | None:
        """None, without a launch, where the compiled kernels do not serve these tensors."""
        device = self._device
        if torch._C._cuda_getDevice() != device.index:
            return None
        made = [torch.empty_strided(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in self._made]
        addresses = [each.data_ptr() for each in given]
        addresses += [each.data_ptr() for each in made]
        bits = 0
        for address in addresses:
            bits |= address
        if bits % ALIGNMENT:
            return None
        table = (*addresses, *self._fixed)
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        for repeated, chosen in self._launches:
            repeated(chosen(table), stream)
        return made
