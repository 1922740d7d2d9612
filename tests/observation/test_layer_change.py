"""LayerChange, which all drawings of a difference read."""

import pytest
import torch

from rearview import causal, window
from rearview.observation.views.layer_change import changes_of
from tests.observation import observations


def test_a_change_is_after_minus_before():
    before, after = observations.seen(12), observations.seen(12, mask=causal() & window(4))
    diff = before.diff(after)
    for n, change in enumerate(changes_of(diff)):
        wanted = observations.weights(12, 3, n, causal() & window(4)) - observations.weights(12, 3, n)
        torch.testing.assert_close(change.map.double(), wanted, atol=1e-5, rtol=1e-4)
        for head in range(3):
            torch.testing.assert_close(change.map[head], diff.map(n, head))
        # A cell that is forbidden in both runs is grey.
        assert torch.equal(change.shaded(0, "linear").shades.isnan(), torch.ones(12, 12).triu(1).bool())


def test_bins_of_two_widths():
    before, after = observations.seen(48, map_size=16), observations.seen(48, map_size=8, seed=5)
    change = changes_of(before.diff(after))[0]
    assert (change.before.width, change.after.width) == (6, 6)
    torch.testing.assert_close(change.map[1], before.diff(after).map(0, 1), atol=1e-6, rtol=1e-5)
    assert change.coarser(4).map.shape == (3, 4, 4)


def test_shades_of_losses_and_gains():
    change = changes_of(observations.seen(12).diff(observations.seen(12, seed=4)))[0]
    result = change.shaded(2, "linear")
    assert result.is_two_sided
    visible = ~result.shades.isnan()
    moved = change.map[2][visible]
    torch.testing.assert_close(result.shades[visible], 0.5 + moved / moved.abs().max() / 2)
    log = change.shaded(2, "log").shades[visible]
    assert torch.equal((log - 0.5).sign(), moved.sign() * ((log - 0.5).abs() > 0))


def test_sentences_say_what_changed():
    diff = observations.seen(40).diff(observations.seen(40, mask=causal() & window(8)))
    change = changes_of(diff)[0]
    found = change.figures(0)
    assert found["moved"] == pytest.approx(float(diff.layers[0].moved[0]))
    said = " ".join(change.sentences(0))
    assert "of the weight went to other keys." in said
    assert "The share of the first 4 keys fell by" in said
    assert "Some keys that were heard before are no longer heard at all." in said
    same = changes_of(observations.seen(6).diff(observations.seen(6)))[0]
    assert same.sentences(0) == ["Nothing changed."]
