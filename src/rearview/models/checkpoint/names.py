"""The tensors of a checkpoint that make up one parameter of a model.

>>> import torch
>>> qkv = StoredParameter(("q.weight", "k.weight", "v.weight"))
>>> stored = {name: torch.full((2, 3), n) for n, name in enumerate(qkv.names)}
>>> qkv.read(stored)[:, 0].tolist()
[0, 0, 1, 1, 2, 2]
>>> [tensor.shape for tensor in qkv.write(qkv.read(stored)).values()]
[torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([2, 3])]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.errors import BadFile


@dataclass(frozen=True)
class StoredParameter:
    """The stored tensors `names`, concatenated along the first axis; `transposed` if they are [in, out]."""

    names: tuple[str, ...]
    transposed: bool = False

    def read(self, stored: Mapping[str, Tensor]) -> Tensor:
        """The parameter, from the stored tensors."""
        parts = [stored[name] for name in self.names]
        shapes = [list(part.shape) for part in parts]
        if any(not shape or len(shape) > 2 or shape[1:] != shapes[0][1:] for shape in shapes):
            given = ", ".join(f"{name} {shape}" for name, shape in zip(self.names, shapes, strict=True))
            raise BadFile(
                "the safetensors", f"expected vectors or matrices that join along the first axis, got {given}"
            )
        if self.transposed and parts[0].ndim == 2:
            parts = [part.T for part in parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def write(self, parameter: Tensor) -> dict[str, Tensor]:
        """The stored tensors, from the parameter."""
        parts = parameter.chunk(len(self.names))
        return {
            name: (part.T if self.transposed else part).contiguous()
            for name, part in zip(self.names, parts, strict=True)
        }


def linear(ours: str, *theirs: str, bias: bool = True, transposed: bool = False) -> dict[str, StoredParameter]:
    """The weight and the bias of a linear layer or a norm, by the names `ours` and `theirs`."""
    found = {f"{ours}.weight": StoredParameter(tuple(f"{name}.weight" for name in theirs), transposed)}
    if bias:
        found[f"{ours}.bias"] = StoredParameter(tuple(f"{name}.bias" for name in theirs))
    return found
