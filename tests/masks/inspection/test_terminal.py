"""Drawings: exact for the small ones, quick for the long ones, aligned for all."""

import html
import textwrap
from typing import Any

import pytest
import torch

from rearview import (
    RearviewError,
    Unsupported,
    causal,
    dense,
    dilated,
    documents,
    full,
    padding,
    per_head,
    prefix,
    where,
    window,
)
from rearview.drawing.cells import cut, width
from rearview.drawing.text import GLYPHS, Drawing
from tests.mask_families import FAMILIES

WRONG: list[Any] = [[1, 2], 2.5]


def exactly(drawing: str, expected: str) -> None:
    assert drawing == textwrap.dedent(expected).strip("\n")


def test_the_example_of_the_first_page():
    exactly(
        (causal() & window(3)).show("I love sushi very much"),
        r"""
        causal() & window(3)  ·  5 queries x 5 keys  ·  48.0 % visible

         query \ key     0      1      2      3      4
                         I    love   sushi  very   much
         0  I            ■      ·      ·      ·      ·     [0, 1)
         1  love         ■      ■      ·      ·      ·     [0, 2)
         2  sushi        ■      ■      ■      ·      ·     [0, 3)
         3  very         ·      ■      ■      ■      ·     [1, 4)
         4  much         ·      ·      ■      ■      ■     [2, 5)

         ■ heard   · blocked   [a, b) hears the keys from a up to, not including, b
        """,
    )


def test_one_step_with_a_cache_stands_at_the_last_position():
    exactly(
        (causal() & window(2)).show("c", ["a", "b", "c"]),
        r"""
        causal() & window(2)  ·  1 query x 3 keys  ·  66.7 % visible

         query \ key   0  1  2
                       a  b  c
         2  c          ·  ■  ■   [1, 3)

         ■ heard   · blocked   [a, b) hears the keys from a up to, not including, b
        """,
    )


def test_warnings_stand_below():
    exactly(
        (~causal()).show(2),
        r"""
        ~causal()  ·  2 queries x 2 keys  ·  25.0 % visible

         query \ key   0  1
         0             ·  ■   [1, 2)
         1             ·  ·   nothing

         ■ heard   · blocked   [a, b) hears the keys from a up to, not including, b
         ! empty row: 1 of 2 queries hears nothing: position 1; its output is 0
         ! visible future: position 0 hears position 1, which comes later; 1 of 2 queries hears
           ahead, and a model that generates left to right has nothing there yet
         ! looks inverted: most of what is heard lies ahead, and no query hears itself. True
           means may be heard; did you mean causal()?
        """,
    )


def test_a_mask_with_no_range_form_says_so():
    exactly(
        (causal() & dilated(2)).show(3),
        r"""
        causal() & dilated(2)  ·  3 queries x 3 keys  ·  44.4 % visible

         query \ key   0  1  2
         0             ■  ·  ·
         1             ·  ■  ·
         2             ■  ·  ■

         ■ heard   · blocked
         no range form: the keys that a query hears are not a few ranges
        """,
    )


def test_a_long_sequence_is_drawn_by_blocks():
    exactly(
        (causal() | prefix(70)).show(4, 100),
        r"""
        causal() | prefix(70)  ·  4 queries x 100 keys  ·  98.5 % visible

         query \ key  0               32              64              96
         96           ████████████████████████████████████████████████▒▒  [0, 97)
         97           ████████████████████████████████████████████████▒▒  [0, 98)
         98           ████████████████████████████████████████████████▒▒  [0, 99)
         99           ██████████████████████████████████████████████████  [0, 100)

         █ all heard   ▒ some heard   · none heard   [a, b) keys that the query hears
         one cell is 1 query x 4 keys
        """,
    )


def test_a_million_positions_fit_on_a_screen():
    drawing = ((causal() & window(4096)) | (causal() & prefix(4))).show(1_000_000)
    lines = drawing.splitlines()
    assert "1,000,000 queries x 1,000,000 keys  ·  0.4 % visible" in lines[0]
    assert len(lines) == 4 + 30 + 1 + 1 + 1
    assert max(map(width, lines)) <= 110
    assert " 983040       ▒▒" in drawing
    assert "▒▒▒▒  [0, 4) [978945, 1000000)" in drawing
    assert lines[-1] == " one cell is 32,768 queries x 32,768 keys"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_glyphs_are_the_mask(name: str):
    mask, length = FAMILIES[name](2, 2, 12), 12
    for batch in range(mask.batch or 1):
        for head in range(mask.heads or 1):
            drawing = mask.show(length, batch=batch, head=head)
            cells = [piece.role for piece in drawing.pieces if piece.role in ("heard", "blocked")]
            visible = mask.to_bool(length).expand(mask.batch or 1, mask.heads or 1, -1, -1)[batch, head]
            # The two in the legend stand last.
            assert [role == "heard" for role in cells[:-2]] == visible.flatten().tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_agree_with_the_dense_form(name: str):
    length, block = 70, 4
    mask = FAMILIES[name](2, 2, length)
    drawing = mask.show(length, batch=(mask.batch or 1) - 1, head=(mask.heads or 1) - 1)
    roles = [piece.role for piece in drawing.pieces if piece.role in ("full", "partial", "skipped")][:-3]
    visible = mask.to_bool(length).expand(mask.batch or 1, mask.heads or 1, -1, -1)[-1, -1]
    tiles = [tile for rows in visible.split(block) for tile in rows.split(block, dim=1)]
    assert roles == ["full" if t.all() else "partial" if t.any() else "skipped" for t in tiles]


