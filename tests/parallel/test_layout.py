"""Layouts: every position has one rank, areas and traffic agree with brute force, placements are as stated."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import init_device_mesh

from rearview import Mask, causal, dilated, documents, full, shared_prefix, window
from rearview.attention.sequence_shard import activated, active_shard, local_keys
from rearview.errors import BadArgument, NoRangeForm
from rearview.parallel import Layout, shard
from rearview.parallel.rank_group import RankGroup
from tests.mask_families import FAMILIES
from tests.parallel.processes import Processes

HOWS = ["contiguous", "head-tail", "area", "dealt"]


def brute_force(layout: Layout, masks: list[Mask]) -> tuple[list[float], list[int]]:
    """The visible area and the received keys of each rank, from dense masks."""
    areas, received = [0.0] * layout.ranks, [0] * layout.ranks
    items = max(mask.batch or 1 for mask in masks)
    for mask in masks:
        dense = mask.to_bool(layout.length)
        dense = dense[(None,) * (4 - dense.ndim)].expand(items, -1, -1, -1)
        for rank in range(layout.ranks):
            mine = layout.positions_of(rank)
            rows = dense[:, :, mine]
            areas[rank] += float(rows.sum()) / rows.shape[1]
            needed = rows.any(2).any(1)
            needed[:, mine] = False
            received[rank] += int(needed.sum())
    return areas, received


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family(2, 4, 71).has_ranges])
def test_area_and_traffic_agree_with_brute_force(name: str):
    for length, ranks, how in [
        (50, 3, "area"),
        (71, 4, "head-tail"),
        (5, 8, "dealt"),
        (64, 2, "contiguous"),
        (37, 5, "best"),
    ]:
        mask = FAMILIES[name](2, 4, length)
        layout = shard(mask, length, ranks, how=how)
        assert sorted(torch.cat([layout.positions_of(rank) for rank in range(ranks)]).tolist()) == list(range(length))
        areas, received = brute_force(layout, [mask])
        assert list(layout.keys_received) == received
        assert layout.area == tuple(int(area + 1e-6) for area in areas)
        if sum(areas):
            assert layout.balance == pytest.approx(max(areas) * ranks / sum(areas))


def test_masks_of_several_layers_are_added_up():
    short, long = causal() & window(6), causal()
    layout = shard([short, long, short], 60, 3)
    areas, received = brute_force(layout, [short, long, short])
    assert list(layout.keys_received) == received
    assert list(layout.area) == areas
    assert layout.work.layers == (2, 1)
    # One mask with a batch axis makes all of them count for every item.
    packed = causal() & documents(torch.stack([torch.arange(60) // 7, torch.arange(60) // 25]))
    both = shard([packed, long], 60, 3)
    areas, received = brute_force(both, [packed, long])
    assert list(both.keys_received) == received
    assert list(both.area) == areas


def test_transfers_are_the_keys_that_are_received():
    layout = shard(causal() & documents([n // 17 for n in range(90)]), 90, 4, how="dealt")
    received = [0] * 4
    owner = {int(p): rank for rank in range(4) for p in layout.positions_of(rank)}
    for move in layout.transfers:
        assert {owner[p] for p in range(move.start, move.end)} == {move.sender} != {move.receiver}
        received[move.receiver] += move.end - move.start
    assert received == list(layout.keys_received)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("length", "ranks"), [(64, 4), (1000, 7), (13, 13), (4097, 8)])
def test_ranks_hold_nearly_the_same_number_of_tokens(how: str, length: int, ranks: int):
    layout = shard(causal() & window(50), length, ranks, how=how)
    assert sum(layout.tokens) == length
    granules = len(layout.owners) // ranks
    assert max(layout.tokens) - min(layout.tokens) <= granules


def test_the_named_placements():
    assert [shard(causal(), 12, 3, how="contiguous").positions_of(rank).tolist() for rank in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    assert [shard(causal(), 12, 3, how="head-tail").positions_of(rank).tolist() for rank in range(3)] == [
        [0, 1, 10, 11],
        [2, 3, 8, 9],
        [4, 5, 6, 7],
    ]


def lognormal_documents(length: int, mean: float, spread: float, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    sizes = (torch.randn(length // 8, generator=random) * spread + mean).exp().long().clamp(16, 8192)
    return torch.arange(len(sizes)).repeat_interleave(sizes)[:length]


def test_the_best_placement_reaches_its_goals_at_64k_on_8_ranks():
    length, ranks = 65_536, 8
    gathered = (ranks - 1) * length

    def fewer(layout: Layout) -> float:
        return gathered / sum(layout.keys_received)

    plain = shard(causal(), length, ranks)
    assert plain.balance < 1.001
    assert plain.how == "head-tail"
    windowed = shard(causal() & window(4096), length, ranks)
    assert windowed.balance < 1.05
    assert fewer(windowed) >= 15
    for seed in range(3):
        packed = shard(causal() & documents(lognormal_documents(length, 7.0, 1.1, seed)), length, ranks)
        assert packed.balance <= 1.05
        assert fewer(packed) >= 8
    prompts = shard(shared_prefix(8192, [3584] * 16), length, ranks)
    assert prompts.balance < 1.05
    assert fewer(prompts) >= 7


def test_a_million_tokens_on_64_ranks_and_a_simulation_of_1024():
    length = 2**20
    ids = lognormal_documents(length, 4.1, 1.0)
    assert int(ids.max()) > 9_000
    mask = causal() & documents(ids)
    started = time.perf_counter()
    layout = shard(mask, length, 64)
    # About a second on an idle core; a loaded machine is given much more.
    assert time.perf_counter() - started < 20
    assert layout.balance <= 1.05
    assert sum(layout.keys_received) < 0.01 * sum(layout.keys_gathered)
    many = shard(causal(), length, 1024)
    assert many.balance < 1.001
    assert len(many.keys_received) == 1024


def test_the_same_arguments_give_the_same_layout():
    ids = lognormal_documents(9_000, 5.0, 1.0)
    one, other = (shard(causal() & documents(ids), 9_000, 6) for _ in range(2))
    assert torch.equal(one.owners, other.owners)
    assert one.how == other.how


def test_rows_positions_and_labels():
    layout = shard(causal(), 11, 3)
    ids = torch.arange(100, 122).view(2, 11)
    for rank in range(3):
        at = layout.positions_of(rank)
        assert torch.equal(layout.split(ids, rank=rank), ids[:, at])
        expected = torch.where(at == 10, -100, ids[:, (at + 1) % 11])
        assert torch.equal(layout.labels(ids, rank=rank), expected)
    assert torch.equal(layout.labels(ids[0], dim=0, ignore=-1, rank=0), layout.labels(ids, rank=0, ignore=-1)[0])


def test_wrong_arguments_are_explained():
    layout = shard(causal(), 10, 2)
    with pytest.raises(NoRangeForm) as unranged:
        shard(causal() & dilated(2), 10, 2)
    assert str(unranged.value) == (
        "causal() & dilated(2) cannot be spread over ranks:\n"
        "  - a layout needs the keys of each query as ranges: the keys that a query hears are not a few ranges\n"
        "Write the mask with window, documents, prefix, chunks, tree or ranges(starts, ends), or run it on one device."
    )
    here = 'Give rank=, make the layout with shard(mask, length, mesh["cp"]), or enter layout.on(mesh["cp"]).'
    axis = 'one axis of a DeviceMesh, such as mesh["cp"], or a process group'
    use = 'Use layout.on(mesh["cp"]), or make the layout with shard(mask, length, mesh["cp"]).'
    cases = [
        (lambda: shard([], 10, 2), "mask: expected a Mask such as causal(), or a sequence with one per layer, got []."),
        (lambda: shard(causal(), 0, 2), "length: expected an integer of at least 1, got 0."),
        (lambda: shard(causal(), 10, 0), "ranks: expected an integer of at least 1, got 0."),
        (lambda: shard(causal(), 10, "cp"), f"mesh: expected {axis}, got str."),  # type: ignore[arg-type]
        (
            lambda: shard(causal(), 10, 2, how="ring"),
            "how: expected best, contiguous, head-tail, area, dealt, got 'ring'.",
        ),
        (
            lambda: layout.split(torch.zeros(1, 9), rank=0),
            "x: expected 10 positions, the whole sequence, along dim 1, got [1, 9].",
        ),
        (
            lambda: layout.split(torch.zeros(10), rank=0),
            "dim: expected an axis of a tensor of shape [10], got 1.",
        ),
        (lambda: layout.split(torch.zeros(1, 10), rank=2), "rank: expected one of 2 ranks, from 0, got 2."),
        (
            lambda: layout.positions,
            f"rank: expected this process's rank, got a layout of no process group. {here}",
        ),
        (lambda: layout.on().__enter__(), f"mesh: expected the ranks of this layout, got None. {use}"),
        (lambda: shard(documents([0] * 9), 10, 2), None),
    ]
    for wrong, message in cases:
        with pytest.raises(BadArgument) as raised:
            wrong()
        assert message is None or str(raised.value) == message


TABLE = """
causal() & window(20)  ·  100 positions over 4 ranks  ·  contiguous

 rank  tokens  visible pairs  of the mean  keys received  in bytes
    0      25            310        0.685              0       0 B
    1      25            500        1.105             19  76.0 KiB
    2      25            500        1.105             19  76.0 KiB
    3      25            500        1.105             19  76.0 KiB

 balance        the slowest rank has 1.105 times the mean area
 keys received  19.0 % of those of an all-gather: an all-gather would bring 5.3 times as many
 bytes          of a forward pass, at 4,096 bytes per key and layer; a backward pass returns as many
