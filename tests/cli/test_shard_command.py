"""rearview shard: what it prints, what it writes, how it exits."""

from pathlib import Path

import pytest

from rearview import causal, documents, window
from rearview.parallel import shard


def test_the_table_is_that_of_python(rearview):
    done = rearview("shard", "causal() & window(9)", "--length", "100", "--ranks", "4")
    assert done == (0, f"{shard(causal() & window(9), 100, 4)}\n", "")


def test_layers_documents_and_options(rearview):
    arguments = ["causal() & window(9)", "--layer", "causal()", "-n", "100", "-r", "3", "--documents", "60,30"]
    packed = documents([0] * 60 + [1] * 30 + [2] * 10)
    masks = [causal() & window(9) & packed, causal() & packed]
    layout = shard(masks, 100, 3, how="head-tail", key_bytes=64)
    done = rearview("shard", *arguments, "--how", "head-tail", "--key-bytes", "64", "--show")
    assert done == (0, f"{layout}\n\n{layout.show()}\n", "")


def test_a_picture_is_written(rearview, tmp_path: Path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "layout.svg"
    done = rearview("shard", "causal()", "-n", "64", "-r", "2", "--out", str(path))
    assert done.code == 0
    assert done.out.endswith(f"\nwrote {path}\n")
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["causal()", "-n", "0", "-r", "2"], "length: expected an integer of at least 1, got 0."),
        (
            ["causal()", "-n", "9", "-r", "2", "--out", "layout.gif"],
            "path: expected a name that ends in .svg, .png or .pdf, got '.gif' (layout.gif).",
        ),
        (
            ["causal()", "-n", "9", "-r", "2", "--documents", "5,5"],
            "--documents: expected at most 9 positions, the length, got 10 positions in all.",
        ),
        (
            ["causal()", "-n", "9", "-r", "2", "--documents", f"{2**63}"],
            f"--documents: expected at most 9 positions, the length, got {2**63} positions in all.",
        ),
        (
            ["causal()", "-n", "9", "-r", "2", "--documents", "5;5"],
            "--documents: expected lengths of at least 1, separated by commas, got '5;5'.",
        ),
        (
            ["causal()", "-n", "9", "-r", "2", "--how", "ring"],
            "how: expected best, contiguous, head-tail, area, dealt, got 'ring'.",
        ),
    ],
)
def test_errors_are_one_message(rearview, arguments: list[str], message: str):
    assert rearview("shard", *arguments) == (2, "", f"rearview: {message}\n")
