"""The files of a comparison: the result as JSON and back, and errors that name the place in a file."""

import json

import pytest

from rearview.comparison import ComparisonConfig
from rearview.comparison.folder import check_free, from_json, load, read_config, save, to_json, write_config
from rearview.errors import BadArgument, BadFile
from tests.comparison.example import a_comparison


def test_a_result_is_restored_from_json():
    for comparison in (a_comparison(), a_comparison(tables=(6.7, 4.7, None), prompts=("\ud83d", "\x00</script>"))):
        text = to_json(comparison)
        assert from_json(text, "x") == comparison
        assert to_json(from_json(text, "x")) == text


def test_a_number_that_is_not_finite_cannot_be_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(a_comparison(exam=float("nan")))


def changed(path: str, value: object) -> str:
    data = json.loads(to_json(a_comparison()))
    *places, last = path.split(".")
    inner = data
    for place in places:
        inner = inner[place]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "x: line 1, column 2: this is not JSON: Expecting property name enclosed in double quotes\n  {\n   ^"),
        ("[]", "x: expected an object, got []"),
        (changed("format", "other"), 'x: format: expected "rearview-comparison", got "other"'),
        (changed("version", 2), "x: version: expected 1, the version that this release reads, got 2"),
        (changed("with_mask.exam", None), "x: with_mask.exam: expected this field, got nothing"),
        (changed("with_mask.exam", 3), "x: with_mask.exam: expected an object, got 3"),
        (changed("with_mask.exam.bits", "2"), 'x: with_mask.exam.bits: expected a number, got "2"'),
        (changed("with_mask.exam.bits", True), "x: with_mask.exam.bits: expected a number, got true"),
        (changed("conditions.threads", True), "x: conditions.threads: expected an integer, got true"),
        (changed("prompts", "To be"), 'x: prompts: expected a list, got "To be"'),
        (changed("with_mask.training", [[1, 2.0, 3]]), "x: with_mask.training[0]: expected a list of 2, got 3 values"),
    ],
)
def test_errors_name_the_place_in_the_file(text: str, message: str):
    with pytest.raises(BadFile) as caught:
        from_json(text, "x")
    assert str(caught.value) == message


def test_whole_numbers_are_read_as_numbers():
    assert from_json(changed("with_mask.exam.bits", 2), "x").with_mask.exam.bits == 2.0


def test_errors_name_the_missing_file(tmp_path):
    with pytest.raises(BadFile, match=r"nowhere: does not exist\."):
        load(tmp_path / "nowhere")
    with pytest.raises(BadFile, match=r"has no comparison\.json: the comparison is not finished\."):
        load(tmp_path)
    with pytest.raises(BadFile, match=r"has no compare\.json: no comparison was started here\."):
        read_config(tmp_path)
    (tmp_path / "compare.json").write_text("[1]")
    with pytest.raises(BadFile, match=r"compare\.json: expected an object, got a list"):
        read_config(tmp_path)
    (tmp_path / "comparison.json").write_bytes(b"\xff")
    with pytest.raises(BadFile, match=r"comparison\.json: line 1: this is not UTF-8 text"):
        load(tmp_path)


def test_nothing_is_overwritten(tmp_path):
    check_free(tmp_path)
    check_free(tmp_path / "new")
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(BadArgument, match=r"out: expected a new or empty folder, got .*, which has other files\."):
        check_free(tmp_path)
    with pytest.raises(BadArgument, match=r"which is a file\."):
        check_free(tmp_path / "mine.txt")
    (tmp_path / "started").mkdir()
    write_config(ComparisonConfig(steps=3, text="book.txt"), tmp_path / "started")
    assert read_config(tmp_path / "started") == ComparisonConfig(steps=3, text="book.txt")
    with pytest.raises(
        BadArgument, match=r"Resume it \(rearview compare --resume .*started\), or choose another folder"
    ):
        check_free(tmp_path / "started")
    with pytest.raises(BadArgument, match=r"out: expected a folder that can be made, got "):
        save(a_comparison(), tmp_path / "mine.txt" / "below")