"""


def test_print_shows_a_table():
    layout = shard(causal() & window(20), 100, 4, how="contiguous")
    assert str(layout) == TABLE.strip()
    assert repr(layout) == "Layout(causal() & window(20), length=100, ranks=4, how='contiguous', balance=1.105)"
    best = shard([causal() & window(20), causal()], 1000, 40)
    assert (
        str(best)
        .splitlines()[0]
        .startswith("1 x causal() & window(20), 1 x causal()  ·  1,000 positions over 40 ranks")
    )
    assert str(best).splitlines()[3].split()[0] == "least"
    assert sum(line.startswith(" not taken") for line in str(best).splitlines()) == 3


def test_show_draws_what_is_held_and_received():
    lines = str(shard(causal() & window(9), 64, 2, how="contiguous").show()).splitlines()
    assert lines[3] == "    0  " + "█" * 32 + "·" * 32
    assert lines[4] == "    1  " + "·" * 24 + "▒" * 8 + "█" * 32
    assert str(shard(full(), 10, 50).show()).splitlines()[-3] == "       and 18 more ranks"


def test_a_picture_is_the_same_bytes_each_time(tmp_path):
    pytest.importorskip("matplotlib")
    layout = shard(causal() & window(9), 64, 4)
    for name in ("one.svg", "two.svg"):
        layout.save_picture(tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert "keys received" in (tmp_path / "one.svg").read_text()
    with pytest.raises(BadArgument, match="at most 64 ranks"):
        shard(causal(), 1000, 100).save_picture(tmp_path / "many.svg")


def on_a_mesh(group: ProcessGroup) -> dict[str, object]:
    """A mesh of 2 x 2 processes: each row of it is a group of its own for the sequence."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    cp = mesh["cp"]
    layout = shard(causal(), 9, cp)
    ids = torch.arange(9).view(1, 9)
    errors = []
    for wrong in (mesh, "cp"):
        try:
            RankGroup.of(wrong)  # type: ignore[arg-type]
        except BadArgument as error:
            errors.append(str(error))
    try:
        with shard(causal(), 9, 4).on(cp):
            pass
    except BadArgument as error:
        errors.append(str(error))
    return {
        "positions": layout.positions.tolist(),
        "joined": layout.join(layout.split(ids)).tolist(),
        "errors": errors,
    }


