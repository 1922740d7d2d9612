"""LayerView, which all drawings read, compared with the whole matrix of weights."""

import math

import pytest
import torch

from rearview import causal, window
from rearview.attention.stats import statistics
from rearview.errors import BadArgument, Unsupported
from rearview.observation import Layer, Observation, observe
from rearview.observation.views.layer_view import LayerView
from rearview.observation.views.scales import CHANGE_SCALES, without_first
from rearview.observation.views.sentences import distances, share, times
from tests.observation import observations
from tests.observation.models import gpt, tokens


def test_a_map_is_the_matrix_where_it_fits():
    seen = observations.seen(12)
    for n, layer in enumerate(seen.layers):
        view = LayerView.of(seen, layer)
        assert view.is_exact
        torch.testing.assert_close(view.map.double(), observations.weights(12, 3, n), atol=1e-6, rtol=1e-5)
        assert torch.equal(view.first, view.map[:, :, 0])
        assert torch.equal(view.map[1], seen.map(n, 1))


@pytest.mark.parametrize("length", [33, 64, 100])
def test_coarser_is_as_if_pooled_at_once(length: int):
    fine, coarse = observations.seen(length, map_size=length), observations.seen(length, map_size=16)
    width = coarse.layers[0].statistics.bin_width
    view = LayerView.of(fine, fine.layers[0]).joined(width)
    wanted = LayerView.of(coarse, coarse.layers[0])
    assert (view.width, view.top, view.map.shape) == (wanted.width, wanted.top, wanted.map.shape)
    for name in ("map", "uniform", "first", "rows_heard"):
        torch.testing.assert_close(getattr(view, name), getattr(wanted, name), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(view.map.sum(-1), torch.ones_like(view.map.sum(-1)))


def test_queries_that_start_later_keep_their_positions():
    query, key = observations.queries_and_keys(40, 2)
    found = statistics(query[:, :, 25:], key, map_size=10)
    seen = Observation([Layer("a", "self", 0, (0, 1), found)])
    view = LayerView.of(seen, seen.layers[0])
    assert (view.width, view.start, view.stop, view.top) == (4, 25, 40, 24)
    assert [view.queries_of(n) for n in range(2)] == [range(25, 28), range(28, 32)]
    whole = observations.weights(40, 2, 0)
    wanted = torch.stack([whole[:, 25:28].mean(1), whole[:, 28:32].mean(1)], 1).unflatten(-1, (10, 4)).sum(-1)
    torch.testing.assert_close(view.map[:, :2].double(), wanted, atol=1e-6, rtol=1e-5)
    coarser = view.coarser(5)
    assert (coarser.width, coarser.top, coarser.queries_of(0)) == (8, 24, range(25, 32))
    torch.testing.assert_close(
        coarser.map[:, 0].double(), whole[:, 25:32].mean(1).unflatten(-1, (5, 8)).sum(-1), atol=1e-6, rtol=1e-5
    )


def test_kept_queries_and_keys_make_it_exact():
    model, ids = gpt(), tokens(40, batch=1)
    with observe(model, map_size=8) as seen:
        model(ids)
    layer = seen.layers[1]
    assert LayerView.of(seen, layer).width == 5
    view = LayerView.of(seen, layer, exact_up_to=64)
    assert view.is_exact
    torch.testing.assert_close(view.map[2], seen.tile(1, 2), atol=1e-6, rtol=1e-5)
    assert LayerView.of(seen, layer, exact_up_to=39).width == 5


def test_without_a_map_it_is_computed_from_kept_calls_or_refused():
    model, ids = gpt(), tokens(40, batch=1)
    with observe(model, map_size=None) as seen:
        model(ids)
    assert LayerView.of(seen, seen.layers[0]).is_exact
    with observe(model, map_size=None, keep=None) as seen:
        model(ids)
    with pytest.raises(Unsupported, match="map_size=None"):
        LayerView.of(seen, seen.layers[0])
    with pytest.raises(BadArgument, match="item: expected a batch item from 0 to 0"):
        LayerView.of(seen, seen.layers[0], item=1)


def test_links_of_queries_that_had_no_choice_are_left_out():
    seen = observations.seen(8)
    view = LayerView.of(seen, seen.layers[0])
    assert seen.links(0, 1, k=1)[0].query == 0
    links = view.links(1, k=5)
    assert len(links) == 5
    assert all(link.query > 0 for link in links)
    whole = observations.weights(8, 3, 0)[1]
    whole[0] = 0
    assert [link.weight for link in links] == pytest.approx(sorted(whole.flatten().tolist())[-5:][::-1])


def test_figures_are_means_of_the_matrix():
    seen, whole = observations.seen(12), observations.weights(12, 3, 1)
    view = LayerView.of(seen, seen.layers[1])
    for row in range(3):
        found = view.figures(row)
        for n in (1, 4, 8):
            assert found[f"first_{n}"] == pytest.approx(float(whole[row, :, :n].sum(-1).mean()), rel=1e-5)
            uniform = sum(min(n, i + 1) / (i + 1) for i in range(12)) / 12
            assert found[f"first_{n}_uniform"] == pytest.approx(uniform, rel=1e-5)
        entropy = torch.special.entr(whole[row]).sum(-1).mean()
        assert found["entropy"] == pytest.approx(float(entropy), rel=1e-5)
        back = torch.arange(12).unsqueeze(-1) - torch.arange(12)
        assert found["distance"] == pytest.approx(float((whole[row] * back).sum(-1).mean()), rel=1e-5)


def test_sentences_say_what_a_head_does():
    seen = observations.seen(40)
    view = LayerView.of(seen, seen.layers[0])
    whole = observations.weights(40, 3, 0)
    first = float(whole[0, :, 0].mean())
    uniform = sum(1 / (i + 1) for i in range(40)) / 40
    assert view.sentences(0)[0] == (
        f"{share(first)} of the weight goes to the first key; uniform attention would give it {share(uniform)}."
    )
    before = float(whole[1].diagonal(-1).sum()) / 40
    assert before > 0.2
    assert f"{share(before)} of the weight goes to the previous position." in view.sentences(1)
    entropy = float(torch.special.entr(whole[1]).sum(-1).mean())
    assert f"about {math.exp(entropy):.1f} keys at a time (entropy {entropy:.2f} nats)" in view.sentences(1)[-1]
    assert distances(view)[:5] == ["ahead", "0", "1", "2–3", "4–7"]


def test_the_larger_share_is_said_first():
    # Each query attends to itself with 1/4 of its weight and to the previous position with 3/4.
    near, far = math.log(1 / 4), math.log(3 / 4)
    scores = torch.full((20, 20), -40.0)
    scores.diagonal().fill_(near)
    scores.diagonal(-1).fill_(far)
    found = statistics(scores.view(1, 1, 20, 20), torch.eye(20).view(1, 1, 20, 20), scale=1.0)
    seen = Observation([Layer("a", "self", 0, (0,), found)])
    said = LayerView.of(seen, seen.layers[0]).sentences(0)
    assert [words.partition("goes to ")[2] for words in said[:2]] == ["the previous position.", "the same position."]


def test_sentences_about_sinks_single_keys_and_empty_heads():
    query, key = observations.queries_and_keys(20, 2)
    found = statistics(query, key, sinks=torch.tensor([20.0, -20.0]))
    seen = Observation([Layer("a", "self", 0, (0, 1), found)])
    view = LayerView.of(seen, seen.layers[0])
    assert any("the head's learned sink, which is not a key" in said for said in view.sentences(0))
    assert not any("learned sink" in said for said in view.sentences(1))
    key = torch.zeros(1, 1, 20, 4)
    key[0, 0, 7] = 8.0
    found = statistics(torch.ones(1, 1, 20, 4), key)
    seen = Observation([Layer("a", "self", 0, (0,), found)], labels=observations.labels(20))
    said = LayerView.of(seen, seen.layers[0]).sentences(0)
    uniform = share(sum(1 / (i + 1) for i in range(7, 20)) / 20)
    assert said[0] == f"65.0 % of the weight goes to key 7 “␣the”; uniform attention would give it {uniform}."
    empty = statistics(query[:, :1], key.expand(1, 1, 20, 4)[..., :1].expand(1, 1, 20, 16), mask=causal() & ~causal())
    seen = Observation([Layer("a", "self", 0, (0,), empty)])
    assert LayerView.of(seen, seen.layers[0]).sentences(0) == ["No query hears anything: the mask blocks every key."]


def test_numbers_as_people_read_them():
    assert [share(x) for x in (1.0, 0.12345, 0.01234, 0.001234, 1.234e-6, 0.99996, 0.0, -0.5)] == [
        "100.0 %", "12.3 %", "1.23 %", "0.123 %", "1.23e-06", "over 99.9 %", "0", "−50.0 %",
    ]  # fmt: skip
    assert [times(x) for x in (250.4, 12.34, 1.26, 0.034)] == ["250", "12.3", "1.3", "0.034"]


def test_scales_are_what_they_say():
    seen = observations.seen(12)
    view = LayerView.of(seen, seen.layers[0])
    whole = observations.weights(12, 3, 0)[0].float()
    visible = torch.ones(12, 12).tril().bool()

    def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
        assert torch.equal(found.isnan(), ~visible)
        torch.testing.assert_close(found[visible], wanted[visible], atol=1e-4, rtol=1e-4)

    same(view.shaded(0, "linear").shades, whole / whole.max())
    same(view.shaded(0, "log").shades, (1 + whole.clamp(min=1e-4).log10() / 4).clamp(0, 1))
    times_uniform = whole * torch.arange(1, 13).unsqueeze(-1)
    same(view.shaded(0, "expected").shades, (0.5 + times_uniform.log2() / 10).clamp(0, 1))
    rest = whole.clone()
    rest[:, 0] = 0
    rest[1:] /= rest[1:].sum(-1, keepdim=True)
    torch.testing.assert_close(without_first(view.map[0], view.first[0])[1:], rest[1:], atol=1e-4, rtol=1e-4)
    assert without_first(view.map[0], view.first[0])[0].sum() == 0
    # In bins, only the share of the first key is removed from its bin.
    coarse = view.coarser(3)
    gone = whole[:, 0].unflatten(0, (3, 4)).mean(-1)
    left = (whole[:, :4].sum(-1).unflatten(0, (3, 4)).mean(-1) - gone) / (1 - gone)
    torch.testing.assert_close(without_first(coarse.map[0], coarse.first[0])[:, 0], left, atol=1e-4, rtol=1e-4)


def test_an_unknown_scale_is_refused():
    seen = observations.seen(4)
    view = LayerView.of(seen, seen.layers[0])
    with pytest.raises(BadArgument, match="scale: expected log, linear, without_first or expected, got 'sqrt'"):
        view.shaded(0, "sqrt")
    from rearview.observation.views.layer_change import changes_of

    change = changes_of(seen.diff(observations.seen(4, mask=causal() & window(2))))[0]
    with pytest.raises(BadArgument, match="scale: expected linear or log, got 'expected'"):
        change.shaded(0, "expected")
    assert CHANGE_SCALES == ("linear", "log")
