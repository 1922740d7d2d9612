"""The Trace in the terminal: exact for small traces, aligned, nothing left out silently, readable without colour."""

import io
import textwrap
from typing import get_args

import pytest
import torch
from rich.console import Console
from rich.text import Text

from rearview import RearviewError, causal, explain, full
from rearview.cli.terminal import STYLES
from rearview.drawing.cells import width
from rearview.drawing.text import Drawing, NumberRole
from rearview.explanation.text import MOST, WIDTH, draw
from tests.explanation.traces import HEADS, TRACES, numbers, restaurant


def section(drawing: str, start: str, end: str) -> str:
    """From the line `start` up to, not including, the line `end`."""
    lines = drawing.splitlines()
    return "\n".join(lines[lines.index(start) : lines.index(end)]).rstrip("\n")


def exactly(drawing: str, expected: str) -> None:
    assert drawing == textwrap.dedent(expected).strip("\n")


def test_the_heading_and_a_plain_stage():
    text = str(restaurant())
    exactly(
        section(text, text.splitlines()[0], "M = causal()"),
        """
        Four people recommend a restaurant, one after the other
        causal()  ·  4 queries x 4 keys

        Q
        What each position looks for.

                  street-stall  upscale
         Frank           5.319    1.716
         Emma            1.293    1.210
         Daniel          0.742    1.921
         Alex            2.589    1.589

        K
        What each position offers to others.

                  knows-street-stall  knows-upscale
         Frank                 5.271          1.703
         Emma                  1.260          1.338
         Daniel                0.701          2.796
         Alex                  2.565          1.577

        V
        What each position says when it is heard.

                  info-sichuan  info-budget  info-upscale
         Frank           3.963        2.121         1.743
         Emma            2.308        1.114         2.427
         Daniel          1.626        0.577         3.115
         Alex            2.290        0.798         1.635

        S = Q Kᵀ / √d
        How well each query and key fit, for every pair, including the forbidden ones.

                   Frank   Emma  Daniel    Alex
         Frank    21.891  6.363   6.029  11.561
         Emma      6.276  2.297   3.033   3.694
         Daniel    5.079  2.479   4.166   3.488
         Alex     11.563  3.810   4.425   6.468
        """,
    )


def test_with_the_mask_without_it_and_what_it_changed():
    exactly(
        section(restaurant().show(), "M = causal()", "O = A V"),
        """
        M = causal()
        0 where a key may be heard, -∞ where it may not.

                  Frank  Emma  Daniel  Alex
         Frank        0    -∞      -∞    -∞
         Emma         0     0      -∞    -∞
         Daniel       0     0       0    -∞
         Alex         0     0       0     0

        S + M
        Allowed scores stay as they are; forbidden ones become -∞.

         with the mask                             without the mask
                   Frank   Emma  Daniel   Alex               Frank   Emma  Daniel    Alex
         Frank    21.891     -∞      -∞     -∞     Frank    21.891  6.363   6.029  11.561
         Emma      6.276  2.297      -∞     -∞     Emma      6.276  2.297   3.033   3.694
         Daniel    5.079  2.479   4.166     -∞     Daniel    5.079  2.479   4.166   3.488
         Alex     11.563  3.810   4.425  6.468     Alex     11.563  3.810   4.425   6.468

        A = softmax(S + M)
        How much each query hears of each key: rows sum to 1, forbidden cells are exactly 0.

         with the mask                            without the mask
                  Frank   Emma  Daniel   Alex              Frank   Emma  Daniel   Alex
         Frank    1.000      0       0      0     Frank    1.000  0.000   0.000  0.000
         Emma     0.982  0.018       0      0     Emma     0.882  0.016   0.034  0.067
         Daniel   0.678  0.050   0.272      0     Daniel   0.595  0.044   0.239  0.121
         Alex     0.993  0.000   0.001  0.006     Alex     0.993  0.000   0.001  0.006

         what the mask changed
                   Frank    Emma  Daniel    Alex
         Frank     0.000   0.000   0.000   0.000
         Emma     +0.099  +0.002  -0.034  -0.067
         Daniel   +0.082  +0.006  +0.033  -0.121
         Alex          0       0       0       0
        """,
    )


