"""What drawings of a difference begin from."""

import pytest
import torch

from rearview import causal, window
from rearview.observe.changing import change_figures, change_sentences, changes_at
from rearview.observe.scales import shaded
from tests.observe import made


def test_it_is_after_less_before():
    before, after = made.seen(12), made.seen(12, mask=causal() & window(4))
    diff = before.diff(after)
    for n, change in enumerate(changes_at(diff)):
        wanted = made.weights(12, 3, n, causal() & window(4)) - made.weights(12, 3, n)
        torch.testing.assert_close(change.map.double(), wanted, atol=1e-5, rtol=1e-4)
        for head in range(3):
            torch.testing.assert_close(change.map[head], diff.map(n, head))
        # Grey is what neither may hear.
        assert torch.equal(shaded(change, 0, "linear").shades.isnan(), torch.ones(12, 12).triu(1).bool())


def test_bins_of_two_widths_meet():
    before, after = made.seen(48, map_size=16), made.seen(48, map_size=8, seed=5)
    change = changes_at(before.diff(after))[0]
    assert (change.before.width, change.after.width) == (6, 6)
    torch.testing.assert_close(change.map[1], before.diff(after).map(0, 1), atol=1e-6, rtol=1e-5)
    assert change.coarser(4).map.shape == (3, 4, 4)


def test_shades_go_to_both_sides():
    change = changes_at(made.seen(12).diff(made.seen(12, seed=4)))[0]
    result = shaded(change, 2, "linear")
    assert result.is_two_sided
    visible = ~result.shades.isnan()
    moved = change.map[2][visible]
    torch.testing.assert_close(result.shades[visible], 0.5 + moved / moved.abs().max() / 2)
    log = shaded(change, 2, "log").shades[visible]
    assert torch.equal((log - 0.5).sign(), moved.sign() * ((log - 0.5).abs() > 0))


def test_sentences_say_what_changed():
    diff = made.seen(40).diff(made.seen(40, mask=causal() & window(8)))
    change = changes_at(diff)[0]
    found = change_figures(change, 0)
    assert found["moved"] == pytest.approx(float(diff.layers[0].moved[0]))
    said = " ".join(change_sentences(change, 0))
    assert "of the weight went to other keys." in said
    assert "The share of the first 4 keys fell by" in said
    assert "not heard at all any more" in said
    same = changes_at(made.seen(6).diff(made.seen(6)))[0]
    assert change_sentences(same, 0) == ["Nothing changed."]
