"""One tensor of ours, by the names that a checkpoint has for it.

>>> import torch
>>> qkv = Theirs(("q.weight", "k.weight", "v.weight"))
>>> theirs = {name: torch.full((2, 3), n) for n, name in enumerate(qkv.names)}
>>> qkv.read(theirs)[:, 0].tolist()
[0, 0, 1, 1, 2, 2]
>>> [tensor.shape for tensor in qkv.write(qkv.read(theirs)).values()]
[torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([2, 3])]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Theirs:
    """`names`: tensors of theirs that stand one above the other in ours. `transposed`: theirs is [in, out]."""

    names: tuple[str, ...]
    transposed: bool = False

    def read(self, theirs: Mapping[str, Tensor]) -> Tensor:
        parts = [theirs[name].T if self.transposed else theirs[name] for name in self.names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def write(self, ours: Tensor) -> dict[str, Tensor]:
        parts = ours.chunk(len(self.names))
        return {
            name: (part.T if self.transposed else part).contiguous()
            for name, part in zip(self.names, parts, strict=True)
        }


def linear(ours: str, *theirs: str, bias: bool = True, transposed: bool = False) -> dict[str, Theirs]:
    """The weight and the bias of a projection."""
    found = {f"{ours}.weight": Theirs(tuple(f"{name}.weight" for name in theirs), transposed)}
    if bias:
        found[f"{ours}.bias"] = Theirs(tuple(f"{name}.bias" for name in theirs))
    return found
