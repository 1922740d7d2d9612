"""A comparison as JSON: the same back, and a file that is not one is told apart, with the place."""

import json

import pytest

from rearview.errors import BadArgument, BadFile
from rearview.training.comparison.folder import check_free, keep_asked, load, read_asked, save
from rearview.training.comparison.serial import from_json, to_json
from tests.training.comparison.example import a_comparison


def test_it_comes_back_the_same():
    for comparison in (a_comparison(), a_comparison(tables=(6.7, 4.7, None), prompts=("\ud83d", "\x00</script>"))):
        text = to_json(comparison)
        assert from_json(text, "x") == comparison
        assert to_json(from_json(text, "x")) == text


def test_a_number_that_is_none_cannot_be_written():
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
        ("{", r"x: is not JSON: Expecting property name .*\."),
        ("[]", r"x: is not a comparison: expected an object, got list\."),
        (changed("format", "other"), "expected the format 'rearview comparison 1', got 'other'"),
        (changed("with_mask.exam", None), "the field 'exam' is missing"),
        (changed("with_mask.exam", 3), "with_mask.exam: expected an object, got int"),
        (changed("with_mask.exam.bits", "2"), "with_mask.exam.bits: expected float, got str"),
        (changed("with_mask.exam.bits", True), "with_mask.exam.bits: expected float, got bool"),
        (changed("conditions.threads", True), "conditions.threads: expected int, got bool"),
        (changed("prompts", "To be"), "prompts: expected a list, got str"),
        (changed("with_mask.training", [[1, 2.0, 3]]), "with_mask.training: expected 2 values, got 3"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, message: str):
    with pytest.raises(BadFile, match=message):
        from_json(text, "x")


def test_whole_numbers_are_read_as_numbers():
    assert from_json(changed("with_mask.exam.bits", 2), "x").with_mask.exam.bits == 2.0


def test_a_folder_says_what_it_lacks(tmp_path):
    with pytest.raises(BadFile, match=r"nowhere: is not there\."):
        load(tmp_path / "nowhere")
    with pytest.raises(BadFile, match=r"has no comparison\.json: the comparison is not finished\."):
        load(tmp_path)
    with pytest.raises(BadFile, match=r"has no compare\.json: no comparison was begun here\."):
        read_asked(tmp_path)
    (tmp_path / "compare.json").write_text("[1]")
    with pytest.raises(BadFile, match=r"compare\.json: cannot be used: it should be an object\."):
        read_asked(tmp_path)
    (tmp_path / "comparison.json").write_bytes(b"\xff")
    with pytest.raises(BadFile, match=r"comparison\.json: cannot be read: "):
        load(tmp_path)


def test_nothing_is_written_over(tmp_path):
    check_free(tmp_path)
    check_free(tmp_path / "new")
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(BadArgument, match=r"--out: expected a new or an empty folder, got .*, which has other files\."):
        check_free(tmp_path)
    with pytest.raises(BadArgument, match=r"which is a file\."):
        check_free(tmp_path / "mine.txt")
    keep_asked(tmp_path / "begun", {"steps": 3})
    assert read_asked(tmp_path / "begun") == {"steps": 3}
    with pytest.raises(BadArgument, match=r"Go on with it \(rearview compare --resume .*begun\), or choose another"):
        check_free(tmp_path / "begun")
    with pytest.raises(BadArgument, match=r"--out: expected a folder that can be made, got "):
        save(a_comparison(), tmp_path / "mine.txt" / "below")
