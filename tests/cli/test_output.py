"""A full disk behind stdout is one sentence and exit code 2 in every verb; a reader that has left is no error."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from rearview.cli.verbs import VERBS

FULL = "/dev/full"
pytestmark = [
    pytest.mark.skipif(not Path(FULL).exists(), reason="there is no device that is always full"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the commands are forked here"),
]

# Each command ends as a real one, with its interpreter; they share the imports, which take longer than all else.
FORKED = """
import json, os, sys, torch
import rearview.cli.audit_run, rearview.cli.compare_run, rearview.cli.observe_run, rearview.webapp
from rearview.cli import main
torch.set_num_threads(1)
out, commands = sys.argv[1:]
codes = []
for number, (stdout, stderr, arguments) in enumerate(json.loads(commands)):
    if not (child := os.fork()):
        for name, target in ((stdout, 1), (stderr, 2)):
            if name == "closed pipe":
                reader, writer = os.pipe()
                os.close(reader)
            else:
                writer = os.open(name or f"{out}/{number}.{target}", os.O_WRONLY | os.O_CREAT)
            os.dup2(writer, target)
        sys.argv[1:] = arguments
        main()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""
REFUSED = "rearview: the standard output cannot be written: No space left on device. What was printed is incomplete.\n"
SMALL = ["--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--batch", "2", "--steps", "2"]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def ended(tmp_path: Path):
    """How commands end, each with the names of its stdout and stderr; "" for a file that is read here."""

    def call(*commands: tuple[str, str, list[str]]) -> list[Ended]:
        place = tmp_path / "written"
        place.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", FORKED, str(place), json.dumps(commands)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"},
            timeout=240,
        )
        assert (done.returncode, done.stderr) == (0, "")
        texts = [
            [path.read_text() if (path := place / f"{number}.{file}").exists() else "" for file in (1, 2)]
            for number in range(len(commands))
        ]
        return [Ended(code, *both) for code, both in zip(json.loads(done.stdout), texts, strict=True)]

    return call


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question\n" * 20)
    return str(path)


def test_every_verb_says_that_stdout_is_full(rearview, ended, text: str, tmp_path: Path):
    run = str(tmp_path / "run")
    assert rearview("train", "--text", text, "--out", run, "--sample-every", "0", *SMALL).code == 0
    lines = {
        "mask": ["causal()"],
        "shard": ["causal()", "--ranks", "2", "--length", "8"],
        "explain": [],
        "observe": [run, "--prompt", "to be"],
        "audit": [run, "-n", "8"],
        "studio": [run, "--no-browser", "--port", "0"],
        "demo": ["--quick"],
        "train": ["--text", text, "--out", str(tmp_path / "other"), *SMALL],
        "generate": [run, "--prompt", "to be", "--max-tokens", "4"],
        "compare": ["--text", text, "--out", str(tmp_path / "compared"), "--steps", "2"],
        "doctor": ["--json"],
    }
    assert lines.keys() == VERBS.keys()
    commands = [[verb, *arguments] for verb, arguments in lines.items()]
    # More than a buffer holds; two masks; and what no verb prints.
    commands += [["mask", "causal()", "--length", "200"], ["mask", "diff", "causal()", "full()"]]
    commands += [["train", "--help"], ["--help"], ["--version"]]
    for command, found in zip(commands, ended(*((FULL, "", command) for command in commands)), strict=True):
        assert found == (2, "", REFUSED), command
    # Nothing was begun whose announcement could not be printed.
    assert not (tmp_path / "other").exists()


def test_a_stderr_that_is_full_changes_nothing_else(ended):
    mask, typo, unknown = ["mask", "causal()", "--length", "3"], ["mask", "cau()"], ["nosuch"]
    works, *failures = ended(
        ("", FULL, mask), ("", FULL, typo), ("", FULL, unknown), (FULL, FULL, mask), ("", "closed pipe", typo)
    )
    assert works.code == 0
    assert works.out.startswith("causal()  ·  3 queries x 3 keys")
    assert failures == [(2, "", "")] * 4


def test_a_reader_that_has_left_is_no_error(ended):
    commands = [["mask", "causal()"], ["mask", "causal()", "--length", "200"], ["explain"], ["--help"], ["--version"]]
    assert ended(*(("closed pipe", "", command) for command in commands)) == [(141, "", "")] * len(commands)


def test_without_a_buffer_the_sentence_is_the_same(process):
    code = "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nfrom rearview.cli import main; main()"
    done = process("mask", "causal()", code=code, PYTHONUNBUFFERED="1")
    assert (done.returncode, done.stderr.decode()) == (2, REFUSED)
