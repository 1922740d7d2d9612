"""The methods of Observation: numbers that are computed by hand, and errors."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rearview import MaskedSelfAttention, causal
from rearview.errors import BadArgument, RearviewError, Unsupported
from rearview.masks import Frame
from rearview.observation import Link, Observation, observe
from rearview.observation.watching.retained_calls import RetainedCalls
from tests.observation.judge import pooled
from tests.observation.models import gpt, tokens


def identical(length: int = 4, *, strength: float = 0.0, **options) -> Observation:
    """A head with scores of `strength` x identity: 0 gives uniform attention, a large one attention to itself."""
    eye = torch.eye(length)
    layer = MaskedSelfAttention(length, 1, w_q=strength * eye, w_k=eye, w_v=eye, bias=False, output=False)
    with observe(layer, **options) as seen:
        layer(eye)
    return seen


def test_equal_attention_by_hand():
    seen = identical(4)
    # Rows 1, 1/2 1/2, 1/3 ..., 1/4 ...
    columns = torch.tensor([25 / 12, 13 / 12, 7 / 12, 1 / 4])
    torch.testing.assert_close(seen.received(0, 0), columns)
    # All queries hear the first key, each with the same weight as other keys: relative to uniform attention all are 1.
    torch.testing.assert_close(seen.received(0, 0, against="uniform"), torch.ones(4))
    torch.testing.assert_close(seen.entropy(0, 0), torch.tensor([math.log(n) for n in (1, 2, 3, 4)]))
    torch.testing.assert_close(seen.distance(0, 0), torch.tensor([0, 0.5, 1, 1.5]))
    torch.testing.assert_close(seen.sinks(1), columns[:1].view(1, 1) / 4)
    torch.testing.assert_close(seen.sinks(8), torch.ones(1, 1))
    torch.testing.assert_close(seen.sinks(1, against="uniform"), torch.ones(1, 1))
    edges = seen.layers[0].statistics.histogram_edges
    by_distance = dict(zip(("future", *edges), seen.histogram(0, 0).tolist(), strict=False))
    assert by_distance["future"] == 0
    assert by_distance[0] == pytest.approx(25 / 12)
    assert by_distance[1] == pytest.approx(1 / 2 + 1 / 3 + 1 / 4)
    assert by_distance[2] == pytest.approx(1 / 3 + 2 / 4)
    assert seen.links(k=2) == [Link(0, 0, 0, 0, 1.0), Link(0, 0, 1, 0, 0.5)]
    # Against uniform attention no pair stands out, and every pair that is heard is there.
    links = seen.links(k=20, against="uniform")
    assert [link.times for link in links] == pytest.approx([1.0] * 10)
    assert {(link.query, link.key) for link in links} == {(q, k) for q in range(4) for k in range(q + 1)}


def test_a_head_that_attends_to_itself():
    seen = identical(4, strength=200.0)
    torch.testing.assert_close(seen.received(0, 0), torch.ones(4))
    torch.testing.assert_close(seen.received(0, 0, against="uniform"), torch.tensor([12 / 25, 12 / 13, 12 / 7, 4.0]))
    assert seen.entropy(0, 0).max() < 1e-6
    torch.testing.assert_close(seen.tile(0, 0), torch.eye(4))


def test_maps_are_pooled_and_enlarged():
    model, ids = gpt(), tokens(23)
    with observe(model, map_size=12) as seen:
        model(ids)
    exact = seen.tile(1, 2, item=1)
    torch.testing.assert_close(seen.map(1, 2, item=1), pooled(exact, 12), atol=1e-5, rtol=1e-4)
    # Bins of 2 become bins of 4.
    torch.testing.assert_close(seen.map(1, 2, 6, item=1), pooled(exact, 6), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(seen.map(1, 2, 1, item=1), torch.ones(1, 1))
    torch.testing.assert_close(seen.map(1, 2, 64, item=1), exact, atol=1e-5, rtol=1e-4)


def test_without_a_map_it_is_computed_if_possible():
    seen = identical(6, map_size=None)
    with pytest.raises(RearviewError, match="no map was made"):
        seen.map(0, 0)
    assert seen.map(0, 0, 3).shape == (3, 3)
    with pytest.raises(Unsupported, match="a larger map of MaskedSelfAttention"):
        identical(6, map_size=3, keep=None).map(0, 0, 6)


def test_tiles_are_cut_by_position():
    seen = identical(6)
    whole = seen.tile(0, 0)
    assert torch.equal(seen.tile(0, 0, slice(2, 4), range(1, 6)), whole[2:4, 1:6])
    assert torch.equal(seen.tile(0, 0, slice(-2, None)), whole[4:])
    for wrong in (slice(0, 9, 2), range(4, 8), 3, slice(4, 4)):
        with pytest.raises(BadArgument, match=r"^rows: expected a slice or range of the positions 0 to 5"):
            seen.tile(0, 0, wrong)  # type: ignore[arg-type]


def test_the_memory_of_kept_calls_is_limited():
    model, ids = gpt(), tokens(16, batch=1)
    # A layer keeps 16 positions x 32 features of queries and as many of keys, 4 bytes each.
    one = 2 * 16 * 32 * 4
    with observe(model, keep=one) as seen:
        model(ids)
    assert seen.layers[0].retained is not None
    assert seen.layers[0].retained.bytes == one
    assert seen.tile(0, 0).shape == (16, 16)
    with pytest.raises(Unsupported, match="queries and keys took more than keep allows") as caught:
        seen.tile(1, 0)
    assert "keep=True" in str(caught.value)
    with observe(model, keep=None) as none:
        model(ids)
    with pytest.raises(Unsupported, match="keep=None"):
        none.tile(0, 0)
    with pytest.raises(Unsupported, match=r"(?s)^links against uniform attention of blocks.0.attention .*keep=None"):
        none.links(against="uniform")
    with observe(model, keep=True) as everything:
        model(ids)
        model(ids)
    assert everything.tile(1, 0).shape == (16, 16)


def test_links_against_uniform_attention_of_a_sequence_in_steps():
    model, ids = gpt(), tokens(16, batch=1)
    with observe(model) as whole, torch.no_grad():
        model(ids)
    retained = whole.layers[0].retained
    assert retained is not None
    (call,) = retained.calls()
    first = call.key[:, :, :9]
    prompt = replace(call, query=call.query[:, :, :9], key=first, value=first, frame=Frame.of(9))
    step = replace(call, query=call.query[:, :, 9:], frame=Frame.of(7, 16))
    steps = RetainedCalls.of(prompt).and_then(step)
    for head in range(4):
        links, expected = (each.relative_links(0, head, 12) for each in (steps, retained))
        assert [link[2:] for link in links] == [link[2:] for link in expected]
        assert sum((link[:2] for link in links), ()) == pytest.approx(sum((link[:2] for link in expected), ()))


def test_a_new_sequence_frees_the_memory_of_the_last():
    model, ids = gpt(), tokens(16, batch=1)
    with observe(model, keep=2 * (2 * 16 * 32 * 4)) as seen:
        for _ in range(3):
            model(ids)
    assert all(layer.retained is not None for layer in seen.layers)


def test_kept_keys_do_not_change_with_the_cache():
    model, ids = gpt(), tokens(8, batch=1)
    cache = model.new_cache(1)
    with observe(model) as seen:
        model(ids, cache=cache)
    before = seen.tile(0, 0)
    cache[0].keys.zero_()
    assert torch.equal(seen.tile(0, 0), before)


def test_labels():
    seen = identical(3, labels=["I", "love"])
    assert seen.labels == seen.key_labels(0) == seen.query_labels(0) == ["I", "love", ""]
    seen.labels = ["I", "love", "sushi"]
    assert seen.key_labels(0) == ["I", "love", "sushi"]
    with pytest.raises(BadArgument, match=r"^labels: expected at most one for each of 3 positions, got 4"):
        seen.labels = ["I", "love", "sushi", "too"]
    with pytest.raises(BadArgument, match=r"^labels: expected a list of strings"):
        seen.labels = "sushi"  # type: ignore[assignment]
    with pytest.raises(BadArgument, match=r"^labels: expected at most one"):
        identical(3, labels=["a"] * 4)


def test_an_empty_observation_says_what_to_do():
    model = gpt()
    with observe(model) as seen:
        pass
    assert repr(seen) == seen.describe() == "Observation(nothing yet)"
    for view in (seen.received, seen.links, lambda: seen.map(0, 0), lambda: seen.sinks(4)):
        with pytest.raises(RearviewError, match="Call the model inside"):
            view()


def test_wrong_layers_heads_and_items_are_refused():
    model = gpt()
    with observe(model, layers=1, heads=[0, 2]) as seen:
        model(tokens())
    with pytest.raises(BadArgument, match=r"layer: expected a layer that was watched: 1 \(blocks.1.attention\), got 0"):
        seen.received(0)
    with pytest.raises(BadArgument, match=r"head: expected a head .* one of \[0, 2\], got 1"):
        seen.received(1, 1)
    with pytest.raises(BadArgument, match="item: expected a batch item from 0 to 1, got 2"):
        seen.entropy(item=2)
    with pytest.raises(BadArgument, match="against: expected 'uniform'"):
        seen.received(against="nothing")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="n: expected 1, 4 or 8"):
        seen.sinks(3)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="k: expected an integer of at least 1"):
        seen.links(k=0)
    with pytest.raises(BadArgument, match="against: expected 'uniform'"):
        seen.links(against="nothing")  # type: ignore[arg-type]
    assert seen.received(1, 2).shape == (17,)
    assert torch.equal(seen.received(1, -1), seen.received(1, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 5}, r"layers: expected attention layers of the model: 0 \(blocks.0.attention\), 1 .*, got 5"),
        ({"layers": []}, "layers: expected at least one layer"),
        ({"layers": True}, "layers: expected attention layers"),
        ({"heads": [0, 4]}, "heads: expected heads of blocks.0.attention, 0 to 3, got 4"),
        ({"heads": "all"}, "heads: expected heads of blocks.0.attention, 0 to 3, got 'all'"),
        ({"map_size": 0}, "map_size: expected an integer of at least 1"),
        ({"links": -1}, "links: expected an integer of at least 0"),
        ({"keep": "some"}, "keep: expected a number of bytes"),
        ({"keep": -1}, "keep: expected a number of bytes"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(options: dict[str, Any], message: str):
    model = gpt()
    with pytest.raises(BadArgument, match=message), observe(model, **options):
        pytest.fail("it must not begin")
    with observe(model):
        pass


def test_layers_by_name_slice_and_list():
    model, ids = gpt(layers=4), tokens()

    def seen(layers) -> list[int]:
        with observe(model, layers=layers, map_size=None, links=0) as found:
            model(ids)
        return [layer.index for layer in found.layers]

    assert seen("blocks.2.attention") == seen(2) == seen(-2) == [2]
    assert seen(slice(1, 3)) == seen(range(1, 3)) == seen(["blocks.1.*", 2]) == [1, 2]
    assert seen(None) == [0, 1, 2, 3]


def test_text():
    text = identical(4).describe()
    assert "Observation(1 layer x 1 heads, 4 positions)" in text
    # Mean entropy log(24) / 4, mean distance 3 / 4, 25/48 to the first key, all to the first four.
    assert ["0", "MaskedSelfAttention", "self", "1", "0.79", "0.75", "52", "%", "100", "%", "1.0"] in [
        line.split() for line in text.splitlines()
    ]


def test_a_mask_that_empties_rows():
    from rearview import padding

    layer, x = MaskedSelfAttention(8, 2, mask=causal()), torch.randn(1, 5, 8)
    with observe(layer) as seen:
        layer(x, mask=padding([[False, False, True, True, True]]))
    assert torch.equal(seen.tile(0, 0)[:2], torch.zeros(2, 5))
    # The mean is that of the queries that hear anything.
    torch.testing.assert_close(seen.sinks(4, 0).mean(), seen.tile(0, 0)[2:, :4].sum() / 3, atol=0.2, rtol=1)
    torch.testing.assert_close(seen.sinks(8), torch.ones(1, 2))
    assert seen.received(0, 0, against="uniform")[:2].tolist() == [0, 0]