def test_it_ends_with_what_is_read_aloud():
    trace = restaurant()
    said = trace.show().split("\nRead aloud\n")[1]
    spoken = [reading.sentence for reading in trace.readings()]
    heard = [received.sentence for received in trace.received()]
    flat = " ".join(said.split())
    for sentence in [*spoken, *heard, *trace.remarks()]:
        assert sentence in flat
    positions = [flat.index(text) for text in (spoken[0], "Attention received", heard[0], "What stands out")]
    assert positions == sorted(positions)


def test_the_head_that_was_asked_for_is_named():
    trace = TRACES["a_layer"]()
    assert trace.show(3).splitlines()[1] == "causal() & window(3)  ·  6 queries x 6 keys  ·  head 3 of 4"
    assert trace.show(0) != trace.show(3)
    assert "head" not in restaurant().show().splitlines()[1]


def test_the_same_attention_without_its_mask():
    drawing = restaurant().show(masked=False)
    assert drawing.splitlines()[1] == "without the mask causal()  ·  4 queries x 4 keys"
    assert "-∞" not in drawing
    assert "what the mask changed" not in drawing
    assert "Emma — 88.2 % Frank, 6.7 % Alex, 3.4 % Daniel, 1.6 % herself" in drawing
    # Only for the masked attention.
    assert "What stands out" not in drawing
    assert section(drawing, "A = softmax(S)", "O = A V").splitlines()[3:] == [
        "          Frank   Emma  Daniel   Alex",
        " Frank    1.000  0.000   0.000  0.000",
        " Emma     0.882  0.016   0.034  0.067",
        " Daniel   0.595  0.044   0.239  0.121",
        " Alex     0.993  0.000   0.001  0.006",
    ]


@pytest.mark.parametrize(("name", "head"), HEADS)
@pytest.mark.parametrize("masked", [True, False])
def test_every_line_fits_and_tables_are_aligned(name: str, head: int, masked: bool):
    drawing = TRACES[name]().show(head, masked=masked)
    lines = drawing.splitlines()
    assert max(map(width, lines)) <= WIDTH
    assert not any(line != line.rstrip() for line in lines)
    assert "".join(piece.text for piece in drawing.pieces) == drawing
    # In a table that stands alone the numbers of all rows end in the same cells.
    start, end = (TRACES[name]()["mask"].formula, "S + M") if masked else ("M = 0", "S + 0 = S")
    rows = section(drawing, start, end).splitlines()[4:]
    assert len(rows) == len(TRACES[name]().labels)
    assert len({width(row) for row in rows}) == 1


@pytest.mark.parametrize(("name", "head"), HEADS)
def test_a_narrow_terminal_gets_narrow_lines(name: str, head: int):
    drawing = TRACES[name]().show(head, width=60)
    words = max(width(label) for label in (*TRACES[name]().labels, *TRACES[name]().key_labels, ""))
    assert max(map(width, drawing.splitlines())) <= max(60, 2 * words + 10)
    # The same numbers, in more panels.
    wide = TRACES[name]().show(head)
    numbers_in = lambda drawing: sorted(p.text.strip() for p in drawing.pieces if p.role in get_args(NumberRole))  # noqa: E731
    assert numbers_in(drawing) == numbers_in(wide)


def test_decimals_and_whole_numbers():
    trace = explain(query=[[1, 0]], key=[[2, 0], [0, 1]], value=[[1.25, -3], [2, 40]], mask=full())
    assert trace.show(stages=["v"]).splitlines()[-2:] == [" t1   1.250  -3.000", " t2   2.000  40.000"]
    assert trace.show(stages=["v"], decimals=1).splitlines()[-2:] == [" t1   1.2  -3.0", " t2   2.0  40.0"]
    assert trace.show(stages=["k"]).splitlines()[-2:] == [" t1    2   0", " t2    0   1"]
    for argument, value in (("decimals", 0), ("decimals", True), ("decimals", 18), ("width", 39)):
        with pytest.raises(RearviewError, match=f"^{argument}: expected an integer "):
            trace.show(**{argument: value})  # pyright: ignore[reportArgumentType]


def test_wide_labels_take_two_cells():
    rows = section(TRACES["over_a_cache"]().show(), "M = causal()", "S + M").splitlines()[3:]
    assert rows == ["        我  喜欢  寿司  吧", " 寿司    0     0     0  -∞", " 吧      0     0     0   0"]


