"""docs/found.md: its reproducers run with the other pages. Here its lines are held to the source, and audit agrees."""

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from rearview.auditing import Verdict, audit
from tests.docs.markdown import ROOT, blocks_of

PAGE = (ROOT / "docs" / "found.md").read_text(encoding="utf-8")
LINE = re.compile(r"^(\w+)(/\S+):(\d+)\n( .+)$", re.MULTILINE)
CODE = [block.text for block in blocks_of(PAGE) if block.language == "python" and not block.is_session]


def named_version(library: str) -> str:
    found = re.search(rf"^## {library} (\S+)$", PAGE, re.MULTILINE)
    assert found is not None
    return found[1]


def is_here(library: str) -> bool:
    try:
        return version(library) == named_version(library)
    except PackageNotFoundError:
        return False


def test_the_page_names_the_version_that_the_tests_use():
    assert f"transformers=={named_version('transformers')}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("library", ["transformers", "x-transformers"])
def test_the_lines_are_those_of_the_library(library: str):
    if not is_here(library):
        pytest.skip(f"{library} {named_version(library)} is not installed")
    package = library.replace("-", "_")
    named = [found for found in LINE.finditer(PAGE) if found[1] == package]
    assert len(named) == PAGE.count(f"\n{package}/") > 4
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    for found in named:
        lines = (Path(spec.origin).parent / found[2].lstrip("/")).read_text(encoding="utf-8").splitlines()
        assert lines[int(found[3]) - 1] == found[4], found[0]


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page defines."""
    if not is_here("transformers"):
        pytest.skip(f"transformers {named_version('transformers')} is not installed")
    namespace: dict[str, Any] = {}
    for code in CODE:
        exec(code, namespace)
    return namespace


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("prophetnet", "who heard whom"),
        ("reformer", "who heard whom"),
        ("bamba", "cached decoding"),
        ("moshi", "cached decoding"),
        ("jamba", "cached decoding"),
    ],
)
def test_audit_finds_what_the_page_reports(page: dict[str, Any], name: str, check: str):
    report = audit(page[name], page["tokens"].expand(2, -1))
    assert report.verdict is Verdict.LEAKS
    assert report.check(check).status == "failed"


def test_audit_finds_the_sparse_attention_of_bigbird(page: dict[str, Any]):
    torch.manual_seed(0)
    bigbird = page["BigBirdForCausalLM"](page["BigBirdConfig"].from_dict(page["bigbird"].config.to_dict())).eval()
    report = audit(bigbird, page["long"])
    assert report.verdict is Verdict.LEAKS
    # The checks of shorter lengths do not leave it with another attention.
    assert bigbird.bert.attention_type == "block_sparse"
