"""Pictures of a Trace: they decode, hold words and numbers as text, repeat to the byte; and files are written whole."""

import builtins
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from rearview import RearviewError, Trace, explain
from rearview.drawing.figure import OWN
from rearview.errors import MissingExtra
from rearview.explanation.picture import BLOCKED, HEARD, MOST_LABELLED, MOST_NUMBERED, picture
from tests.explanation.traces import TRACES, numbers, restaurant

SVG = "{http://www.w3.org/2000/svg}"
PANELS = ["scores", "mask", "weights", "output", "weights-without", "output-without"]


def root_of(trace: Trace, head: int = 0) -> ElementTree.Element:
    return ElementTree.fromstring(picture(trace, ".svg", head=head))


def texts(element: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def panel(root: ElementTree.Element, name: str) -> ElementTree.Element:
    return next(group for group in root.iter(f"{SVG}g") if group.get("id") == name)


def test_a_picture_has_all_tables_and_sentences():
    root = root_of(restaurant())
    names = [group.get("id") for group in root.iter(f"{SVG}g")]
    assert [name for name in names if name in PANELS] == PANELS
    words = texts(root)
    assert words.count("Four people recommend a restaurant, one after the other") == 1
    for title in ("S = Q Kᵀ / √d", "M = causal()", "A = softmax(S + M)", "O = A V", "A without the mask"):
        assert title in words
    assert "Emma — 98.2 % Frank, 1.8 % herself" in words
    assert "Frank hears only himself: the output is exactly the value of Frank." in words
    assert "causal()  ·  4 queries x 4 keys" in words
    for name in PANELS:
        assert [texts(panel(root, name)).count(who) for who in ("Frank", "Emma", "Daniel")] in ([2] * 3, [1] * 3)


def test_a_png_shows_the_mask_in_its_colours():
    import io

    pixels = imread(io.BytesIO(picture(restaurant(), ".png")))[..., :3]

    def amount(colour: str, part: numpy.ndarray) -> int:
        return int((numpy.abs(part - numpy.array(to_rgb(colour))).max(-1) < 0.02).sum())

    # M is the second table of the first row: ten open cells against six closed ones.
    high, wide = pixels.shape[:2]
    mask = pixels[: int(high * 0.5), int(wide * 0.27) : int(wide * 0.52)]
    assert 1.3 < amount(HEARD, mask) / amount(BLOCKED, mask) < 1.85
    assert amount(OWN, pixels) > 500


def test_the_head_that_was_asked_for():
    trace = TRACES["a_layer"]()
    assert any(text.endswith("head 2 of 4") for text in texts(root_of(trace, 2)))
    assert texts(panel(root_of(trace, 0), "scores")) != texts(panel(root_of(trace, 2), "scores"))


# Some of its labels have no font on every machine.
@pytest.mark.filterwarnings("ignore:no installed font")
@pytest.mark.parametrize("ending", [".svg", ".png", ".pdf"])
def test_the_same_trace_gives_the_same_bytes(ending: str):
    first, second = (picture(TRACES["over_a_cache"](), ending) for _ in range(2))
    assert first == second
    assert b"dc:date" not in first


def test_a_large_table_has_no_numbers_and_says_so():
    count = MOST_NUMBERED + 1
    trace = explain(query=numbers(count, 2), key=numbers(count, 2, seed=1), value=numbers(count, 2, seed=2))
    root = root_of(trace)
    assert sorted(texts(panel(root, "scores"))) == sorted(2 * trace.labels)
    assert any(
        f"a table of more than {MOST_NUMBERED} rows or columns is drawn without its numbers" in t for t in texts(root)
    )
    assert "… 5 more" in texts(root)
    assert not any("drawn without" in text for text in texts(root_of(restaurant())))


def test_a_very_large_table_labels_some_rows():
    count = 2 * MOST_LABELLED
    trace = explain(query=numbers(count, 2), key=numbers(count, 2, seed=1), value=numbers(count, 2, seed=2))
    root = root_of(trace)
    assert sorted(texts(panel(root, "weights"))) == sorted(2 * trace.labels[::2])
    assert texts(panel(root, "output"))[-2:] == ["v1", "v2"]


def test_labels_are_never_read_as_formulas():
    one = numbers(3, 2)
    trace = explain(query=one, key=one, value=one, labels=["$x$", "<b>&", "寿司"], title="$a_b$ <i>")
    root = root_of(trace)
    for word in ("$x$", "<b>&", "寿司"):
        assert texts(panel(root, "scores")).count(word) == 2
    assert "$a_b$ <i>" in texts(root)
    latin = explain(query=one, key=one, value=one, labels=["$x$", "<b>&", "$"], title="$a_b$ <i>")
    assert picture(latin, ".png").startswith(b"\x89PNG")


def test_no_global_state_is_left_behind():
    import matplotlib

    before = dict(matplotlib.rcParams)
    picture(restaurant(), ".svg")
    assert dict(matplotlib.rcParams) == before


# Files.


@pytest.mark.parametrize("ending", [".html", ".json", ".tex", ".svg", ".png"])
def test_each_ending_has_its_form_and_nothing_else_is_left(ending: str, tmp_path: Path):
    trace = TRACES["a_layer"]()
    path = tmp_path / f"trace{ending.upper()}"
    path.write_text("old")
    trace.save(str(path), head=1)
    expected = {
        ".html": lambda: trace.to_html().encode(),
        ".json": lambda: trace.to_json().encode(),
        ".tex": lambda: trace.to_latex(1).encode(),
    }.get(ending, lambda: picture(trace, ending, head=1))
    assert path.read_bytes() == expected()
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "a.gif",
            "path: expected a name that ends in .html, .json, .csv, .tex, .svg, .png or .pdf, got '.gif' (a.gif).",
        ),
        (
            "trace",
            "path: expected a name that ends in .html, .json, .csv, .tex, .svg, .png or .pdf, got no ending (trace).",
        ),
        ("nowhere/a.html", "path: expected a folder that exists, got nowhere."),
        (7, "path: expected a file name, got 7."),
    ],
)
def test_invalid_paths_are_refused(name, message: str):
    with pytest.raises(RearviewError) as caught:
        restaurant().save(name)
    assert str(caught.value) == message


@pytest.mark.parametrize("ending", [".html", ".json", ".tex", ".svg"])
def test_unwritable_paths_are_refused(ending: str, tmp_path: Path):
    path = tmp_path / f"trace{ending}"
    path.mkdir()
    with pytest.raises(RearviewError, match="path: expected a file that can be written, got "):
        restaurant().save(path)
    assert os.listdir(tmp_path) == [path.name]


def test_a_failure_halfway_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "trace.json"
    path.write_text("old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(RearviewError, match="got No space left on device"):
        restaurant().save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["trace.json"]


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def refuse(name: str, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(
        MissingExtra, match=r"A picture of a Trace needs .* pip install matplotlib \(the extra 'pictures' "
    ):
        restaurant().save(tmp_path / "a.svg")
    # The other forms need nothing.
    restaurant().save(tmp_path / "a.tex")
    assert os.listdir(tmp_path) == ["a.tex"]
