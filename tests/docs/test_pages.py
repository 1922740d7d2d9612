"""The documentation runs. Each page goes from top to bottom in one namespace, in a folder of its own:

- a python block with `>>>` is a session, and its output must be what the page shows;
- a python block without is executed;
- in bash and console blocks every line that starts with `rearview ` is run, must succeed, and prints what the
  page shows behind it; other commands (make, pip) are not run;
- text blocks are for reading.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.markdown import ROOT, Block, Command, anchors_of, blocks_of, commands_of, links_of, pages, session

LANGUAGES = {"python", "bash", "console", "text"}
WRITTEN = [*pages(), ROOT / "DESIGN.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
FLAGS = doctest.ELLIPSIS | doctest.REPORT_NDIFF

# torch.compile, which a page mentions, uses torch.jit itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
each_page = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
each_text = pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture
def shell(tmp_path: Path):
    """A shell that finds `rearview`: the installed command, or the same started from here where it is not installed."""
    installed = Path(sys.executable).parent
    folder = installed if (installed / "rearview").exists() else tmp_path / "bin"
    if folder != installed:
        folder.mkdir()
        (folder / "rearview").write_text(
            f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c 'from rearview.cli import main; main()' \"$@\"\n"
        )
        (folder / "rearview").chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    path = f"{folder}{os.pathsep}{clean.get('PATH', '')}"

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env={**clean, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=120,
        )

    return run


@each_page
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell):
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
                run_command(command, page, block, shell)
    assert count > 0, f"{page.name} has no block that runs; a page begins with an example"


def run_code(block: Block, page: Path, namespace: dict[str, object]) -> None:
    # Empty lines in front make a traceback point at the line of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
    exec(code, namespace)


def run_session(block: Block, page: Path, namespace: dict[str, object]) -> None:
    examples = doctest.DocTestParser().get_doctest(session(block.text), namespace, page.name, str(page), block.line - 1)
    # get_doctest copies the namespace; what a block defines must last.
    examples.globs = namespace
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    runner.run(examples, out=report.append, clear_globs=False)
    assert runner.failures == 0, "".join(report)


def run_command(command: Command, page: Path, block: Block, shell) -> None:
    done = shell(command.text)
    place = f"{page.name}, the block at line {block.line}: {command.text}"
    assert done.returncode == 0, f"{place}\nended with {done.returncode}:\n{done.stdout}"
    if command.output is not None:
        came = "".join(f"{line.rstrip()}\n" for line in done.stdout.rstrip().splitlines())
        same = doctest.OutputChecker().check_output(f"{command.output}\n", came, doctest.ELLIPSIS)
        assert same, f"{place}\nthe page shows\n{command.output}\nand it printed\n{came}"


@each_page
def test_every_block_says_what_it_is(page: Path):
    for block in blocks_of(page.read_text(encoding="utf-8")):
        assert block.language in LANGUAGES, f"line {block.line}: {block.language!r} is none of {sorted(LANGUAGES)}"


def test_every_page_is_run_and_the_first_page_leads_to_it():
    there = {ROOT / "README.md"} | {
        Path(folder) / name for folder, _, names in os.walk(ROOT / "docs") for name in names if name.endswith(".md")
    }
    assert set(pages()) == there
    links = {(ROOT / link).resolve() for link in links_of((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert there - {ROOT / "README.md"} <= links


@each_text
def test_links_lead_somewhere(page: Path):
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


def test_the_tree_on_the_first_page_is_the_tree():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
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


def test_the_picture_is_the_mask_of_the_first_page(tmp_path: Path):
    """Drawn again with the command that the page gives, it has the same words and cells."""
    pytest.importorskip("matplotlib")
    from rearview.cli import run

    text = (ROOT / "README.md").read_text(encoding="utf-8")
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
