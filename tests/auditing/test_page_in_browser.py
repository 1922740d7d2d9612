"""The page in a real browser with the network off: by mouse, keys and touch, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rearview.auditing import Report
from rearview.auditing.reporting.html import to_html
from tests.auditing import reports
from tests.browser import a_browser, offline

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE: dict[str, Any] = {"viewport": {"width": 375, "height": 667}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def leaking() -> Report:
    return reports.leaking()


def written(report: Report, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(to_html(report), encoding="utf-8")
    return path


def centre(page: Page, row: int, column: int) -> tuple[float, float]:
    """Where a cell of the matrix is on the canvas."""
    size = page.evaluate("document.getElementById('matrix').clientHeight - 20") / 8
    return 34 + (column + 0.5) * size, 20 + (row + 0.5) * size


def colours(page: Page, *cells: tuple[int, int]) -> list[list[int]]:
    """The colours of some cells, of one look at the canvas: chromium remarks on a second one."""
    return page.evaluate(
        """places => {
          const canvas = document.getElementById("matrix");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const sharp = devicePixelRatio;
          return places.map(([x, y]) => {
            const at = 4 * (Math.floor(y * sharp) * canvas.width + Math.floor(x * sharp));
            return [...data.slice(at, at + 3)];
          });
        }""",
        [centre(page, *cell) for cell in cells],
    )


def test_a_leak_is_told_and_its_place_shown(browser: Browser, leaking: Report, tmp_path: Path):
    with offline(browser, written(leaking, tmp_path)) as page:
        assert page.title() == "LEAKS: Peeks against causal()"
        assert page.locator("#badge").inner_text() == "LEAKS"
        assert page.locator("h1").inner_text() == "It hears what it must not."
        place = page.locator(".place").first
        assert leaking.place is not None
        assert leaking.place.source in place.inner_text()
        assert f":{leaking.place.line}" in place.inner_text()
        guilty = page.locator("#tree .culprit").all_inner_texts()
        assert sorted(guilty) == ["0", "1"]
        assert page.locator("#checks tr.failed").count() == sum(c.status == "failed" for c in leaking.checks)
        assert page.locator("#witnesses .moved").count() >= 2
        assert "replay(model" in page.locator("#replay").inner_text()


def test_the_matrix_answers_mouse_and_keys(browser: Browser, leaking: Report, tmp_path: Path):
    assert leaking.hears is not None
    amounts = leaking.hears.amounts
    with offline(browser, written(leaking, tmp_path)) as page:
        cell, matrix = page.locator("#cell"), page.locator("#matrix")
        assert "heard, and must not be" in cell.inner_text(), "the worst pair is chosen at first"
        x, y = centre(page, 5, 6)
        matrix.hover(position={"x": x, "y": y})
        assert (
            cell.inner_text()
            == f"Position 5 moves by {float(f'{amounts[5, 6]:.4g}'):g} when position 6 changes: heard, and must not be."
        )
        assert cell.evaluate("p => p.className") == "bad"
        matrix.focus()
        page.keyboard.press("ArrowLeft")
        assert "when position 5 changes: heard, as it may be" in cell.inner_text()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowUp")
        assert cell.inner_text().startswith("Position 3 moves by")
        for _ in range(12):
            page.keyboard.press("ArrowLeft")
        assert "when position 0 changes: not heard, though it may be" in cell.inner_text()
        assert page.locator("#legend li").count() == 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forbidden_cells_are_red(browser: Browser, leaking: Report, tmp_path: Path, scheme: Any):
    with offline(browser, written(leaking, tmp_path), color_scheme=scheme) as page:
        forbidden, allowed = colours(page, (2, 3), (3, 3))
        assert forbidden[0] > 150
        assert max(forbidden[1:]) < 0.7 * forbidden[0]
        assert allowed[2] > allowed[0]


def test_on_a_phone_nothing_is_cut_off_and_taps_work(browser: Browser, leaking: Report, tmp_path: Path):
    for report in (leaking, reports.proven(), reports.inconclusive()):
        with offline(browser, written(report, tmp_path), **PHONE) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= 375
            x, y = centre(page, 4, 4)
            page.locator("#matrix").tap(position={"x": x, "y": y})
            assert page.locator("#cell").inner_text().startswith("Position 4 moves by")


def test_what_was_proven_says_on_what_it_rests(browser: Browser, tmp_path: Path):
    report = reports.proven()
    assert report.proof is not None
    with offline(browser, written(report, tmp_path)) as page:
        assert page.locator("#badge").inner_text() == "PROVEN"
        assert page.locator("#proof-why").inner_text() == report.proof.why
        assert page.locator("#proof li").all_inner_texts()[-len(report.proof.assumptions) :] == list(
            report.proof.assumptions
        )
        assert page.locator("#places *, #witnesses:not([hidden]), #replay:not([hidden])").count() == 0
        assert page.locator("#cell").inner_text() == "Point at a cell."


def test_an_inconclusive_check_says_why(browser: Browser, tmp_path: Path):
    report = reports.inconclusive()
    with offline(browser, written(report, tmp_path)) as page:
        assert page.locator("#badge").inner_text() == "INCONCLUSIVE"
        assert page.locator("#why").inner_text().lower().startswith(report.why[:20].lower())
        assert page.locator("#checks tr.inconclusive .status").inner_text() == "? inconclusive"
        skipped = [check.why for check in report.checks if check.status == "skipped"]
        assert page.locator("#checks tr.skipped .why").all_inner_texts() == skipped
