"""The documentation runs. Each page goes from top to bottom in one namespace, in a folder of its own:

- a python block with `>>>` is a session, and its output must be what the page shows;
- a python block without is executed;
- in bash and console blocks every line that starts with `rearview ` is run, must succeed, and prints what the
  page shows after it; other commands (make, pip) are not run;
- text blocks are for reading.
"""

import contextlib
import doctest
import io
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from tests.docs.markdown import ROOT, Block, Command, anchors_of, blocks_of, commands_of, links_of, pages, session

LANGUAGES = {"python", "bash", "console", "text"}
WRITTEN = [*pages(), ROOT / "DESIGN.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
FLAGS = doctest.ELLIPSIS | doctest.REPORT_NDIFF

# torch.compile, which a page uses, calls torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
each_page = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
each_text = pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))


class Done(NamedTuple):
    code: int
    output: str


@pytest.fixture
def rearview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The `rearview` command in this process: starting one takes longer than what most pages ask of it."""
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def call(command: str) -> Done:
        from rearview.cli import run

        words = shlex.split(command, comments=True)
        assert not {"|", ">", "<", "&&", ";"} & set(words), f"{command}: pages show plain commands"
        said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = run(words[1:])
        return Done(code, said.buffer.getvalue().decode())  # type: ignore[attr-defined]

    return call


@pytest.fixture
def same_logging():
    """A page may silence the warnings of transformers, which other tests read."""
    logger = logging.getLogger("transformers")
    level = logger.level
    yield
    logger.setLevel(level)


@each_page
@pytest.mark.usefixtures("same_logging")
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rearview):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.language == "python":
            count += 1
            run = run_session if block.is_session else run_code
            run(block, page, namespace)
        for command in commands_of(block):
            if command.text.startswith("rearview "):
                count += 1
                run_command(command, page, block, rearview)
    assert count > 0, f"{page.name} has no block that runs; a page begins with an example"


def run_code(block: Block, page: Path, namespace: dict[str, object]) -> None:
    # Leading empty lines make a traceback point at the line of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
    exec(code, namespace)


def run_session(block: Block, page: Path, namespace: dict[str, object]) -> None:
    examples = doctest.DocTestParser().get_doctest(session(block.text), namespace, page.name, str(page), block.line - 1)
    # get_doctest copies the namespace, but what a block defines is used by later blocks.
    examples.globs = namespace
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    runner.run(examples, out=report.append, clear_globs=False)
    assert runner.failures == 0, "".join(report)


def run_command(command: Command, page: Path, block: Block, rearview: Callable[[str], Done]) -> None:
    done = rearview(command.text)
    place = f"{page.name}, the block at line {block.line}: {command.text}"
    assert done.code == 0, f"{place}\nended with {done.code}:\n{done.output}"
    if command.output is not None:
        got = "".join(f"{line.rstrip()}\n" for line in done.output.rstrip().splitlines())
        same = doctest.OutputChecker().check_output(f"{command.output}\n", got, doctest.ELLIPSIS)
        assert same, f"{place}\nthe page shows\n{command.output}\nand it printed\n{got}"


def test_the_command_of_the_readme_works_in_a_shell(tmp_path: Path, rearview: Callable[[str], Done]):
    """As a process, installed or started from here where it is not, it says what it says in this process."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [command.text for block in blocks_of(text) for command in commands_of(block)]
    command = next(each for each in commands if each.startswith("rearview mask") and "--out" not in each)
    installed = Path(sys.executable).with_name("rearview")
    start = [str(installed)] if installed.exists() else [sys.executable, "-c", "from rearview.cli import main; main()"]
    done = subprocess.run(
        ["sh", "-c", f"{shlex.join(start)} {command.removeprefix('rearview ')}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=120,
    )
    assert (done.returncode, done.stdout) == rearview(command)


@each_page
def test_every_block_has_a_known_language(page: Path):
    for block in blocks_of(page.read_text(encoding="utf-8")):
        assert block.language in LANGUAGES, f"line {block.line}: {block.language!r} is none of {sorted(LANGUAGES)}"


def test_every_page_is_run_and_in_the_navigation():
    there = {
        Path(folder) / name for folder, _, names in os.walk(ROOT / "docs") for name in names if name.endswith(".md")
    }
    assert set(pages()) == there | {ROOT / "README.md"}
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", navigation, flags=re.MULTILINE)
    for page in there:
        name = str(page.relative_to(ROOT / "docs"))
        assert listed.count(name) == 1, f"{name} is {listed.count(name)} times in the navigation of mkdocs.yml"


@each_text
def test_links_exist(page: Path):
    text = page.read_text(encoding="utf-8")
    for link in links_of(text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link} does not exist"
        if anchor:
            assert anchor in anchors_of(target.read_text(encoding="utf-8")), f"{link}: there is no such heading"


@each_text
def test_make_commands_exist(page: Path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    for block in blocks_of(page.read_text(encoding="utf-8")):
        for command in commands_of(block):
            if words := re.match(r"make ([a-z]+)", command.text):
                assert words[1] in targets, f"line {block.line}: make {words[1]} is no target"


def test_the_tree_in_the_design_is_complete():
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    tree = next(block.text for block in blocks_of(text) if block.text.startswith("src/rearview/"))
    shown: set[str] = set()
    parents: list[str] = []
    for line in tree.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [name]
        path = "".join(parents)
        assert (ROOT / path).exists(), f"{path} is in the tree and not in the repository"
        shown.add(path.rstrip("/"))
    packages = {str(init.parent.relative_to(ROOT)) for init in (ROOT / "src" / "rearview").rglob("__init__.py")}
    assert packages <= shown, f"{sorted(packages - shown)} are not in the tree"


def test_the_picture_of_a_mask_is_up_to_date(tmp_path: Path):
    """Drawn again with the command that the page gives, it has the same words and cells."""
    pytest.importorskip("matplotlib")
    from rearview.cli import run

    text = (ROOT / "docs" / "masks.md").read_text(encoding="utf-8")
    commands = [command.text for block in blocks_of(text) for command in commands_of(block)]
    words = shlex.split(next(command for command in commands if "--out" in command))
    again = tmp_path / "mask.svg"
    words[words.index("--out") + 1] = str(again)
    assert run(words[1:]) == 0
    assert drawn(again) == drawn(ROOT / "docs" / "pictures" / "mask.svg")


def drawn(picture: Path) -> tuple[list[str | None], dict[str | None, int]]:
    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.parse(picture).getroot()
    cells = {group.get("id"): len(group.findall(f"{svg}path")) for group in root.iter(f"{svg}g")}
    return [word.text for word in root.iter(f"{svg}text")], {name: cells[name] for name in ("heard", "blocked", "own")}
