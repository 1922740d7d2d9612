"""The path of a file that will be written, and writing it in one step."""

import pytest

from rearview.errors import BadArgument
from rearview.files import target_of, write_whole


@pytest.mark.parametrize(
    ("endings", "sentence"),
    [
        ([".html"], "a name that ends in .html"),
        ([".svg", ".png"], "a name that ends in .svg or .png"),
        ((".html", ".json", ".txt"), "a name that ends in .html, .json or .txt"),
    ],
)
def test_the_endings_are_listed(endings, sentence):
    with pytest.raises(BadArgument) as caught:
        target_of("mask.gif", endings)
    assert str(caught.value) == f"path: expected {sentence}, got '.gif' (mask.gif)."
    with pytest.raises(BadArgument) as caught:
        target_of("mask", endings)
    assert str(caught.value) == f"path: expected {sentence}, got no ending (mask)."


def test_the_folder_must_exist(tmp_path):
    with pytest.raises(BadArgument) as caught:
        target_of(tmp_path / "missing" / "mask.svg", [".svg"])
    assert str(caught.value) == f"path: expected a folder that exists, got {tmp_path / 'missing'}."


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "mask.svg"
    write_whole(target, b"old")
    write_whole(target, b"new")
    assert target.read_bytes() == b"new"
    folder = tmp_path / "folder.svg"
    folder.mkdir()
    with pytest.raises(BadArgument, match=r"^path: expected a file that can be written, got Is a directory \("):
        write_whole(folder, b"data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.svg", "mask.svg"]