def test_a_wide_matrix_is_split_into_panels():
    q, k, v = numbers(20, 2), numbers(20, 2, seed=1), numbers(20, 2, seed=2)
    trace = explain(query=q, key=k, value=v)
    text = section(trace.show(), "A = softmax(S + M)", "O = A V")
    assert max(map(width, text.splitlines())) <= WIDTH
    captions = [line.strip() for line in text.splitlines() if "columns" in line]
    for variant in ("with the mask", "without the mask", "what the mask changed"):
        panels = [caption.split(" · columns ")[1] for caption in captions if caption.startswith(variant)]
        ends = [0]
        for panel in panels:
            first, _, last = panel.removesuffix(" of 20").partition(" to ")
            assert int(first) == ends[-1] + 1
            ends.append(int(last))
        assert ends[-1] == 20
        assert len(panels) > 1
    assert " more " not in text


def test_a_long_matrix_is_cut_and_says_so():
    count = MOST + 212
    trace = explain(query=numbers(count, 2), key=numbers(count, 2, seed=1), value=numbers(count, 2, seed=2))
    text = trace.show()
    assert section(text, "M = causal()", "S + M").splitlines()[-1] == (
        " … 212 more rows and … 212 more columns: save(…) as .html or .json has them all"
    )
    assert " … 212 more rows: save(…) as .html or .json has them all" in text.splitlines()
    assert text.splitlines().count(" … 212 more") == 2
    assert text.count("\n") < 2000
    one = explain(query=numbers(1, 2), key=numbers(MOST + 1, 2, seed=1), value=numbers(MOST + 1, 2, seed=2))
    assert " … 1 more column: save(…) as .html or .json has them all" in one.show().splitlines()


def test_weights_are_shaded_by_value():
    scores = torch.tensor([[0.02, 0.3, 0.5, 0.7, 0.9]], dtype=torch.float64)
    weights = scores / scores.sum()
    trace = explain(query=weights.log(), key=torch.eye(5), value=torch.eye(5), scale=1.0, mask=full())
    cells = [piece for piece in trace.show().pieces if piece.role.startswith("weight ")]
    assert [(float(cell.text), int(cell.role[-1])) for cell in cells[:5]] == [
        (round(w, 3), min(5, int(w * 5) + 1)) for w in weights[0].tolist()
    ]
    blocked = [piece.text.strip() for piece in restaurant().show().pieces if piece.role == "blocked"]
    assert {"0", "-∞"} == set(blocked)
    # Six forbidden cells in M, in S + M and in A; and the four changes of the row that the mask leaves alone, and of
    # its three outputs.
    assert (blocked.count("-∞"), blocked.count("0")) == (12, 6 + 4 + 3)


def test_changes_have_a_role_for_their_direction():
    pieces = restaurant().show().pieces
    assert {piece.text.strip()[0] for piece in pieces if piece.role == "gained"} - {"0"} == {"+"}
    assert {piece.text.strip()[0] for piece in pieces if piece.role == "lost"} - {"0"} == {"-"}


def test_the_terminal_has_a_style_for_every_role_and_changes_no_text():
    assert set(get_args(NumberRole)) <= set(STYLES)
    drawing = restaurant().show()
    out = io.StringIO()
    paper = Console(file=out, force_terminal=True, color_system="truecolor", soft_wrap=True, highlight=False)
    coloured = Text.assemble(*((piece.text, STYLES[piece.role]) for piece in drawing.pieces))
    paper.print(coloured)
    assert coloured.plain == drawing
    assert "\x1b[" in out.getvalue()
    assert "\x1b" not in drawing


def test_control_characters_in_titles_and_labels_are_written_out():
    one = torch.zeros(2, 1)
    trace = explain(query=one, key=one, value=one, labels=["\x1b[31mred", "a\nb"], title="two\nlines")
    drawing = draw(trace)
    assert isinstance(drawing, Drawing)
    assert "\x1b" not in drawing
    assert drawing.splitlines()[0] == "two\\nlines"
    assert "a\\nb — 50.0 % \\x1b[31mred, 50.0 % itself" in drawing
    assert draw(explain(query=one, key=one, value=one, mask=causal())).splitlines()[0] == "One attention, step by step"
