"""The cache of keys and values: equal and unequal lengths, `take` and `put`, and errors."""

import pytest
import torch

from rearview import attend, causal, window
from rearview.attention import KeyValueCache
from rearview.errors import BadArgument

HEADS, DIM = 2, 4


def cache_of(batch: int = 3, max_len: int = 8) -> KeyValueCache:
    return KeyValueCache(batch=batch, heads=HEADS, max_len=max_len, key_dim=DIM)


def some(batch: int, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, batch, HEADS, count, DIM, generator=generator))  # pyright: ignore[reportReturnType]


def test_append_keeps_the_order():
    cache = cache_of()
    first, second = some(3, 3), some(3, 2, seed=1)
    cache.append(*first)
    keys, values = cache.append(*second)
    assert torch.equal(keys, torch.cat([first[0], second[0]], dim=2))
    assert torch.equal(values, torch.cat([first[1], second[1]], dim=2))
    assert len(cache) == 5
    assert cache.lengths == [5, 5, 5]
    assert cache.starts is None


def test_the_memory_is_taken_once():
    cache = cache_of()
    at = cache.keys.data_ptr()
    for _ in range(8):
        keys, _ = cache.append(*some(3, 1))
        assert keys.data_ptr() == at


def test_new_positions_follow_those_of_each_item():
    cache = cache_of()
    key, value = some(3, 4)
    cache.append(key, value)
    cache.keep([4, 1, 0])
    assert cache.lengths == [4, 1, 0]
    assert cache.starts is not None
    assert cache.starts.tolist() == [4, 1, 0]
    new_key, new_value = some(3, 2, seed=1)
    keys, values = cache.append(new_key, new_value)
    assert keys.shape[2] == len(cache) == 6
    for item, held in enumerate([4, 1, 0]):
        assert torch.equal(keys[item, :, :held], key[item, :, :held])
        assert torch.equal(keys[item, :, held : held + 2], new_key[item])
        assert torch.equal(values[item, :, held : held + 2], new_value[item])
    assert cache.lengths == [6, 3, 2]


@pytest.mark.parametrize("mask", [causal(), causal() & window(3)], ids=repr)
def test_an_uneven_step_hears_what_each_item_hears_alone(mask):
    cache, lengths = cache_of(), [5, 2, 0]
    key, value = some(3, 5)
    cache.append(key, value)
    cache.keep(lengths)
    query, _ = some(3, 1, seed=2)
    new_key, new_value = some(3, 1, seed=1)
    placed = cache.placed(mask)
    keys, values = cache.append(new_key, new_value)
    together = attend(query, keys, values, mask=placed)
    for item, held in enumerate(lengths):
        own_keys = torch.cat([key[item : item + 1, :, :held], new_key[item : item + 1]], dim=2)
        own_values = torch.cat([value[item : item + 1, :, :held], new_value[item : item + 1]], dim=2)
        alone = attend(query[item : item + 1], own_keys, own_values, mask=mask)
        torch.testing.assert_close(together[item : item + 1], alone)


def test_keeping_equal_numbers_makes_the_cache_even_again():
    cache = cache_of()
    cache.append(*some(3, 4))
    cache.keep([4, 1, 2])
    cache.keep([1, 1, 1])
    assert cache.starts is None
    assert len(cache) == 1
    assert repr(cache.placed(causal())) == "causal()"


@pytest.mark.parametrize(
    "paths", [[[0, 2, 5], [1, 4], [3]], [[0, 1, 2], [], [0, 1, 2, 3, 4, 5]], [[], [], []], [[5], [4, 5], [1, 3, 5]]]
)
def test_keeping_a_path_is_the_cache_of_that_path_alone(paths):
    cache, lengths = cache_of(max_len=12), [5, 2, 0]
    text, nodes, more = some(3, 5), some(3, 6, seed=1), some(3, 1, seed=2)
    cache.append(*text)
    cache.keep(lengths)
    cache.append(*nodes)
    cache.keep(lengths, paths)
    held = cache.lengths
    keys, values = cache.append(*more)
    for item, (length, path) in enumerate(zip(lengths, paths, strict=True)):
        alone = cache_of(batch=1, max_len=12)
        for part, count in ((text, range(length)), (nodes, path), (more, [0])):
            alone.append(*(each[item : item + 1, :, list(count)] for each in part))
        assert held[item] == len(alone) - 1
        assert torch.equal(keys[item, :, : len(alone)], alone.keys[0, :, : len(alone)])
        assert torch.equal(values[item, :, : len(alone)], alone.values[0, :, : len(alone)])


