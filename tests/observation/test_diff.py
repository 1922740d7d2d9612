"""The difference of two runs, by hand-made cases."""

import math
from typing import Any

import pytest
import torch

from rearview import MaskedSelfAttention, causal, full, window
from rearview.errors import BadArgument
from rearview.observation import Observation, observe
from tests.observation.models import gpt, tokens


def watched(layer, x, **options) -> Observation:
    mask = options.pop("mask", None)
    with observe(layer, **options) as seen:
        layer(x, mask=mask)
    return seen


def alike(length: int = 4, **options) -> MaskedSelfAttention:
    """One head with uniform attention."""
    zero, eye = torch.zeros(length, length), torch.eye(length)
    return MaskedSelfAttention(length, 1, w_q=zero, w_k=eye, w_v=eye, bias=False, output=False, **options)


def test_a_window_by_hand():
    x = torch.eye(4)
    change = watched(alike(), x).diff(watched(alike(), x, mask=window(2)))
    before = torch.tensor([[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3] * 3 + [0], [1 / 4] * 4])
    after = torch.tensor([[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [0, 1 / 2, 1 / 2, 0], [0, 0, 1 / 2, 1 / 2]])
    torch.testing.assert_close(change.map(0, 0), after - before)
    (layer,) = change.layers
    assert layer.largest.item() == pytest.approx(1 / 3)
    # Rows 2 and 3 move 1/3 and 1/2 of their attention.
    assert layer.moved.item() == pytest.approx((1 / 3 + 1 / 2) / 4)
    assert layer.kl.item() == math.inf
    assert layer.entropy.item() == pytest.approx((2 * math.log(2) - math.log(3) - math.log(4)) / 4)
    # In both runs all attention goes to the first four keys.
    assert layer.sinks.item() == pytest.approx(0, abs=1e-6)
    columns = (after - before).sum(0).abs().sum() / 2 / 4
    assert layer.received.item() == pytest.approx(columns.item())
    (head,) = change.largest()
    assert (head.layer, head.head) == (0, 0)
    assert head.moved == layer.moved.item()
    assert repr(change) == "ObservationDiff(1 layer, at most 20.8 % of a head's attention moved)"


def test_kl_by_hand():
    x = torch.eye(3)
    # Without the mask, keys that were heard are still heard, with less weight.
    change = watched(alike(3), x).diff(watched(alike(3, mask=full()), x))
    assert change.layers[0].kl.item() == pytest.approx((math.log(3) + math.log(3 / 2) + 0) / 3, rel=1e-5)
    assert change.layers[0].entropy.item() > 0


def test_equal_runs_have_no_difference():
    model, ids = gpt(), tokens()
    seen = []
    for _ in range(2):
        with observe(model) as found:
            model(ids)
        seen.append(found)
    change = seen[0].diff(seen[1], item=1)
    for layer in change.layers:
        for figure in (layer.maps, layer.largest, layer.moved, layer.kl, layer.entropy, layer.sinks, layer.received):
            assert figure.abs().max() < 1e-7
    assert "0.0 % of a head's attention moved" in repr(change)


def test_two_kernels_and_different_names():
    model, ids = gpt(positions="rotary"), tokens()
    with observe(model) as seen:
        model(ids)
    wrapped = torch.nn.Sequential(model)
    with observe(wrapped) as other:
        wrapped(ids)
    assert seen.layers[0].name != other.layers[0].name
    assert seen.diff(other).layers[1].moved.max() == 0


def test_maps_of_different_bins_are_pooled():
    model, ids = gpt(), tokens(16)
    found = []
    for size in (16, 4):
        with observe(model, map_size=size) as seen:
            model(ids)
        found.append(seen)
    change = found[0].diff(found[1])
    assert change.map(0, 0).shape == (4, 4)
    assert change.layers[0].largest.max() < 1e-5


def test_what_cannot_be_compared():
    model, ids = gpt(), tokens(16)
    seen = []
    cases: list[tuple[dict[str, Any], torch.Tensor]] = [
        ({}, ids),
        ({"layers": 0}, ids),
        ({"heads": 0}, ids),
        ({}, ids[:, :5]),
    ]
    for options, given in cases:
        with observe(model, **{"map_size": 8, **options}) as found:
            model(given)
        seen.append(found)
    with pytest.raises(BadArgument, match="other: expected a run with the same layers, got 1 layer instead of 2"):
        seen[0].diff(seen[1])
    with pytest.raises(BadArgument, match=r"heads \(0, 1, 2, 3\) in blocks.0.attention, got \(0,\)"):
        seen[0].diff(seen[2])
    with pytest.raises(BadArgument, match=r"positions 0 to 15 over 16 keys in .*, got 0 to 4 over 5 keys"):
        seen[0].diff(seen[3])
    with pytest.raises(BadArgument, match="two runs with maps"):
        seen[0].diff(found_without_map(model, ids))
    with pytest.raises(BadArgument, match="other: expected an Observation, got str"):
        seen[0].diff("seen.npz")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="item"):
        seen[0].diff(seen[0], item=7)


def found_without_map(model, ids) -> Observation:
    with observe(model, map_size=None) as seen:
        model(ids)
    return seen


def test_bins_that_do_not_fit():
    x = torch.eye(12)
    with pytest.raises(BadArgument, match="bins of 2 and of 3 positions") as caught:
        watched(alike(12), x, map_size=6).diff(watched(alike(12), x, map_size=4))
    assert "map_size" in str(caught.value)


def test_the_mask_on_and_off():
    layer, x = MaskedSelfAttention(8, 2, mask=causal()), torch.randn(1, 9, 8)
    change = watched(layer, x).diff(watched(layer, x, mask=window(1)))
    # With window(1) every query hears only itself.
    (found,) = change.layers
    torch.testing.assert_close(found.after.statistics.entropy.sum(), torch.zeros(()))
    assert (found.moved > 0.1).all()
    torch.testing.assert_close(change.map(0, 1).sum(-1), torch.zeros(9), atol=1e-6, rtol=0)
    text = change.describe()
    assert "MaskedSelfAttention" in text
    assert "moved" in text