def test_a_drawing_prints_as_itself_and_its_pieces_are_all_of_it():
    drawing = causal().show("a b")
    assert isinstance(drawing, Drawing)
    assert repr(drawing) == str(drawing) == "".join(piece.text for piece in drawing.pieces)
    assert not any(line != line.rstrip() for line in drawing.splitlines())


def test_wide_words_do_not_break_the_columns():
    drawing = causal().show("我 爱 寿司 very")
    grid = drawing.splitlines()[4:8]
    places = [[width(line[:n]) for n, c in enumerate(line) if c in "■·"] for line in grid]
    assert places[0] == places[1] == places[2] == places[3]
    assert len({width(line.split("[")[0]) for line in grid}) == 1


def test_many_words_are_stacked_above_their_columns():
    words = [f"word{n}" for n in range(18)]
    lines = causal().show(words).splitlines()
    grid = [line for line in lines if "■" in line][:18]
    column = grid[17].index("■") + 2 * 12
    above = "".join(line[column : column + 1] for line in lines[2 : lines.index(grid[0])])
    # The position on top, the word below it, both from top to bottom.
    assert above.replace(" ", "") == "12word12"


def test_long_words_are_cut():
    drawing = causal().show(["antidisestablishmentarianism", "b"])
    assert "antidisestabl…" in drawing
    assert cut("寿司が好き", 6) == "寿司…"
    assert width(cut("寿司が好き", 6)) <= 6


def test_control_characters_in_words_are_written_out():
    drawing = causal().show(["\n", "\x1b[31m", " love", " ", "a\tb"])
    assert "\x1b" not in drawing
    for shown in ("\\n", "\\x1b[31m", "␣love", "␣", "a\\tb"):
        assert shown in drawing
    assert len(drawing.splitlines()) == len(causal().show("a b c d e").splitlines())


def test_the_header_names_what_is_drawn():
    mask = per_head([causal(), full(), window(1)]) & padding([2, 3])
    first = mask.show(3, batch=1, head=2).splitlines()[0]
    assert first.endswith("3 queries x 3 keys  ·  batch item 1 of 2  ·  head 2 of 3  ·  33.3 % visible")
    assert "queries from position 1" in causal().show(2, 4, q_start=1).splitlines()[0]
    assert mask.show(3, head=1).splitlines()[0].endswith("66.7 % visible")


@pytest.mark.parametrize(
    ("visible", "share"),
    [(0, "0.0 %"), (1, "under 0.1 %"), (5000, "50.0 %"), (9999, "over 99.9 %"), (10000, "100.0 %")],
)
def test_a_share_never_rounds_to_nothing_or_everything(visible: int, share: str):
    tensor = (torch.arange(10000) < visible).view(100, 100)
    assert causal().show(1).endswith("b")
    assert dense(tensor).show(100).splitlines()[0].endswith(f"{share} visible")


def test_many_ranges_are_counted():
    drawing = documents([0, 1] * 8).show(16)
    assert "[0, 1) [2, 3) [4, 5) and 5 more" in drawing


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: causal().show(""), "tokens: expected at least one word, got none."),
        (lambda: causal().show([]), "tokens: expected at least one word, got none."),
        (lambda: causal().show(0), "tokens: expected an integer of at least 1, got 0."),
        (lambda: causal().show(True), "tokens: expected an integer of at least 1, got True."),
        (
            lambda: causal().show(WRONG[0]),
            "tokens: expected words, got 1. For positions without words give their number.",
        ),
        (lambda: causal().show("a", WRONG[1]), "keys: expected an integer of at least 1, got 2.5."),
        (lambda: causal().show("a", q_start=-1), "q_start: expected an integer of at least 0, got -1."),
        (lambda: causal().show(2, batch=1), "batch: expected 0, as causal() is the same for every batch item, got 1."),
        (lambda: causal().show(2, head=3), "head: expected 0, as causal() is the same for every head, got 3."),
        (lambda: padding([1, 2]).show(2, batch=2), "batch: expected an index from 0 to 1, got 2."),
        (lambda: padding([1, 2]).show(2, batch=-1), "batch: expected an integer of at least 0, got -1."),
        (
            lambda: documents([0, 0]).show("a b c"),
            "documents(ids): expected an id for each of the 3 positions, got 2 ids. "
            "Give one id per position of the whole sequence, the cached positions included.",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, message: str):
    with pytest.raises(RearviewError) as caught:
        call()
    assert str(caught.value) == message


def test_a_rule_over_too_many_pairs_is_refused_at_once():
    with pytest.raises(Unsupported, match="no range form, so every pair would have to be evaluated"):
        where(lambda i, j: i == j).show(1_000_000)
    # One row of a million is allowed.
    assert "1 query x 1,000,000 keys" in where(lambda i, j: i - j < 3).show(1, 1_000_000)


def test_glyphs_take_one_cell_and_differ():
    assert all(width(glyph) == 1 for glyph in GLYPHS.values())
    assert len({GLYPHS[role] for role in ("heard", "blocked", "full", "partial")}) == 4


# In a notebook.


def test_a_notebook_draws_a_mask_over_its_own_length():
    assert str(causal().show(8)) in html.unescape(causal()._repr_html_())
    assert str(documents([0, 0, 1]).show(3)) in html.unescape(documents([0, 0, 1])._repr_html_())
    # Rows at the last positions of more columns have no square to draw.
    wide = dense(torch.ones(2, 5, dtype=torch.bool))
    assert repr(wide) in html.unescape(wide._repr_html_())


def test_what_a_notebook_shows_is_text():
    named = where(lambda i, j: j <= i)
    assert "<lambda>" not in named._repr_html_()
    assert "&lt;lambda&gt;" in named._repr_html_()
