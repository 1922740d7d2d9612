"""Pictures for papers: the right pixels, words that stay words, the same bytes each time."""

import builtins
import re
from pathlib import Path

import pytest

from rearview import causal, window
from rearview.drawing.palette import LIGHT, rgb
from rearview.errors import BadArgument, MissingExtra
from rearview.observation.views.sentences import share
from tests.observation import observations


@pytest.fixture
def pixels(monkeypatch: pytest.MonkeyPatch):
    """What is drawn into each named part of a figure: its array of shades."""
    from matplotlib.axes import Axes

    drawn: dict[str, list] = {}
    real = Axes.imshow

    def imshow(self, values, *args, **options):
        drawn.setdefault(str(self.get_gid()), []).append(values)
        return real(self, values, *args, **options)

    monkeypatch.setattr(Axes, "imshow", imshow)
    return drawn


def test_one_head_is_its_map_with_tokens(tmp_path: Path, pixels: dict):
    seen = observations.seen(12)
    path = tmp_path / "head.svg"
    seen.picture(path, 1, 2, scale="linear")
    whole = observations.weights(12, 3, 1)[2]
    assert pixels["map"][0][11] == pytest.approx((whole[11] / whole.max()).tolist(), rel=1e-3)
    text = path.read_text()
    for word in ("Layer 1, head 2", "␣brown", "12 queries (rows) x 12 keys (columns)", share(float(whole.max()))):
        assert word in text
    assert text.count("␣brown") == 2


def test_the_same_observation_gives_the_same_bytes(tmp_path: Path):
    for name, beginning in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")):
        observations.seen(8).picture(tmp_path / name, 0, 0)
        observations.seen(8).picture(tmp_path / f"again-{name}", 0, 0)
        data = (tmp_path / name).read_bytes()
        assert data.startswith(beginning)
        assert data == (tmp_path / f"again-{name}").read_bytes()


def test_a_long_input_is_drawn_in_bins(tmp_path: Path):
    seen = observations.seen(300, map_size=50)
    seen.picture(tmp_path / "long.svg", 0, 0)
    text = (tmp_path / "long.svg").read_text()
    assert "bins of 6" in text
    assert "␣brown" not in text


def test_a_layer_and_all_layers(tmp_path: Path, pixels: dict):
    seen = observations.seen(12, layers=3, heads=3, title="mine")
    seen.picture(tmp_path / "layer.svg", 1)
    text = (tmp_path / "layer.svg").read_text()
    for head in range(3):
        assert f"head {head}: {share(float(seen.sinks(1, 1, head)))} on the first" in text
    assert {f"head-{head}" for head in range(3)} <= set(pixels)
    seen.picture(tmp_path / "all.svg")
    text = (tmp_path / "all.svg").read_text()
    assert "mine" in text
    assert "3 layers (rows), 9 heads in all" in text
    image = pixels["heads"][0]
    assert image.shape == (3 * 44, 3 * 44, 4)
    # The sink of head 0 is the darkest, and the future is grey.
    assert image[30, 0][:3] == pytest.approx([x / 255 for x in rgb(LIGHT["heat-5"])], abs=0.1)
    assert image[0, 39][:3] == pytest.approx([x / 255 for x in rgb(LIGHT["blocked"])], abs=0.01)


def test_a_difference(tmp_path: Path, pixels: dict):
    diff = observations.seen(12).diff(observations.seen(12, mask=causal() & window(3)))
    diff.picture(tmp_path / "one.svg", 0, 0, scale="linear")
    change = diff.map(0, 0)
    assert pixels["map"][0][11] == pytest.approx((0.5 + change[11] / change.abs().max() / 2).tolist(), abs=1e-3)
    assert "change of the attention received by each key" in (tmp_path / "one.svg").read_text()
    diff.picture(tmp_path / "layer.png", 0)
    diff.picture(tmp_path / "all.png")


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = observations.seen(6)
    target = tmp_path / "a.gif"
    with pytest.raises(BadArgument) as caught:
        seen.picture(target)
    assert str(caught.value) == f"path: expected a name that ends in .png, .svg or .pdf, got '.gif' ({target})."
    with pytest.raises(BadArgument, match="head: expected a layer as well, got head 1 alone"):
        seen.picture(tmp_path / "a.png", head=1)
    with pytest.raises(BadArgument, match="head: expected a head that was watched"):
        seen.picture(tmp_path / "a.png", 0, 7)
    with pytest.raises(BadArgument, match="scale: expected log"):
        seen.picture(tmp_path / "a.png", scale="root")
    real = builtins.__import__

    def absent(name, *rest, **options):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtra, match=re.escape("pip install matplotlib (the extra 'pictures' of rearview")):
        seen.picture(tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
