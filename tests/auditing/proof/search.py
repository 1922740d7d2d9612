"""Brute force: who really hears whom, found by changing one position at a time, many times, with several weights."""

from collections.abc import Callable

import torch
from torch import Tensor

CAUSAL = {n: torch.ones(n, n).tril().bool() for n in range(1, 40)}

# A product of other rows may round differently, in float64.
ROUNDING = 1e-10

Program = Callable[[Tensor, torch.Generator], Tensor]
"""run(x, weights): weights are drawn from the generator, in the order of use."""


def weights(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def heard_by(program: Program, x: Tensor, *, seed: int, draws: int = 3) -> Tensor:
    """[batch, T_out, batch, T], bool: whom a change was heard by. x is [batch, time, ...]."""
    batch, time = x.shape[:2]
    base = program(x, weights(seed))
    found = torch.zeros(batch, base.shape[1], batch, time, dtype=torch.bool)
    changes = torch.Generator().manual_seed(seed + 1)
    for c in range(batch):
        for j in range(time):
            for draw in range(draws):
                other = x.clone()
                if x.is_floating_point():
                    scale = (1.0, 30.0, 0.01)[draw % 3]
                    other[c, j] = torch.randn(other[c, j].shape, generator=changes) * scale
                else:
                    other[c, j] = torch.randint(0, 7, other[c, j].shape, generator=changes)
                out = program(other, weights(seed))
                moved = ~torch.isclose(out, base, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
                found[:, :, c, j] |= moved.flatten(2).any(dim=2) if moved.dim() > 2 else moved
    return found
