"""The cache in pages beside the one that is not, and its blocks: shared, copied before they are written, given back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rearview import MaskedSelfAttention, PagedCache, attend, causal, observe, window
from rearview.attention import KeyValueCache
from rearview.errors import BadArgument

HEADS, DIM = 2, 4
engines = pytest.mark.parametrize("engine", ["auto", "reference"])


def both(batch: int = 3, max_len: int = 12, **options: Any) -> tuple[PagedCache, KeyValueCache]:
    options = {"block_size": 3, **options}
    paged = PagedCache(batch=batch, heads=HEADS, max_len=max_len, key_dim=DIM, **options)
    return paged, KeyValueCache(batch=batch, heads=HEADS, max_len=max_len, key_dim=DIM)


def some(batch: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, batch, HEADS, count, DIM, generator=generator))  # pyright: ignore[reportReturnType]


def assert_same(paged: PagedCache, plain: KeyValueCache) -> None:
    assert paged.lengths == plain.lengths
    assert len(paged) == len(plain)
    assert (paged.starts is None) == (plain.starts is None)
    for mine, theirs in zip(paged.contents(), plain.contents(), strict=True):
        for item, length in enumerate(plain.lengths):
            assert torch.equal(mine[item, :, :length], theirs[item, :, :length])
    # Each block has as many users as there are items that hold it, and the others are free.
    users = [sum(row.count(block) for row in paged._blocks) for block in range(paged.num_blocks)]
    assert users == paged._users
    assert sorted(paged._free) == [block for block, count in enumerate(users) if not count]
    assert paged.blocks_in_use == sum(count > 0 for count in users)


@given(st.data())
def test_it_holds_what_the_other_one_holds(data):
    paged, plain = both(num_blocks=60)
    for step in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(["append", "keep", "take", "put", "reset"])):
            case "append":
                room = plain.max_len - len(plain)
                new = some(plain.batch, data.draw(st.integers(0, min(room, 5))), seed=step)
                paged.append(*new)
                plain.append(*new)
            case "keep":
                lengths = [data.draw(st.integers(0, length)) for length in plain.lengths]
                nodes = [own - length for own, length in zip(plain.lengths, lengths, strict=True)]
                subsets = [data.draw(st.sets(st.integers(0, max(0, count - 1)))) if count else set() for count in nodes]
                paths = data.draw(st.sampled_from([None, [sorted(subset) for subset in subsets]]))
                paged.keep(lengths, paths)
                plain.keep(lengths, paths)
            case "take":
                items = data.draw(st.lists(st.integers(0, plain.batch - 1), min_size=1, max_size=5))
                paged.take(items)
                plain.take(items)
            case "put":
                items = data.draw(st.lists(st.integers(0, plain.batch - 1), min_size=1, unique=True))
                other = both(batch=len(items))[data.draw(st.integers(0, 1))]
                other.append(*some(len(items), 7, seed=step))
                other.keep([data.draw(st.integers(0, 7)) for _ in items])
                paged.put(items, other)
                plain.put(items, other)
            case "reset":
                paged.reset()
                plain.reset()
        assert_same(paged, plain)


def test_a_prompt_is_held_once_for_all_who_continue_it():
    paged, _ = both(batch=1, max_len=30, num_blocks=12)
    prompt = some(1, 8)
    paged.append(*prompt)
    assert paged.blocks_in_use == 3
    paged.take([0] * 4)
    assert paged.blocks_in_use == 3
    before = paged.keys.clone()
    paged.append(*some(4, 1, seed=1))
    # The two full blocks are shared; of the third, three items have copies and the last one keeps the original.
    assert paged.blocks_in_use == 2 + 4
    assert paged.pages.shared_prefixes(3) == [([0, 1, 2, 3], 2)]
    for item in range(4):
        assert torch.equal(paged.contents()[0][item, :, :8], prompt[0][0])
    shared = paged.pages.table[0, :2].long()
    assert torch.equal(paged.keys[shared], before[shared])
    paged.take([2])
    assert paged.blocks_in_use == 3
    paged.reset()
    assert paged.blocks_in_use == 0


def test_only_who_writes_into_a_shared_block_gets_a_copy():
    # Two items share two blocks. The first has filled the second block, and the other one has kept a part of it.
    paged, plain = both(batch=1, num_blocks=4)
    for cache in (paged, plain):
        cache.append(*some(1, 6))
        cache.take([0, 0])
        cache.keep([6, 5])
        cache.append(*some(2, 1, seed=1))
    assert paged.blocks_in_use == 4
    assert_same(paged, plain)


def test_of_the_items_that_move_nodes_in_a_shared_block_the_last_keeps_it():
    # Three blocks are used, so there is room for one copy.
    paged, plain = both(batch=1, num_blocks=4)
    for cache in (paged, plain):
        cache.append(*some(1, 7))
        cache.take([0, 0])
        cache.keep([4, 4], [[1], [0, 2]])
    assert paged.blocks_in_use == 3
    assert_same(paged, plain)


def test_a_batch_without_items():
    paged, plain = both()
    for cache in (paged, plain):
        cache.append(*some(3, 2))
        cache.take([])
        cache.append(*some(0, 2))
        cache.append(*some(0, 1))
    assert paged.blocks_in_use == 0
    assert paged.lengths == plain.lengths == []


@engines
@pytest.mark.parametrize("mask", [causal(), causal() & window(3)], ids=repr)
def test_steps_hear_the_same_as_over_the_other_one(engine, mask):
    paged, plain = both()
    for cache in (paged, plain):
        cache.append(*some(3, 6))
        cache.keep([6, 2, 0])
    for step, count in enumerate((1, 2, 1)):
        query, _ = some(3, count, seed=10 + step)
        found = []
        for cache in (paged, plain):
            placed = cache.placed(mask)
            pools = cache.append(*some(3, count, seed=20 + step))
            found.append(attend(query, *pools, mask=placed, pages=cache.pages, engine=engine))
        torch.testing.assert_close(*found)


def test_a_layer_with_either_cache():
    torch.manual_seed(0)
    layer = MaskedSelfAttention(16, 4, num_kv_heads=2, mask=causal() & window(5)).eval()
    x = torch.randn(2, 9, 16)
    with torch.no_grad():
        whole = layer(x)
        cache = layer.new_cache(2, 9, block_size=2)
        assert isinstance(cache, PagedCache)
        steps = [layer(x[:, :4], cache=cache), *(layer(x[:, t : t + 1], cache=cache) for t in range(4, 9))]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)


def test_observe_sees_a_layer_with_pages():
    torch.manual_seed(0)
    layer = MaskedSelfAttention(16, 4).eval()
    x = torch.randn(1, 6, 16)
    with torch.no_grad():
        with observe(layer) as plain:
            layer(x, cache=layer.new_cache(1, 6))
        with observe(layer) as paged:
            layer(x, cache=layer.new_cache(1, 6, block_size=4))
    torch.testing.assert_close(paged.layers[0].statistics.entropy, plain.layers[0].statistics.entropy)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda c: c.append(*some(3, 13)), "cache: expected at most 12 positions, got 0 held and 13 new."),
        (
            lambda c: c.append(*some(3, 7)),
            "cache: expected at most 7 blocks of 3 positions, got 0 in use and 9 new. Make the cache with a larger",
        ),
        (
            lambda c: c.append(*some(2, 1)),
            "cache: expected keys of batch x heads [3, 2], torch.float32 on cpu, got [2, 2]",
        ),
        (lambda c: c.take([3]), "items: expected items of the batch, 0 to 2, got [3]."),
        (
            lambda c: c.put([0], c),
            "other: expected a cache of 1 items that holds at most 12 positions, got 3 items, 0 positions.",
        ),
        (lambda c: both(block_size=0), "block_size: expected an integer of at least 1, got 0."),
        (lambda c: both(num_blocks=0), "num_blocks: expected an integer of at least 1, got 0."),
    ],
)
def test_errors(wrong, message):
    with pytest.raises(BadArgument) as caught:
        wrong(both(num_blocks=7)[0])
    assert str(caught.value).startswith(message)


def test_what_does_not_fit_leaves_the_cache_as_it_was():
    paged, plain = both(num_blocks=7)
    for cache in (paged, plain):
        cache.append(*some(3, 5))
    with pytest.raises(BadArgument):
        paged.append(*some(3, 3, seed=1))
    _, large = both(batch=1)
    large.append(*some(1, 12, seed=1))
    with pytest.raises(BadArgument):
        paged.put([0], large)
    assert_same(paged, plain)