def test_an_axis_of_a_mesh_is_a_group(processes: Processes):
    found = processes.run(on_a_mesh, 4)
    assert [each["positions"] for each in found[:2]] == [each["positions"] for each in found[2:]]
    assert sorted(found[0]["positions"] + found[1]["positions"]) == list(range(9))
    axis = 'one axis of a DeviceMesh, such as mesh["cp"], or a process group'
    for each in found:
        assert each["joined"] == [list(range(9))]
        assert each["errors"] == [
            f"mesh: expected {axis}, got a mesh of 2 axes. Choose an axis: mesh['cp'].",
            f"mesh: expected {axis}, got str.",
            "mesh: expected 4 ranks, as the layout has, got 2. Make the layout with shard(mask, length, mesh).",
        ]


def unused(group: ProcessGroup) -> list[str]:
    import warnings

    layout, said = shard(causal(), 9, group), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with layout.on() as here:
            said.append(str(here.ranks_here is not None))
    said += [str(each.message) for each in caught]
    try:
        with layout.on(), layout.on():
            pass
    except BadArgument as error:
        said.append(str(error))
    return said


def test_a_layout_that_no_attention_used_is_reported(processes: Processes):
    for said in processes.run(unused, 2):
        assert said == [
            "True",
            'No attention ran on the layout. A transformers model runs on it with attn_implementation="rearview" '
            "only; with others, each rank hears its own rows alone.",
            "layout.on: expected no other active layout, got a layout inside another. Leave the other block first.",
        ]


def test_an_operator_sees_local_keys_only():
    shard_here: Any = object()
    with activated(shard_here):
        assert active_shard() is shard_here
        with local_keys():
            assert active_shard() is None
        assert active_shard() is shard_here
    assert active_shard() is None
