"""The drawings in the terminal: figures as they are, maps that show the weights, and colour only where there is any."""

import io
import math
import re

import pytest
import torch

from rearview import causal, window
from rearview.drawing.cells import width
from rearview.errors import BadArgument
from rearview.observation import Observation, observe
from rearview.observation.views.heat_map import CHANGE_SHADES, SHADES
from rearview.observation.views.terminal_colours import FORBIDDEN, HEAT, MANY, between, depth_of, painted
from tests.observation import observations
from tests.observation.models import t5

ANSI = re.compile(r"\x1b\[[0-9;]*m")
COLOURS = re.compile(r"\x1b\[38;2;(\d+);(\d+);(\d+)(?:;48;2;(\d+);(\d+);(\d+))?m▀")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "COLORTERM", "TERM"):
        monkeypatch.delenv(name, raising=False)


def table(text: str, title: str) -> list[list[str]]:
    """The rows of figures below a title, without the layers."""
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if title in line)
    rows = []
    for line in lines[at + 2 :]:
        if not line.strip():
            break
        rows.append(line.split()[1:])
    return rows


def test_all_heads_are_figures_in_a_table():
    seen = observations.seen(40, layers=3, heads=4, title="mine")
    text = str(seen.show(width=60))
    assert text.splitlines()[0] == "mine  ·  3 layers, 12 heads  ·  40 positions"
    found = [[f"{100 * x:.0f}" for x in row] for row in seen.sinks(1)]
    assert table(text, "on the first key, % of the weight") == found
    entropy = [[f"{x:.1f}" for x in row] for row in (layer.mean(-1) for layer in seen.entropy())]
    assert table(text, "entropy, nats") == entropy
    assert "to see one head: seen.show(" in text


def test_the_strongest_links_are_told_with_their_tokens():
    seen = observations.seen(12)
    text = str(seen.show(1, 1))
    told = re.findall(r"^ +(\d+) (\S+) +hears (\d+) (\S+) +([\d.]+) %$", text, re.MULTILINE)
    links = [link for link in seen.links(1, 1, k=32) if link.query][:8]
    words = ["<s>", *(f"␣{word.strip()}" for word in observations.labels(12)[1:])]
    assert told == [
        (str(a.query), words[a.query], str(a.key), words[a.key], f"{100 * a.weight:.{1 if a.weight >= 0.1 else 2}f}")
        for a in links
    ]


def test_a_small_map_has_a_glyph_for_each_weight():
    seen, whole = observations.seen(12), observations.weights(12, 3, 0)[2]
    lines = str(seen.show(0, 2)).splitlines()
    start = next(n for n, line in enumerate(lines) if re.match(r"^ +0 <s>", line))
    for i in range(12):
        drawn = lines[start + i][len("  11 ") + 7 :]
        for j in range(12):
            shade = 1 + max(math.log10(float(whole[i, j])), -4) / 4 if j <= i else None
            glyph = " " if shade is None else SHADES[min(len(SHADES) - 1, int(shade * len(SHADES)))]
            assert drawn.ljust(24)[2 * j : 2 * j + 2] == 2 * glyph, (i, j)


