"""What the Hopper kernels read of a mask, against the dense mask: on a GPU, or else in the interpreter of Triton."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rearview import Mask, causal, documents, full, prefix, window
from rearview.attention.call import Call
from rearview.attention.engines.hopper.schedule import (
    Schedule,
    pack,
    schedule_of,
    schedule_of_packing,
    schedule_of_ranges,
    schedule_of_rule,
)
from rearview.attention.engines.hopper.tiling import GRANULE, KEY_TILE
from rearview.masks import Frame
from tests.mask_families import FAMILIES

HAS_GPU = torch.cuda.is_available()
IN_INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
BATCH, HEADS = 2, 4
# Lengths that end within a granule and within a tile of keys, and several of each.
LENGTHS = (63, 300) if HAS_GPU else (200,)

# NumPy, which the interpreter uses, warns about unused overflows.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in :RuntimeWarning")
by_kernels = pytest.mark.skipif(
    not (HAS_GPU or IN_INTERPRETER), reason="needs a GPU; without one, test_in_the_interpreter runs it there"
)


def dense(mask, frame: Frame) -> Tensor:
    """Bool [mask heads, q_len, k_len]."""
    return mask.visible_in(frame, DEVICE).flatten(0, 1)


def visits(schedule: Schedule, height: int, width: int) -> Tensor:
    """What the blocks of queries visit, by the arithmetic of `block_at`: [mask heads, blocks, ranges, tiles] kinds.

    0: not visited, 1: with the mask, 2: without.
    """
    granules = schedule.granules.cpu()
    heads, count = granules.shape[:2]
    blocks, tiles = -(-count // height), -(-schedule.frame.k_len // width)
    found = torch.zeros(heads, blocks, schedule.ranges, tiles, dtype=torch.int)
    for head in range(heads):
        for block in range(blocks):
            low, inner_low, inner_high, high = granules[head, block * height : (block + 1) * height].unbind(-1)
            for index in range(schedule.ranges):
                end = -(-int(high[:, index].max()) // width)
                first = int(low[:, index].min()) // width if end else 0
                full = max(min(-(-int(inner_low[:, index].max()) // width), end), first)
                full_end = max(min(max(int(inner_high[:, index].min()), 0) // width, end), full)
                found[head, block, index, first:end] = 1
                found[head, block, index, full:full_end] = 2
    return found


def expected_kinds(visible: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Whether some pair of a tile is heard, and whether all of it exists and is heard."""
    rows, keys = visible.shape[1:]
    some = torch.nn.functional.pad(visible, (0, -keys % width, 0, -rows % height))
    beyond = torch.nn.functional.pad(visible, (0, -keys % width))
    every = torch.nn.functional.pad(beyond, (0, 0, 0, -rows % height), value=True)
    some, every = (each.unflatten(2, (-1, width)).unflatten(1, (-1, height)) for each in (some, every))
    return some.any(-1).any(2).cpu(), every.all(-1).all(2).cpu()


