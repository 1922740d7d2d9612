"""Every bug of the gallery is called by its name, at its place, and every fix is cleared."""

from types import ModuleType

import pytest

from tests.auditing.gallery import cases
from tests.auditing.gallery.__main__ import PAGE, code_of, introduction, story_of, title_of
from tests.docs.markdown import blocks_of

each = pytest.mark.parametrize("case", cases(), ids=lambda case: case.__name__.rpartition(".")[2])


@each
def test_the_leak_is_found_where_it_is(case: ModuleType):
    report = case.leaks()
    assert report.verdict.value == "LEAKS", report
    assert report.witnesses
    if case.PLACE is None:
        return
    assert report.place is not None
    assert report.place.module == case.PLACE
    if getattr(case, "LINE", True):
        assert "here" in report.place.source.partition("#")[2], report.place


@each
def test_the_fix_is_cleared(case: ModuleType):
    report = case.fixed()
    assert report.ok, report


def test_there_are_twenty_from_every_group():
    assert len(cases()) >= 20
    assert {story_of(case)[1] for case in cases()} == set("ABCDEFGHIJKLMNO")
    assert len({title_of(case) for case in cases()}) == len(cases())


def test_the_page_shows_the_models_as_they_are():
    """`python -m tests.auditing.gallery` writes it; that what it prints is true is for the tests of the pages."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(introduction())
    shown = {block.text.strip() for block in blocks_of(text)}
    for case in cases():
        assert code_of(case) in shown, f"{title_of(case)}: run python -m tests.auditing.gallery"
