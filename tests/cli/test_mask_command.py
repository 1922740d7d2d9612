"""rearview mask: what it prints, what it writes, how it exits."""

import re
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import rearview as package
from rearview import causal, window
from rearview.cli import main

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def test_the_example_of_the_first_page(rearview):
    done = rearview("mask", "causal() & window(3)", "--tokens", "I love sushi very much")
    assert done == (0, f"{(causal() & window(3)).show('I love sushi very much')}\n", "")


@pytest.mark.parametrize(
    ("arguments", "first_line"),
    [
        (["causal()"], "causal()  ·  8 queries x 8 keys  ·  56.2 % visible"),
        (["causal()", "--length", "3"], "causal()  ·  3 queries x 3 keys  ·  66.7 % visible"),
        (["--length", "3", "causal()"], "causal()  ·  3 queries x 3 keys  ·  66.7 % visible"),
        (["draw", "causal()", "-n", "3"], "causal()  ·  3 queries x 3 keys  ·  66.7 % visible"),
        (["causal()", "-t", "d", "-k", "a b c d"], "causal()  ·  1 query x 4 keys  ·  100.0 % visible"),
        (["causal()", "-n", "2", "-k", "6"], "causal()  ·  2 queries x 6 keys  ·  91.7 % visible"),
        (["causal()", "-n", "2", "-k", "6", "--q-start", "0"],
         "causal()  ·  2 queries x 6 keys  ·  queries from position 0  ·  25.0 % visible"),
        (["causal() & documents([0, 0, 1, 1, 1])"],
         "causal() & documents([0, 0, 1, 1, 1])  ·  5 queries x 5 keys  ·  36.0 % visible"),
        (["~(padding([3, 2]) & causal())", "--batch", "1"],
         "~(padding([3, 2]) & causal())  ·  3 queries x 3 keys  ·  batch item 1 of 2  ·  44.4 % visible"),
        (["per_head([causal(), full()])", "--head", "1"],
         "per_head([causal(), full()])  ·  8 queries x 8 keys  ·  head 1 of 2  ·  100.0 % visible"),
        (["chunks(2, within=[0, 0, 0, 1, 1])"],
         "along(documents([0, 0, 0, 1, 1]), chunks(2))  ·  5 queries x 5 keys  ·  36.0 % visible"),
        (["shared_prefix(2, [1, 1])"], "shared_prefix(2, [1, 1])  ·  4 queries x 4 keys  ·  56.2 % visible"),
        (["grid_window([2, 2], 1)"], "grid_window([2, 2], [1, 1])  ·  4 queries x 4 keys  ·  25.0 % visible"),
        (["ranges([0, 0], [1, 2])"], "ranges([0, 0], [1, 2])  ·  2 queries x 2 keys  ·  75.0 % visible"),
        (["block_diffusion(2, 1)"], "block_diffusion(2, 1)  ·  4 queries x 4 keys  ·  37.5 % visible"),
        (["dense([[1, 0, 0], [1, 1, 0], [1, 1, 1]])"],
         "dense(<3 x 3 bool, 1 range per row>)  ·  3 queries x 3 keys  ·  66.7 % visible"),
    ],
)  # fmt: skip
def test_sizes_and_choices(rearview, arguments: list[str], first_line: str):
    done = rearview("mask", *arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == first_line


@pytest.mark.parametrize("name", ["mask.svg", "mask.png"])
def test_out_writes_a_picture_too(rearview, tmp_path: Path, name: str):
    path = tmp_path / name
    done = rearview("mask", "causal()", "--tokens", "I love sushi", "--out", str(path))
    assert done.code == 0
    assert done.out == f"{causal().show('I love sushi')}\n\nwrote {path}\n"
    assert path.read_bytes().startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


def test_diff_exits_like_diff(rearview):
    different = rearview("mask", "diff", "causal()", "window(2)", "--tokens", "I love sushi")
    assert different == (1, f"{causal().diff(window(2), 3).show('I love sushi')}\n", "")
    same = rearview("mask", "diff", "causal()", "window(8)")
    assert same == (0, "- causal()\n+ window(8)\n8 queries x 8 keys  ·  the same\n", "")
    assert rearview("mask", "diff", "causal()", "documents([0, 0, 1])").out.splitlines()[2].startswith("3 queries")
    assert rearview("mask", "diff", "causal()", "window(1)", "-n", "1", "-k", "3").code == 1
    assert rearview("mask", "diff", "causal()", "nonsense").code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["causal() and full()"], "rearview: `and` asks each mask for one truth value; between masks write `&`\n"),
        (
            ["__import__('os').system('true')"],
            "rearview: attributes are not allowed in a mask expression\n",
        ),
        (["window(0)"], "rearview: window(n): expected an integer of at least 1, got 0."),
        (["causal()", "--length", "0"], "rearview: --length: expected an integer of at least 1, got 0."),
        (["causal()", "--tokens", " "], "rearview: tokens: expected at least one word, got none."),
        (["causal()", "-t", "a b", "-n", "2"], "rearview: --length: expected either --tokens or --length, got both."),
        (
            ["causal()", "-k", "a b"],
            "rearview: --keys: expected --tokens or --length with it, for the queries",
        ),
        (["causal()", "--batch", "1"], "rearview: batch: expected 0, as causal() is the same for every batch item"),
        (
            ["causal()", "--out", "mask.gif"],
            "rearview: path: expected a name that ends in .svg, .png or .pdf, got '.gif'",
        ),
        (["diff", "padding([1, 2])", "padding([1, 2, 3])"], "rearview: mask: expected masks for one batch size"),
        (["dilated(2)", "--length", "1000000"], "rearview: a drawing of 1,000,000 queries x 1,000,000 keys:\n"),
    ],
)
def test_errors_are_a_message_and_exit_code_2(rearview, arguments: list[str], message: str):
    done = rearview("mask", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(message)
    assert "Traceback" not in done.err


@pytest.mark.parametrize("arguments", [["mask", "causal()", "--width"], ["mask", "diff", "causal()"], ["nonsense"]])
def test_a_wrong_command_line_exits_with_2(rearview, arguments: list[str]):
    done = rearview(*arguments)
    assert done.code == 2
    assert "Usage: rearview" in done.err


def test_help_has_the_options_and_examples(rearview):
    for arguments in (["mask", "--help"], ["mask"]):
        done = rearview(*arguments)
        assert done.code == 0
        text = ANSI.sub("", done.out)
        for part in (
            "--tokens",
            "--out",
            "rearview mask diff",
            '"causal() & window(3)" --tokens',
            "documents([0, 0, 1])",
        ):
            assert part in text
    assert "exit code 0" in ANSI.sub("", rearview("mask", "diff", "--help").out)


def test_rearview_alone_prints_help(rearview):
    done = rearview()
    assert done.code == 0
    assert all(verb in done.out for verb in ("mask", "demo", "--version"))
    assert rearview("--help").code == 0
    assert rearview("--version").out.startswith(f"rearview {package.__version__}\n")


def test_the_command_is_installed():
    (script,) = entry_points(group="console_scripts", name="rearview")
    assert script.load() is main


def test_colour_only_where_it_is_wanted(rearview, monkeypatch: pytest.MonkeyPatch):
    plain = rearview("mask", "causal()", "-n", "2").out
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = rearview("mask", "causal()", "-n", "2").out
    assert "\x1b[" in coloured
    assert ANSI.sub("", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    # Bold may stay; a colour may not.
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])m", rearview("mask", "causal()", "-n", "2").out)


