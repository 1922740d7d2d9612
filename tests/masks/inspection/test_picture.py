"""Pictures: they decode, they show the mask, and the same mask gives the same bytes."""

import builtins
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from rearview import RearviewError, Unsupported, causal, dilated, documents, full, padding, per_head, prefix, window
from rearview.drawing import figure
from rearview.drawing.figure import COLOURS, OWN
from rearview.errors import MissingExtra

SVG = "{http://www.w3.org/2000/svg}"


def groups(path: Path) -> dict[str, int]:
    """How many cells each named group of an SVG holds."""
    root = ElementTree.parse(path).getroot()
    named = {g.get("id"): len(g.findall(f"{SVG}path")) for g in root.iter(f"{SVG}g")}
    return {name: n for name, n in named.items() if name in ("heard", "blocked", "full", "partial", "skipped", "own")}


def words(path: Path) -> list[str]:
    return [text.text or "" for text in ElementTree.parse(path).getroot().iter(f"{SVG}text")]


def test_an_svg_has_the_cells_the_words_and_the_title(tmp_path: Path):
    path = tmp_path / "mask.svg"
    (causal() & window(3)).save_picture(str(path), "I love sushi very much")
    assert groups(path) == {"heard": 12, "blocked": 13, "own": 5}
    shown = words(path)
    assert [shown.count(word) for word in ("I", "love", "sushi", "very", "much")] == [2] * 5
    assert "causal() & window(3)" in shown
    assert "5 queries x 5 keys  ·  48.0 % visible" in shown


def test_a_png_shows_the_mask_in_its_colours(tmp_path: Path):
    path = tmp_path / "mask.png"
    causal().save_picture(str(path), 4)
    pixels = imread(path)[..., :3]

    def amount(colour: str) -> int:
        return int((numpy.abs(pixels - numpy.array(to_rgb(colour))).max(-1) < 0.02).sum())

    heard, blocked = amount(COLOURS["heard"]), amount(COLOURS["blocked"])
    # Ten cells against six; the outlines on the diagonal and the key take a little.
    assert 1.3 < heard / blocked < 1.75
    assert amount(OWN) > 100
    # The lower triangle is the heard one: the first column has it from top to bottom.
    rows, columns = numpy.nonzero(numpy.abs(pixels - numpy.array(to_rgb(COLOURS["heard"]))).max(-1) < 0.02)
    grid = rows < pixels.shape[0] * 0.85
    assert columns[grid].mean() < pixels.shape[1] / 2
    assert rows[grid].mean() > pixels.shape[0] / 2


def test_a_million_positions_are_drawn_from_blocks(tmp_path: Path):
    path = tmp_path / "long.svg"
    (causal() & window(100_000)).save_picture(path, 1_000_000)
    found = groups(path)
    assert sum(found[role] for role in ("full", "partial", "skipped")) == 31 * 31
    assert found["own"] == 31
    assert any("one cell is 32,768 queries x 32,768 keys" in text for text in words(path))
    assert path.stat().st_size < 1_000_000


def test_queries_over_a_cache_and_blocks_on_one_side(tmp_path: Path):
    causal().save_picture(tmp_path / "step.svg", "much", "I love sushi very much")
    assert groups(tmp_path / "step.svg") == {"heard": 5, "own": 1}
    causal().save_picture(tmp_path / "wide.svg", 2, 100)
    # Cells of 1 query x 4 keys: the query at 98 does not hear the last key, the one at 99 does.
    assert groups(tmp_path / "wide.svg") == {"full": 24 + 25, "partial": 1, "own": 2}
    causal().save_picture(tmp_path / "tall.svg", 100, 4)
    assert groups(tmp_path / "tall.svg")["own"] == 4