def test_take_drops_the_other_items():
    cache = cache_of()
    key, value = some(3, 4)
    cache.append(key, value)
    cache.keep([4, 1, 3])
    cache.take([2, 1])
    assert cache.lengths == [3, 1]
    assert len(cache) == 3
    keys, _ = cache.append(*some(2, 1, seed=1))
    assert torch.equal(keys[0, :, :3], key[2, :, :3])
    cache.take([1])
    assert cache.starts is None
    assert len(cache) == 2


def test_put_replaces_the_contents_of_items():
    cache, other = cache_of(), cache_of(batch=2, max_len=5)
    key, value = some(3, 4)
    cache.append(key, value)
    other_key, other_value = some(2, 5, seed=1)
    other.append(other_key, other_value)
    other.keep([5, 2])
    cache.put([2, 0], other)
    assert cache.lengths == [2, 4, 5]
    assert torch.equal(cache.keys[2, :, :5], other_key[0])
    assert torch.equal(cache.values[0, :, :2], other_value[1, :, :2])
    assert torch.equal(cache.keys[1, :, :4], key[1])


def test_reset_drops_everything():
    cache = cache_of()
    cache.append(*some(3, 4))
    cache.keep([1, 2, 3])
    cache.reset()
    assert cache.lengths == [0, 0, 0]
    assert cache.starts is None


def full_cache() -> KeyValueCache:
    cache = cache_of(max_len=4)
    cache.append(*some(3, 4))
    return cache


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda c: (c.reset(), c.append(some(3, 2)[0], some(3, 1)[1])),
            "value: expected torch.float32 of shape [3, 2, 2, ",
        ),
        (
            lambda c: (c.reset(), c.append(some(3, 2)[0], some(3, 2)[1].double())),
            "value: expected torch.float32 of shape [3, 2, 2, ",
        ),
        (lambda c: c.append(some(3, 1)[0], None), "value: expected a tensor [batch, heads, time, dim], got NoneType."),
        (lambda c: c.keep(3), "lengths: expected a list, got 3."),
        (lambda c: c.take(["a"]), "items: expected items of the batch, 0 to 2, got ['a']."),
        (lambda c: c.put([0], 3), "other: expected a KeyValueCache, got int."),
        (
            lambda c: c.put([0], KeyValueCache(batch=1, heads=3, max_len=4, key_dim=1)),
            "other: expected a cache of 2 heads with keys of ",
        ),
        (lambda c: c.append(*some(3, 1)), "cache: expected at most 4 positions, got 4 held and 1 new."),
        (lambda c: (c.reset(), c.append(*some(2, 1))), "cache: expected keys of batch x heads [3, 2], torch.float32"),
        (
            lambda c: c.keep([5, 1, 1]),
            "lengths: expected at most the number of positions that each item holds, [4, 4, 4], got [5,",
        ),
        (
            lambda c: c.keep([1, 1]),
            "lengths: expected at most the number of positions that each item holds, [4, 4, 4], got [1, 1].",
        ),
        (lambda c: c.keep([1, -1, 1]), "lengths: expected an integer of at least 0, got -1."),
        (
            lambda c: c.keep([1, 2, 4], [[2, 1], [], []]),
            "paths: expected rising numbers of nodes for each item, of which there are [3, 2, 0], got [[2, 1]",
        ),
        (
            lambda c: c.keep([1, 2, 4], [[0], [], [0]]),
            "paths: expected rising numbers of nodes for each item, of which",
        ),
        (lambda c: c.keep([1, 2, 4], [[0], []]), "paths: expected rising numbers of nodes for each item"),
        (lambda c: c.keep([1, 2, 4], [[-1], [], []]), "paths: expected an integer of at least 0, got -1."),
        (lambda c: c.take([0, 3]), "items: expected items of the batch, 0 to 2, got [0, 3]."),
        (lambda c: c.put([1, 1], cache_of(batch=2)), "items: expected items of the batch, each once, got [1, 1]."),
        (
            lambda c: c.put([0], cache_of(batch=2)),
            "other: expected a cache of 1 items that holds at most 4 positions, got 2 items, 0 positions.",
        ),
    ],
)
def test_errors(wrong, message):
    with pytest.raises(BadArgument) as caught:
        wrong(full_cache())
    assert str(caught.value).startswith(message)
