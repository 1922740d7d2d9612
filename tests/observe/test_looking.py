"""What drawings begin from, against the whole matrix of weights."""

import math

import pytest
import torch

from rearview import causal, window
from rearview.attention.statistics import statistics
from rearview.errors import BadArgument, Unsupported
from rearview.observe import Layer, Seen, observe
from rearview.observe.looking import look_at, telling_links
from rearview.observe.scales import CHANGE_SCALES, shaded, without_first
from rearview.observe.sentences import distances, figures, sentences, share, times
from tests.observe import made
from tests.observe.models import gpt, tokens


def test_a_map_is_the_matrix_where_it_fits():
    seen = made.seen(12)
    for n, layer in enumerate(seen.layers):
        look = look_at(seen, layer)
        assert look.is_exact
        torch.testing.assert_close(look.map.double(), made.weights(12, 3, n), atol=1e-6, rtol=1e-5)
        assert torch.equal(look.first, look.map[:, :, 0])
        assert torch.equal(look.map[1], seen.map(n, 1))


@pytest.mark.parametrize("length", [33, 64, 100])
def test_coarser_is_as_if_pooled_at_once(length: int):
    fine, coarse = made.seen(length, map_size=length), made.seen(length, map_size=16)
    width = coarse.layers[0].statistics.bin_width
    look = look_at(fine, fine.layers[0]).joined(width)
    wanted = look_at(coarse, coarse.layers[0])
    assert (look.width, look.top, look.map.shape) == (wanted.width, wanted.top, wanted.map.shape)
    for name in ("map", "uniform", "first", "rows_heard"):
        torch.testing.assert_close(getattr(look, name), getattr(wanted, name), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(look.map.sum(-1), torch.ones_like(look.map.sum(-1)))


def test_queries_that_begin_later_keep_their_place():
    query, key = made.queries_and_keys(40, 2)
    found = statistics(query[:, :, 25:], key, map_size=10)
    seen = Seen([Layer("a", "self", 0, (0, 1), found)])
    look = look_at(seen, seen.layers[0])
    assert (look.width, look.start, look.stop, look.top) == (4, 25, 40, 24)
    assert [look.queries_of(n) for n in range(2)] == [range(25, 28), range(28, 32)]
    whole = made.weights(40, 2, 0)
    wanted = torch.stack([whole[:, 25:28].mean(1), whole[:, 28:32].mean(1)], 1).unflatten(-1, (10, 4)).sum(-1)
    torch.testing.assert_close(look.map[:, :2].double(), wanted, atol=1e-6, rtol=1e-5)
    coarser = look.coarser(5)
    assert (coarser.width, coarser.top, coarser.queries_of(0)) == (8, 24, range(25, 32))
    torch.testing.assert_close(
        coarser.map[:, 0].double(), whole[:, 25:32].mean(1).unflatten(-1, (5, 8)).sum(-1), atol=1e-6, rtol=1e-5
    )


def test_kept_queries_and_keys_make_it_exact():
    model, ids = gpt(), tokens(40, batch=1)
    with observe(model, map_size=8) as seen:
        model(ids)
    layer = seen.layers[1]
    assert look_at(seen, layer).width == 5
    look = look_at(seen, layer, exact_up_to=64)
    assert look.is_exact
    torch.testing.assert_close(look.map[2], seen.tile(1, 2), atol=1e-6, rtol=1e-5)
    assert look_at(seen, layer, exact_up_to=39).width == 5


def test_without_a_map_it_is_made_from_what_was_kept_or_refused():
    model, ids = gpt(), tokens(40, batch=1)
    with observe(model, map_size=None) as seen:
        model(ids)
    assert look_at(seen, seen.layers[0]).is_exact
    with observe(model, map_size=None, keep=None) as seen:
        model(ids)
    with pytest.raises(Unsupported, match="map_size=None"):
        look_at(seen, seen.layers[0])
    with pytest.raises(BadArgument, match="item: expected a batch item from 0 to 0"):
        look_at(seen, seen.layers[0], item=1)


def test_links_of_queries_that_had_no_choice_are_left_out():
    seen = made.seen(8)
    look = look_at(seen, seen.layers[0])
    assert seen.links(0, 1, k=1)[0].query == 0
    links = telling_links(seen, look, 1, k=5)
    assert len(links) == 5
    assert all(link.query > 0 for link in links)
    whole = made.weights(8, 3, 0)[1]
    whole[0] = 0
    assert [link.weight for link in links] == pytest.approx(sorted(whole.flatten().tolist())[-5:][::-1])


def test_figures_are_means_of_the_matrix():
    seen, whole = made.seen(12), made.weights(12, 3, 1)
    look = look_at(seen, seen.layers[1])
    for row in range(3):
        found = figures(look, row)
        for n in (1, 4, 8):
            assert found[f"first_{n}"] == pytest.approx(float(whole[row, :, :n].sum(-1).mean()), rel=1e-5)
            uniform = sum(min(n, i + 1) / (i + 1) for i in range(12)) / 12
            assert found[f"first_{n}_uniform"] == pytest.approx(uniform, rel=1e-5)
        entropy = torch.special.entr(whole[row]).sum(-1).mean()
        assert found["entropy"] == pytest.approx(float(entropy), rel=1e-5)
        back = torch.arange(12).unsqueeze(-1) - torch.arange(12)
        assert found["distance"] == pytest.approx(float((whole[row] * back).sum(-1).mean()), rel=1e-5)


def test_sentences_say_what_a_head_does():
    seen = made.seen(40)
    look = look_at(seen, seen.layers[0])
    whole = made.weights(40, 3, 0)
    first = float(whole[0, :, 0].mean())
    uniform = sum(1 / (i + 1) for i in range(40)) / 40
    assert sentences(look, 0)[0] == (
        f"{share(first)} of the weight goes to the first key; uniform attention would give it {share(uniform)}."
    )
    before = float(whole[1].diagonal(-1).sum()) / 40
    assert before > 0.2
    assert f"{share(before)} of the weight goes to the position just before." in sentences(look, 1)
    entropy = float(torch.special.entr(whole[1]).sum(-1).mean())
    assert f"about {math.exp(entropy):.1f} keys at a time (entropy {entropy:.2f} nats)" in sentences(look, 1)[-1]
    assert distances(look)[:5] == ["ahead", "0", "1", "2–3", "4–7"]


def test_sentences_about_sinks_favourites_and_silence():
    query, key = made.queries_and_keys(20, 2)
    found = statistics(query, key, sinks=torch.tensor([20.0, -20.0]))
    seen = Seen([Layer("a", "self", 0, (0, 1), found)])
    look = look_at(seen, seen.layers[0])
    assert any("the head's own sink, which is no key" in said for said in sentences(look, 0))
    assert not any("own sink" in said for said in sentences(look, 1))
    key = torch.zeros(1, 1, 20, 4)
    key[0, 0, 7] = 8.0
    found = statistics(torch.ones(1, 1, 20, 4), key)
    seen = Seen([Layer("a", "self", 0, (0,), found)], labels=made.labels(20))
    said = sentences(look_at(seen, seen.layers[0]), 0)
    uniform = share(sum(1 / (i + 1) for i in range(7, 20)) / 20)
    assert said[0] == f"65.0 % of the weight goes to key 7 “␣the”; uniform attention would give it {uniform}."
    empty = statistics(query[:, :1], key.expand(1, 1, 20, 4)[..., :1].expand(1, 1, 20, 16), mask=causal() & ~causal())
    seen = Seen([Layer("a", "self", 0, (0,), empty)])
    assert sentences(look_at(seen, seen.layers[0]), 0) == ["No query hears anything: the mask leaves nothing."]


def test_numbers_as_people_read_them():
    assert [share(x) for x in (1.0, 0.12345, 0.01234, 0.001234, 1.234e-6, 0.99996, 0.0, -0.5)] == [
        "100.0 %", "12.3 %", "1.23 %", "0.123 %", "1.23e-06", "over 99.9 %", "0", "−50.0 %",
    ]  # fmt: skip
    assert [times(x) for x in (250.4, 12.34, 1.26, 0.034)] == ["250", "12.3", "1.3", "0.034"]


def test_scales_are_what_they_say():
    seen = made.seen(12)
    look = look_at(seen, seen.layers[0])
    whole = made.weights(12, 3, 0)[0].float()
    visible = torch.ones(12, 12).tril().bool()

    def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
        assert torch.equal(found.isnan(), ~visible)
        torch.testing.assert_close(found[visible], wanted[visible], atol=1e-4, rtol=1e-4)

    same(shaded(look, 0, "linear").shades, whole / whole.max())
    same(shaded(look, 0, "log").shades, (1 + whole.clamp(min=1e-4).log10() / 4).clamp(0, 1))
    times_uniform = whole * torch.arange(1, 13).unsqueeze(-1)
    same(shaded(look, 0, "expected").shades, (0.5 + times_uniform.log2() / 10).clamp(0, 1))
    rest = whole.clone()
    rest[:, 0] = 0
    rest[1:] /= rest[1:].sum(-1, keepdim=True)
    torch.testing.assert_close(without_first(look, 0)[1:], rest[1:], atol=1e-4, rtol=1e-4)
    assert without_first(look, 0)[0].sum() == 0
    # In bins the share of the first key alone is taken out of its bin.
    coarse = look.coarser(3)
    gone = whole[:, 0].unflatten(0, (3, 4)).mean(-1)
    left = (whole[:, :4].sum(-1).unflatten(0, (3, 4)).mean(-1) - gone) / (1 - gone)
    torch.testing.assert_close(without_first(coarse, 0)[:, 0], left, atol=1e-4, rtol=1e-4)


def test_an_unknown_scale_is_refused():
    seen = made.seen(4)
    look = look_at(seen, seen.layers[0])
    with pytest.raises(BadArgument, match="scale: expected log, linear, without_first or expected, got 'sqrt'"):
        shaded(look, 0, "sqrt")
    from rearview.observe.changing import changes_at

    change = changes_at(seen.diff(made.seen(4, mask=causal() & window(2))))[0]
    with pytest.raises(BadArgument, match="scale: expected linear or log, got 'expected'"):
        shaded(change, 0, "expected")
    assert CHANGE_SCALES == ("linear", "log")