@by_kernels
@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("length", LENGTHS)
def test_tiles_of_ranges(family: str, length: int):
    mask, frame = FAMILIES[family](BATCH, HEADS, length), Frame.of(length)
    if not mask.has_ranges or mask.spans_in(frame, torch.device("cpu")).most_ranges > 2:
        pytest.skip("this mask is read as bits")
    schedule = schedule_of_ranges(mask.spans_in(frame, torch.device("cpu")), frame, DEVICE)
    visible = dense(mask, frame)
    for height, width in ((1, 128), (2, 64), (3, 128)):
        kinds = visits(schedule, height, width)
        some, every = expected_kinds(visible, height * GRANULE, width)
        # What is heard is visited, and what is visited without the mask is heard in full, by one range.
        assert bool(((kinds > 0).any(2) | ~some).all())
        assert bool(((kinds == 2).any(2) <= every).all())
        if schedule.ranges == 1 and "ranges" not in family:
            assert torch.equal((kinds == 2)[:, :, 0], every)
    lists = schedule.key_lists(2)
    tiles = visits(schedule, 2, KEY_TILE)
    for head, blocks, index, tile in torch.cartesian_prod(*map(torch.arange, tiles.shape)).tolist():
        entries = lists.entries[head, tile, : int(lists.counts[head, tile])].tolist()
        entry = blocks * 4 + index * 2
        kind = int(tiles[head, blocks, index, tile])
        assert (entry in entries, entry + 1 in entries) == (kind == 2, kind == 1)
    for head, tile in torch.cartesian_prod(*map(torch.arange, lists.counts.shape)).tolist():
        entries = lists.entries[head, tile, : int(lists.counts[head, tile])].tolist()
        assert entries == sorted(set(entries))


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("length", [63, 200])
def test_tiles_of_bits(family: str, length: int):
    mask, frame = FAMILIES[family](BATCH, HEADS, length), Frame.of(length)
    schedule = schedule_of_rule(mask, frame, DEVICE)
    visible = dense(mask, frame)
    assert torch.equal(schedule.bits, pack(visible))
    word = schedule.bits.repeat_interleave(32, dim=-1)[..., :length]
    assert torch.equal((word >> (torch.arange(length, device=DEVICE) % 32)) & 1, visible.int())
    assert torch.equal(
        torch.zeros(1, 1, length, dtype=torch.bool)
        if schedule.unheard is None
        else schedule.unheard.cpu().flatten(0, 1),
        ~visible.any(1).cpu() if schedule.unheard is not None else torch.zeros(1, 1, length, dtype=torch.bool),
    )
    for height, width in ((1, 128), (2, 64), (3, 128), (2, 32)):
        lists = schedule.query_lists(height, width)
        some, every = expected_kinds(visible, height * GRANULE, width)
        for head, block in torch.cartesian_prod(*map(torch.arange, some.shape[:2])).tolist():
            entries = lists.entries[head, block, : int(lists.counts[head, block])].tolist()
            heard = some[head, block].nonzero().flatten().tolist()
            if not heard:
                # One tile, with the mask, so that zeros are written.
                assert entries[0] == 1
                continue
            assert set(heard) <= {entry // 2 for entry in entries}
            assert all(entry & 1 or every[head, block, entry // 2] for entry in entries)
            if width >= GRANULE:
                assert entries == [tile * 2 + (0 if every[head, block, tile] else 1) for tile in heard]
    lists = schedule.key_lists(1)
    some, every = expected_kinds(visible, GRANULE, KEY_TILE)
    for head, tile in torch.cartesian_prod(*map(torch.arange, lists.counts.shape)).tolist():
        entries = lists.entries[head, tile, : int(lists.counts[head, tile])].tolist()
        heard = some[head, :, tile].nonzero().flatten().tolist()
        assert entries == [block * 4 + (0 if every[head, block, tile] else 1) for block in heard]


@by_kernels
def test_a_mask_is_scheduled_once():
    x = torch.zeros(1, 2, 200, 16, dtype=torch.bfloat16, device=DEVICE)
    mask = (causal() & window(9)) | prefix(2)
    first, second = (schedule_of(Call.of(x, x, x, mask=mask), DEVICE) for _ in range(2))
    assert first is second
    assert first.ranges == 2
    # Where a row must not depend on its neighbours, a tile is visited once.
    assert schedule_of(Call.of(x, x, x, mask=mask, batch_invariant=True), DEVICE).ranges == 0


def packed(length: int, items: int, seed: int) -> Tensor:
    """Ids of documents of all lengths from 1 on; ids need not be consecutive, nor begin at 0."""
    generator = torch.Generator().manual_seed(seed)
    begins = torch.rand(items, length, generator=generator) < 0.03 * seed
    return (begins * torch.randint(1, 9, (items, length), generator=generator)).cumsum(1) - 5


PACKINGS = {
    "causal": lambda ids: causal() & documents(ids),
    "both ways": documents,
    "window": lambda ids: causal() & documents(ids) & window(70) & full(),
    "two windows": lambda ids: window(90, ahead=3) & documents(ids) & window(20, ahead=40),
}


@by_kernels
@pytest.mark.parametrize("kind", PACKINGS)
@pytest.mark.parametrize(("items", "length", "seed"), [(1, 200, 1), (2, 130, 2), (3, 64, 0), (2, 63, 9)])
def test_packed_documents_become_ranges_on_the_device(kind: str, items: int, length: int, seed: int):
    ids = packed(length, items, seed)
    mask, frame = PACKINGS[kind](ids if items > 1 else ids[0]), Frame.of(length)
    packing = mask.packing_in(frame)
    assert packing is not None
    found = schedule_of_packing(packing, frame, DEVICE)
    wanted = schedule_of_ranges(mask.spans_in(frame, torch.device("cpu")), frame, DEVICE)
    assert torch.equal(found.both, wanted.both)
    assert torch.equal(found.granules, wanted.granules)
    assert (found.by_item, found.by_head, found.unheard) == (wanted.by_item, wanted.by_head, None)
    assert schedule_of(Call.of(*(torch.zeros(items, 1, length, 16),) * 3, mask=mask), DEVICE).both.shape[1] == items


NOT_PACKED: dict[str, Mask] = {
    "ids fall": causal() & documents([1, 0, 0, 0]),
    "another part": causal() & documents([0, 0, 1, 1]) & ~prefix(1),
    "an or": documents([0, 0, 1, 1]) | causal(),
    "two sets of ids": documents([0, 0, 1, 1]) & documents([0, 1, 1, 1]),
    "no documents": causal() & window(3),
    "more ids than keys": causal() & documents([0, 0, 1, 1, 1]),
    "ids beyond int32": causal() & documents([0, 0, 1, 1 << 40]),
}


@pytest.mark.parametrize("mask", NOT_PACKED)
def test_other_masks_are_no_packing(mask: str):
    assert NOT_PACKED[mask].packing_in(Frame.of(4)) is None


def test_a_packing_is_for_all_positions():
    mask = causal() & documents([0, 0, 1, 1])
    assert mask.packing_in(Frame.of(4)) is not None
    assert mask.packing_in(Frame.of(2, 4)) is None
    assert mask.packing_in(Frame.of(4, 4, 1)) is None


@pytest.mark.skipif(HAS_GPU or IN_INTERPRETER, reason="here the kernels run by themselves")
def test_in_the_interpreter():
    if importlib.util.find_spec("triton") is None:
        if os.environ.get("CI"):
            pytest.fail("Triton is not installed. In CI the tests of the GPU kernels may not be skipped.")
        pytest.skip("Triton, which interprets the kernels, is not installed")
    # Triton reads the variable when it is imported.
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", "not bits", __file__]
    done = subprocess.run(command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    # If all tests were skipped, this would prove nothing.
    assert re.search(r"\b[1-9]\d passed", done.stdout), done.stdout
