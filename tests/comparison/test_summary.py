"""The summary on a terminal: the numbers, two texts side by side, and no control characters."""

from dataclasses import replace

from rearview.comparison import Writing, conclusion_of
from rearview.comparison.summary import side_by_side, sparkline, summary
from rearview.drawing.cells import width
from tests.comparison.example import a_comparison


def test_it_shows_the_conclusion_and_the_numbers():
    comparison = a_comparison()
    text = str(summary(comparison))
    assert conclusion_of(comparison).headline in text
    assert "The claim holds: Without the mask a model converges faster" in text
    rows = {line[:49].strip(): line[49:].split() for line in text.splitlines() if line.startswith(" ")}
    assert rows["held-out text read at once, bits per character"] == ["2.00", "0.10"]
    assert rows["exam, from the prefix alone, bits per character"] == ["2.00", "9.00"]
    assert rows["exam, next character predicted"] == ["25", "%", "25", "%"]
    assert rows["known words in the generated text"] == ["80", "%", "80", "%"]
    assert "a table of pairs 3.30, single characters 4.70, uniform guessing 6.70." in text
    assert "the largest difference is 2e-06 nats." in text
    assert "".join(piece.text for piece in summary(comparison).pieces) == text


def test_a_large_vocabulary_has_no_table_of_pairs():
    assert "bits per character: single characters 4.70, uniform" in str(summary(a_comparison(tables=(6.7, 4.7, None))))


def test_both_curves_are_on_one_scale():
    text = str(summary(a_comparison()))
    ours, theirs = text.partition("Training loss\n")[2].splitlines()[:2]
    # 1.43 at the end, on a scale up to 4.4, and 0.1.
    assert ours.split()[-4][-1] == "▃"
    assert theirs.split()[-4][-1] == "▁"
    assert sparkline([3.0, 3.0], 5) == "▁▁"
    assert sparkline([0.0, 1.0], 2, low=0.0, high=2.0) == "▁▅"


def test_samples_are_side_by_side_and_fit():
    comparison = a_comparison()
    long = Writing(("word " * 40, "寿司" * 40), 0.0, None)
    comparison = replace(comparison, with_mask=replace(comparison.with_mask, writing=long))
    for columns in (60, 100):
        text = str(summary(comparison, columns=columns))
        lines = [line for line in text.splitlines() if "  │  " in line]
        assert len(lines) > 5
        assert all(width(line) <= columns for line in lines)
        assert len({width(line[: line.index("│")]) for line in lines}) == 1
    assert "none" in text


def test_lines_break_after_a_space_where_there_is_one():
    assert side_by_side("aaaa bb cc", "", 8) == [("aaaa bb ", ""), ("cc", "")]
    assert side_by_side("a\n\nb", "c", 8) == [("a", "c"), ("", ""), ("b", "")]


def test_generated_text_cannot_control_a_terminal():
    comparison = a_comparison(prompts=("\x1b[31m red", "or not"))
    writing = Writing(("\x1b[2J", "\x07\r"), 0.0, None)
    text = str(summary(replace(comparison, without_mask=replace(comparison.without_mask, writing=writing))))
    assert not {"\x1b", "\x07", "\r"} & set(text)
