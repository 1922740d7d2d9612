"""Tiles: full, partial or skipped, compared with every pair."""

import pytest
import torch

from rearview import causal, dilated, padding, where, window
from rearview.errors import BadArgument
from rearview.masks import Frame
from rearview.masks.tiles import FULL, PARTIAL, SKIPPED, Tiles
from tests.mask_families import FAMILIES

CPU = torch.device("cpu")
LENGTH = 33

FRAMES = [Frame.of(LENGTH), Frame.of(1, LENGTH), Frame.of(7, 20), Frame.of(10, 21, q_start=5)]


def by_hand(visible: torch.Tensor, q_block: int, k_block: int) -> list:
    def kind(tile: torch.Tensor) -> int:
        return FULL if bool(tile.all()) else PARTIAL if bool(tile.any()) else SKIPPED

    return [
        [[[kind(tile) for tile in strip.split(k_block, -1)] for strip in head.split(q_block, -2)] for head in item]
        for item in visible
    ]


@pytest.mark.parametrize("block", [1, 3, 16, 64, (4, 16), (16, 5)], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, block: int | tuple[int, int]):
    mask = FAMILIES[family](2, 3, LENGTH)
    q_block, k_block = block if isinstance(block, tuple) else (block, block)
    for frame in FRAMES:
        tiles = Tiles.of(mask, frame, block=block, device=CPU)
        assert tiles.kind.tolist() == by_hand(mask.visible_in(frame, CPU), q_block, k_block)
        assert (tiles.q_block, tiles.k_block) == (q_block, k_block)


@pytest.mark.parametrize("mask", [causal(), padding([3, 5]), dilated(2), where(lambda i, j: j < i)], ids=str)
@pytest.mark.parametrize(("q_len", "k_len"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_tile(mask, q_len: int, k_len: int):
    kind = mask.tiles(q_len, k_len, block=2).kind
    assert kind.shape == (mask.batch or 1, 1, -(-q_len // 2), -(-k_len // 2))
    assert mask.tiles(q_len, k_len, block=2).counts == {"skipped": 0, "partial": 0, "full": 0}


def test_an_edge_tile_is_full_when_all_of_it_that_exists_is_visible():
    assert causal().tiles(2, 5, block=4).kind[0, 0].tolist() == [[FULL, PARTIAL]]
    assert window(2, ahead=9).tiles(5, block=4).kind[0, 0].tolist() == [[PARTIAL, FULL], [PARTIAL, FULL]]


def test_counts_add_up():
    tiles = (causal() & window(256)).tiles(1024, block=128)
    # On the diagonal, and two rows further down, a tile is cut; between them one is whole.
    assert tiles.counts == {"partial": 8 + 6, "full": 7, "skipped": 64 - 21}


@pytest.mark.parametrize(
    ("block", "message"),
    [(0, "got 0"), ((4, 0), "got 0"), (2.0, r"got 2\.0"), (True, "got True")],
)
def test_a_block_is_a_whole_number(block, message: str):
    with pytest.raises(BadArgument, match=rf"^block: expected an integer of at least 1, {message}"):
        causal().tiles(8, block=block)


def test_a_block_has_two_sides():
    with pytest.raises(BadArgument, match=r"^block: expected one size, or \(query block, key block\), got \(1, 2, 3\)"):
        causal().tiles(8, block=(1, 2, 3))  # pyright: ignore[reportArgumentType]