def test_a_narrow_terminal_does_not_wrap_the_drawing(rearview, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert rearview("mask", "causal()").out == f"{causal().show(8)}\n"


def test_ctrl_c_is_quiet(rearview, monkeypatch: pytest.MonkeyPatch):
    def interrupt(text: str):
        raise KeyboardInterrupt

    monkeypatch.setattr("rearview.masks.parser.parse", interrupt)
    done = rearview("mask", "causal()")
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err


# As a process of its own: what a shell sees.


def test_the_process_exits_as_promised(process):
    different = process("mask", "diff", "causal()", "window(4)", "--length", "5")
    assert (different.returncode, different.stderr) == (1, b"")
    wrong = process("mask", "causal().__class__")
    assert (wrong.returncode, wrong.stdout) == (2, b"")
    assert wrong.stderr.decode().splitlines()[1:3] == ["  causal().__class__", "          ^"]


# The second is what Python sets in the C locale.
@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape"])
def test_an_ascii_stream_gets_ascii(process, encoding: str):
    done = process("mask", "causal() & window(2)", "--tokens", "I love 寿司", PYTHONUTF8="0", PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("ascii") == textwrap.dedent(
        r"""
        causal() & window(2)  .  3 queries x 3 keys  .  55.6 % visible

         query \ key     0      1      2
                         I    love   ????
         0  I            #      .      .     [0, 1)
         1  love         #      #      .     [0, 2)
         2  ????         .      #      #     [1, 3)

         # heard   . blocked   [a, b) hears the keys from a up to, not including, b
        """
    ).lstrip("\n")


def test_a_reader_that_leaves_early_causes_no_error():
    start = "from rearview.cli import main; main()"
    command = [sys.executable, "-c", start, "mask", "causal()", "--length", "32"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.close()
        assert writer.stderr.read() == b""
    assert writer.returncode in (1, 141)


@pytest.mark.parametrize("name", ["typer", "rich"])
def test_without_the_terminal_extra_it_says_what_to_install(rearview, name: str, monkeypatch: pytest.MonkeyPatch):
    # None in sys.modules is how Python itself spells "cannot be imported".
    monkeypatch.setitem(sys.modules, name, None)
    done = rearview("mask", "causal()")
    expected = f"rearview: The rearview command needs the package '{name}', which is not installed."
    assert done == (
        2,
        "",
        f"{expected} Install it with: pip install {name} (the extra 'terminal' of rearview includes it)\n",
    )


def test_masks_draw_without_any_extra(process):
    code = (
        "import sys\nfor name in ('rich', 'typer', 'matplotlib', 'numpy'): sys.modules[name] = None\n"
        "from rearview import causal\nprint(causal().show('I love sushi'))\n"
    )
    done = process(code=code)
    assert done.stdout.decode() == f"{causal().show('I love sushi')}\n", done.stderr
