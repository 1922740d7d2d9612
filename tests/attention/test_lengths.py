"""`lengths=`: how many keys each item holds, on the device. Any engine computes it; a cache of fixed shape uses it."""

from __future__ import annotations

import pytest
import torch

from rearview import (
    KeyValueCache,
    MaskedSelfAttention,
    Pages,
    RearviewError,
    alibi,
    attend,
    causal,
    plan,
    prefix,
    window,
)
from rearview.attention.engines import ENGINES
from rearview.attention.static_cache import StaticCache, StepClock

MASK = (causal() & window(5)) | (causal() & prefix(1))


@pytest.mark.parametrize("engine", [name for name in ENGINES if name not in ("decode", "flex", "hopper")])
@pytest.mark.parametrize("q_len", [1, 3])
@pytest.mark.parametrize("options", [{}, {"bias": alibi(4)}], ids=["", "alibi"])
def test_each_item_is_as_it_is_alone(engine: str, q_len: int, options: dict):
    query, key, value = torch.randn(2, 4, q_len, 8), torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 8)
    counts = (5, 12)
    # What lies after the end of an item may hold anything.
    past = torch.arange(12) >= torch.tensor(counts).view(-1, 1, 1)
    dirty = [tensor.masked_fill(past.unsqueeze(-1), torch.nan) for tensor in (key, value)]
    out = attend(query, *dirty, mask=MASK, lengths=torch.tensor(counts), engine=engine, **options)
    for item, count in enumerate(counts):
        own = [query[item : item + 1], *(tensor[item : item + 1, :, :count] for tensor in (key, value))]
        alone = attend(*own, mask=MASK, engine="reference", **options)
        torch.testing.assert_close(out[item : item + 1], alone)


def test_lengths_are_read_again_in_every_call():
    query, key = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 12, 8)
    lengths = torch.tensor([5, 12])
    before = attend(query, key, key, lengths=lengths)
    lengths[0] = 6
    after = attend(query, key, key, lengths=lengths)
    assert not torch.equal(before[0], after[0])
    torch.testing.assert_close(after[:1], attend(query[:1], key[:1, :, :6], key[:1, :, :6]))
    assert "padding" not in plan(query, key, key, lengths=lengths).mask


EXPECTED = "lengths: expected an integer tensor [2] on cpu, the number of keys of each item, got "
BOUNDS = "lengths: expected from 2, the number of queries, to 12, the number of keys, got "
WRONG = [
    ({"lengths": [3, 4]}, EXPECTED + "list."),
    ({"lengths": torch.tensor([3.0, 4.0])}, EXPECTED + "a float32 tensor of shape [2]."),
    ({"lengths": torch.tensor([3, 4, 5])}, EXPECTED + "an int64 tensor of shape [3]."),
    ({"lengths": torch.tensor([3, 13])}, BOUNDS + "13."),
    ({"lengths": torch.tensor([1, 12])}, BOUNDS + "1."),
    (
        {"lengths": torch.tensor([3, 4]), "q_start": 3},
        "q_start: expected nothing with lengths=, where the queries of an item stand at its last positions, got 3.",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[message for _, message in WRONG])
def test_errors(options: dict, message: str):
    query, key = torch.randn(2, 4, 2, 8), torch.randn(2, 2, 12, 8)
    with pytest.raises(RearviewError) as error:
        attend(query, key, key, **options)
    assert str(error.value) == message


def test_pages_have_lengths_of_their_own():
    query, pool = torch.randn(2, 4, 1, 8), torch.randn(4, 2, 4, 8)
    with pytest.raises(RearviewError) as error:
        attend(query, pool, pool, pages=Pages([[0, 1], [2, 3]], [7, 5]), lengths=torch.tensor([7, 5]))
    assert str(error.value) == (
        "pages: expected nothing with lengths=, where the queries of an item stand at its last positions, got pages=, "
        "which have lengths of their own."
    )


def test_a_layer_steps_over_a_static_cache():
    layer = MaskedSelfAttention(16, 4, mask=MASK).eval()
    x = torch.randn(2, 9, 16)
    with torch.no_grad():
        whole = layer(x)
        cache = layer.new_cache(2, 9)
        assert isinstance(cache, KeyValueCache)
        layer(x[:, :4], cache=cache)
        clock = StepClock.of(cache)
        static = StaticCache(cache, clock)
        for n in range(4, 9):
            torch.testing.assert_close(layer(x[:, n : n + 1], cache=static), whole[:, n : n + 1])
            clock.advance()
        assert clock.starts.tolist() == [9, 9]
        # The first item goes back, and the second has ended.
        clock.set([5, 8], [True, False])
        torch.testing.assert_close(layer(x[:, 5:6], cache=static)[:1], whole[:1, 5:6])
        clock.advance()
    assert (clock.starts.tolist(), clock.ends.tolist()) == ([6, 8], [7, 9])
