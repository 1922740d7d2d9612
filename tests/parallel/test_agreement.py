"""Ranks that are about to exchange different things all say so, before anything travels."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from rearview import Mask, attend, causal, documents, window
from rearview.errors import BadArgument
from rearview.parallel import shard
from rearview.parallel.agreement import MOST_REMEMBERED, Agreements
from rearview.parallel.rank_group import RankGroup
from tests.parallel.processes import Processes

LENGTH = 36


def said(group: ProcessGroup, *, length: int = LENGTH, how: str = "contiguous", mask: Mask = causal(), **given) -> str:
    layout = shard(causal(), length, group, how=how)
    query = torch.ones(given.get("batch", 1), 2, len(layout.positions), 4, dtype=given.get("dtype", torch.float32))
    try:
        with layout.on():
            attend(query, query, query, mask=mask)
    except BadArgument as error:
        return str(error)
    return "nothing"


def different_on_the_last_rank(group: ProcessGroup) -> dict[str, str]:
    is_last = dist.get_rank(group) == dist.get_world_size(group) - 1
    ids = torch.arange(LENGTH) // 5
    other: dict[str, dict[str, Any]] = {
        "mask": {"mask": causal() & window(5)},
        "ids": {"mask": causal() & documents(ids.flip(0))},
        "placement": {"how": "head-tail"},
        "length": {"length": LENGTH + 1},
        "dtype": {"dtype": torch.float64},
        "batch": {"batch": 2},
    }
    usual: dict[str, dict[str, Any]] = {"ids": {"mask": causal() & documents(ids)}}
    return {name: said(group, **(given if is_last else usual.get(name, {}))) for name, given in other.items()}


def test_what_differs_between_ranks_is_an_error_on_every_rank(processes: Processes):
    def message(argument: str, expected: str, advice: str) -> str:
        return f"{argument}: expected {expected} on every rank, got something else on rank 2 than on rank 0. {advice}"

    mask = message("mask", "the same mask", "Make it from the same arguments, and random ids with the same seed.")
    layout = message("layout", "the same layout", "Make it from the same masks, length and placement.")
    tensors = message(
        "key, value", "tensors of the same dtype, batch, heads and dim", "Only the number of rows may differ."
    )
    expected = {"mask": mask, "ids": mask, "placement": layout, "length": layout, "dtype": tensors, "batch": tensors}
    assert processes.run(different_on_the_last_rank, 3) == [expected] * 3


def comparisons(group: ProcessGroup) -> list[int]:
    """How often ranks compare: in two layers, two steps, then with equal ids made anew, and with other ids."""
    counts, original = [0], dist.all_gather

    def counting(*arguments, **options):
        counts[-1] += 1
        return original(*arguments, **options)

    dist.all_gather = counting
    try:
        layout = shard(causal(), LENGTH, group)
        x = torch.ones(1, 2, len(layout.positions), 4)
        packed = [causal() & documents(torch.arange(LENGTH) // size) for size in (5, 5, 6)]
        for masks in ([packed[0]] * 4, packed[1:2], packed[2:]):
            for mask in masks:
                with layout.on():
                    attend(x, x, x, mask=mask)
            counts.append(0)
    finally:
        dist.all_gather = original
    return counts[:-1]


def test_ranks_compare_once_for_each_mask(processes: Processes):
    assert processes.run(comparisons, 2) == [[1, 0, 1]] * 2
    assert processes.run(comparisons, 1) == [[0, 0, 0]]


def remembered(group: ProcessGroup) -> tuple[int, list[int]]:
    """How many agreements are kept after three more than fit, and which are compared again."""
    agreements, ranks = Agreements(), RankGroup.of(group)

    def check(mask: int) -> bool:
        kept = list(agreements._found)
        agreements.check(ranks, torch.device("cpu"), layout=1, mask=mask, tensors=1)
        return list(agreements._found) != kept

    for mask in range(MOST_REMEMBERED + 3):
        check(mask)
    again = [mask for mask in (MOST_REMEMBERED, 3, 2) if check(mask)]
    return len(agreements._found), again


def test_old_agreements_are_forgotten(processes: Processes):
    assert processes.run(remembered, 2) == [(MOST_REMEMBERED, [2])] * 2
