"""`attend` on a layout is `attend` on one process: output, log-sum-exp and gradients, in float64, for every mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rearview import attend
from rearview.parallel import shard
from tests.mask_families import FAMILIES
from tests.parallel.processes import Processes

BATCH, HEADS, KEY_HEADS, DIM, VALUE_DIM = 2, 4, 2, 8, 6
RANGED = [name for name, family in FAMILIES.items() if family(BATCH, HEADS, 37).has_ranges]


def inputs(length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(length)
    sizes = [(HEADS, DIM), (KEY_HEADS, DIM), (KEY_HEADS, VALUE_DIM), (HEADS, VALUE_DIM)]
    query, key, value, gradient = (
        torch.randn(BATCH, heads, length, dim, generator=random, dtype=torch.float64) for heads, dim in sizes
    )
    return query, key, value, gradient


def run_on_layout(group: ProcessGroup, cases: list[tuple[str, int, str]]) -> list[dict[str, float]]:
    """The largest differences from one process, for each case (family, length, placement)."""
    found = []
    for name, length, how in cases:
        mask = FAMILIES[name](BATCH, HEADS, length)
        whole = inputs(length)
        query, key, value, gradient = (x.clone().requires_grad_() for x in whole)
        out, lse = attend(query, key, value, mask=mask, return_lse=True, engine="reference")
        (out * gradient).sum().backward()
        layout = shard(mask, length, group, how=how)
        mine = [layout.split(x, dim=2).requires_grad_() for x in whole]
        with layout.on():
            part, part_lse = attend(*mine[:3], mask=mask, return_lse=True)
            (part * mine[3]).sum().backward()
        compared = {"out": (part, out), "lse": (part_lse, lse)}
        for each, mine_each, whole_each in zip(("dq", "dk", "dv"), mine, (query, key, value), strict=False):
            assert mine_each.grad is not None
            assert whole_each.grad is not None
            compared[each] = (mine_each.grad, whole_each.grad)
        differences = {}
        for what, (local, reference) in compared.items():
            expected = layout.split(reference.detach(), dim=2)
            assert local.shape == expected.shape
            assert torch.equal(local.isinf(), expected.isinf())
            there = ~expected.isinf()
            differences[what] = float((local - expected)[there].abs().max()) if there.any() else 0.0
        found.append(differences)
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_mask_gives_what_one_process_gives(processes: Processes, size: int):
    hows = ["best", "head-tail", "area", "dealt", "contiguous"]
    cases = [(name, length, hows[(n + length) % 5]) for n, name in enumerate(RANGED) for length in (37, 61)]
    for rank, found in enumerate(processes.run(run_on_layout, size, cases)):
        for case, differences in zip(cases, found, strict=True):
            assert max(differences.values()) < 1e-12, (rank, case, differences)