def test_a_long_map_is_half_blocks_in_colour_and_text_without():
    seen = observations.seen(400, layers=1, map_size=64)
    drawing = seen.show(0, 0, scale="linear", width=100)
    coloured = drawing.painted(MANY)
    rows = [COLOURS.findall(line) for line in coloured.splitlines()]
    rows = [row for row in rows if len(row) > 20]
    pooled = seen.map(0, 0)
    assert (len(rows), len(rows[0])) == (-(-pooled.shape[0] // 2), pooled.shape[1])
    # Two pixels per character, each in the colour of its share. The future is grey.
    for n, row in enumerate(rows):
        for half, place in ((slice(0, 3), 2 * n), (slice(3, 6), 2 * n + 1)):
            if place < len(pooled):
                colour = between(HEAT, float(pooled[place, 0] / pooled.max()))
                assert tuple(map(int, row[0][half])) == pytest.approx(colour, abs=1)
    assert {row[-1][:3] for row in rows[:-1]} == {tuple(map(str, FORBIDDEN))}
    text = str(drawing)
    assert not ANSI.search(text)
    assert max(map(width, text.splitlines())) <= 100
    assert "bins" not in text


@pytest.mark.parametrize("room", [60, 80, 200])
def test_drawings_fit_the_width(room: int):
    seen = observations.seen(70, layers=2, heads=12)
    for place in ((), (1,), (1, 3)):
        drawing = seen.show(*place, width=room)
        wide = [line for line in drawing.splitlines() if not re.search("hears|share of a|·|weight", line)]
        assert max(map(width, wide)) <= room
        coloured = [ANSI.sub("", line) for line in drawing.painted(MANY).splitlines() if "▀" in line]
        assert max(map(width, coloured), default=0) <= room


def test_heads_of_a_layer_stand_side_by_side():
    seen = observations.seen(30, layers=2, heads=3)
    text = str(seen.show(1, width=140))
    assert re.search(r"layer 1 head 0 +layer 1 head 1 +layer 1 head 2", text)
    assert "layer 0" not in text
    assert len(re.findall(r"^ layer 1 head \d: ", text, re.MULTILINE)) == 3
    # One head of every layer.
    both = str(seen.show(head=2, width=140))
    assert re.search(r"layer 0 head 2 +layer 1 head 2", both)


def test_a_difference_shows_losses_and_gains():
    diff = observations.seen(12).diff(observations.seen(12, mask=causal() & window(3)))
    text = str(diff.show(width=60))
    assert table(text, "moved to other keys, % of the weight") == [
        [f"{100 * x:.0f}" for x in layer.moved.tolist()] for layer in diff.layers
    ]
    one = str(diff.show(0, 0, scale="linear"))
    lines = one.splitlines()
    start = next(n for n, line in enumerate(lines) if re.match(r"^ +0 <s>", line))
    last = lines[start + 11][12:].ljust(24)
    change = diff.map(0, 0)
    top = float(change.abs().max())
    wanted = "".join(2 * CHANGE_SHADES[min(6, int((0.5 + float(x) / top / 2) * 7))] for x in change[11])
    assert last == wanted
    assert "% of the weight went to other keys" in one
    assert str(diff.show(0, 0, scale="linear")) == one


def test_colour_is_used_only_on_terminals_that_have_it(monkeypatch: pytest.MonkeyPatch):
    seen = observations.seen(12)
    pipe, terminal = io.StringIO(), Terminal()
    drawing = seen.show(0, 1, file=pipe)
    assert pipe.getvalue() == f"{drawing}\n"
    seen.show(0, 1, file=terminal)
    assert "\x1b[48;5;" in terminal.getvalue()
    monkeypatch.setenv("COLORTERM", "truecolor")
    assert (depth_of(terminal), depth_of(pipe)) == (MANY, 0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert depth_of(pipe) == MANY
    monkeypatch.setenv("NO_COLOR", "1")
    assert (depth_of(terminal), depth_of(pipe)) == (0, 0)
    assert painted("a", ink=(0, 0, 0), depth=0) == "a"
    assert repr(drawing) == str(drawing)


def test_layers_of_unequal_kinds_have_their_names():
    model = t5()
    with observe(model) as seen:
        model(torch.randint(2, 64, (1, 9)), torch.randint(2, 64, (1, 5)))
    text = str(seen.show())
    for name in ("enc 0", "self 2", "cross 3"):
        assert re.search(rf"^ +{name} ", text, re.MULTILINE)
    assert "layer 3 (cross) head 1" in str(seen.show(3, 1))


def test_wrong_arguments_are_refused():
    seen = observations.seen(4)
    with pytest.raises(BadArgument, match="scale: expected log, linear, without_first or expected, got 'root'"):
        seen.show(scale="root")
    with pytest.raises(BadArgument, match="layer: expected a layer that was watched"):
        seen.show(9)
    with pytest.raises(BadArgument, match="head: expected a head that was watched"):
        seen.show(0, 9)
    with pytest.raises(BadArgument, match="width: expected an integer of at least 60, got 10"):
        seen.show(width=10)
    with pytest.raises(BadArgument, match="item"):
        seen.diff(seen).show(item=1)
    with pytest.raises(Exception, match="Nothing was observed"):
        Observation().show()