def test_the_item_and_head_that_were_asked_for(tmp_path: Path):
    mask = per_head([causal(), full()]) & padding([1, 3])
    mask.save_picture(tmp_path / "a.svg", 3, batch=0, head=1)
    mask.save_picture(tmp_path / "b.svg", 3, batch=1, head=0)
    assert groups(tmp_path / "a.svg")["heard"] == 3
    assert groups(tmp_path / "b.svg")["heard"] == 6
    assert any("batch item 1 of 2  ·  head 0 of 2" in text for text in words(tmp_path / "b.svg"))


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_same_mask_gives_the_same_bytes(tmp_path: Path, suffix: str):
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    for path in (first, second):
        (causal() | prefix(2)).save_picture(path, "a b c d")
    assert first.read_bytes() == second.read_bytes()
    assert b"dc:date" not in first.read_bytes()


def test_words_are_never_read_as_formulas(tmp_path: Path):
    path = tmp_path / "maths.svg"
    causal().save_picture(path, ["$x$", "a_b", "<b>&", "寿司", "\n"])
    for word in ("$x$", "a_b", "<b>&", "寿司", "\\n"):
        assert words(path).count(word) == 2
    causal().save_picture(tmp_path / "maths.png", ["$x$", "$", "é"])


def test_characters_without_a_font_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figure, "OTHER_FONTS", ())
    for ending in (".png", ".pdf"):
        with pytest.warns(UserWarning, match="no installed font") as caught:
            figure.rendered(lambda: _labelled("寿a司寿"), ending, needed_for="A test")
        assert [str(each.message) for each in caught] == [
            "no installed font has '寿', '司': drawn as boxes. Write .svg, which keeps them as text, or install a font "
            "that has them, such as Noto Sans CJK or Noto Emoji"
        ]
    # The words stay text there.
    assert "寿a司寿".encode() in figure.rendered(lambda: _labelled("寿a司寿"), ".svg", needed_for="A test")


def _labelled(text: str) -> Figure:
    drawn = Figure()
    drawn.text(0.5, 0.5, text)
    return drawn


def test_a_long_expression_is_folded(tmp_path: Path):
    path = tmp_path / "long.svg"
    mask = causal() & documents([n // 4 for n in range(24)])
    mask.save_picture(path, 6)
    assert repr(mask) in " ".join(words(path))
    assert repr(mask) not in words(path)


def test_no_global_state_is_left_behind(tmp_path: Path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    causal().save_picture(tmp_path / "a.svg", 3)
    assert dict(matplotlib.rcParams) == before


def test_an_old_picture_is_replaced_and_nothing_else_is_left(tmp_path: Path):
    path = tmp_path / "mask.PNG"
    path.write_text("old")
    causal().save_picture(path, 2)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert os.listdir(tmp_path) == ["mask.PNG"]


def test_a_pdf_for_papers(tmp_path: Path):
    for name in ("mask.pdf", "again.pdf"):
        causal().save_picture(tmp_path / name, 2)
    data = (tmp_path / "mask.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert data == (tmp_path / "again.pdf").read_bytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mask.gif", "path: expected a name that ends in .svg, .png or .pdf, got '.gif' (mask.gif)."),
        ("mask", "path: expected a name that ends in .svg, .png or .pdf, got no ending (mask)."),
        ("nowhere/mask.svg", "path: expected a folder that exists, got nowhere."),
        (7, "path: expected a file name, got 7."),
    ],
)
def test_invalid_paths_are_refused(name, message: str):
    with pytest.raises(RearviewError) as caught:
        causal().save_picture(name, 3)
    assert str(caught.value) == message


def test_unwritable_paths_are_refused(tmp_path: Path):
    (tmp_path / "mask.svg").mkdir()
    with pytest.raises(RearviewError, match="path: expected a file that can be written, got "):
        causal().save_picture(tmp_path / "mask.svg", 3)
    assert os.listdir(tmp_path) == ["mask.svg"]


def test_a_rule_over_too_many_pairs_is_refused(tmp_path: Path):
    with pytest.raises(Unsupported, match="no range form"):
        dilated(2).save_picture(tmp_path / "a.svg", 1_000_000)
    assert os.listdir(tmp_path) == []


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def refuse(name: str, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(
        MissingExtra, match=r"A picture of a mask needs .* pip install matplotlib \(the extra 'pictures' "
    ):
        causal().save_picture(tmp_path / "a.svg", 3)
