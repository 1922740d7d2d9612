"""The report in a browser without network: curves show their values, and maps show the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rearview.comparison import Comparison, compare, conclusion_of
from rearview.comparison.report import to_html
from tests.browser import a_browser, offline
from tests.comparison.example import SETTINGS, a_comparison, a_text

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE: dict[str, Any] = {"viewport": {"width": 375, "height": 667}, "has_touch": True, "is_mobile": True}
DARK: dict[str, Any] = {"color_scheme": "dark"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(a_text(), SETTINGS)


@pytest.fixture
def path(found: Comparison, tmp_path: Path) -> Path:
    return generate_continuations(found, tmp_path)


def generate_continuations(comparison: Comparison, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(to_html(comparison), encoding="utf-8")
    return path


def pixel(page: Page, side: int, query: int, key: int, count: int) -> list[int]:
    """The colour in the middle of a cell of a map."""
    return page.evaluate(
        """([side, query, key, count]) => {
            const canvas = document.getElementById(`map-${side}`), cell = canvas.width / count;
            const at = (n) => Math.floor((n + 0.5) * cell);
            // A copy of one pixel, made to be read: the browser warns of many readings of a canvas that is not.
            const copy = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
            const paint = copy.getContext("2d", { willReadFrequently: true });
            paint.drawImage(canvas, at(key), at(query), 1, 1, 0, 0, 1, 1);
            return [...paint.getImageData(0, 0, 1, 1).data.slice(0, 3)];
        }""",
        [side, query, key, count],
    )


def spaced(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_the_conclusion_is_at_the_top(browser: Browser, found: Comparison, path: Path):
    with offline(browser, path) as page:
        assert spaced(page.locator("h1").inner_text()) == conclusion_of(found).headline
        label = page.locator("#scale svg").get_attribute("aria-label") or ""
        for side, name in ((found.with_mask, "with the mask"), (found.without_mask, "without the mask")):
            assert f"{name}: loss {side.at_once.bits:.2f}, exam {side.exam.bits:.2f}" in label
        assert f"uniform guessing {found.baselines.even:.2f}" in label
        assert page.locator("#command").inner_text().startswith("compare(data, Settings(")


def test_the_curve_shows_its_values_to_mouse_and_keys(browser: Browser, found: Comparison, path: Path):
    def told(n: int) -> list[str]:
        sides = (("with", found.with_mask), ("without", found.without_mask))
        lines = [f"{name} the mask {side.training[n][1]:.3f} nats" for name, side in sides]
        return [f"step {found.with_mask.training[n][0]}", *lines]

    with offline(browser, path) as page:
        tip, svg = page.locator("#loss .tip"), page.locator("#loss svg")
        assert not tip.is_visible()
        svg.scroll_into_view_if_needed()
        box = svg.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] - 13, box["y"] + 50)
        assert tip.inner_text().splitlines() == told(-1)
        page.mouse.move(box["x"] + 34, box["y"] + 50)
        assert tip.inner_text().splitlines() == told(0)
        page.mouse.move(0, 0)
        assert not tip.is_visible()
        svg.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert tip.inner_text().splitlines() == told(1)
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        assert tip.inner_text().splitlines() == told(-2)
        page.keyboard.press("Escape")
        assert not tip.is_visible()


def test_the_exam_is_drawn_by_prefix(browser: Browser, found: Comparison, path: Path):
    with offline(browser, path) as page:
        page.locator("#prefix svg").focus()
        page.keyboard.press("End")
        said = page.locator("#prefix .tip").inner_text().splitlines()
        ends = [side.exam_by_prefix[-1] for side in (found.with_mask, found.without_mask)]
        assert said == [
            "prefix 12",
            f"with the mask {ends[0]:.3f} bits",
            f"without the mask {ends[1]:.3f} bits",
        ]
        assert page.locator("#prefix .curve").count() == page.locator("#loss .curve").count() == 2
        assert page.locator("#loss .dot").count() == 4


@pytest.mark.parametrize("settings", [{}, DARK], ids=["light", "dark"])
def test_the_maps_are_a_triangle_and_a_square(browser: Browser, found: Comparison, path: Path, settings: Any):
    with offline(browser, path, **settings) as page:
        page.locator("#layer").select_option(label="1")
        page.locator("#head").select_option(label="0")
        hatch, card, deep = page.evaluate(
            """["--hatch", "--card", "--deep-without"].map((name) => {
                const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
                return [1, 3, 5].map((n) => parseInt(text.slice(n, n + 2), 16));
            })"""
        )
        page.locator("#tokens-0 button").last.click()
        weights = found.without_mask.attention.weights[1][0]
        for query, key in ((0, 1), (3, 9), (10, 11), (5, 2)):
            if key > query:
                assert pixel(page, 0, query, key, 12) == hatch
            # A shade is as strong as the square root of the weight.
            strength = math.sqrt(weights[query][key] / 10_000)
            shade = [low + (high - low) * strength for low, high in zip(card, deep, strict=True)]
            assert pixel(page, 1, query, key, 12) == pytest.approx(shade, abs=1)


def test_a_token_shows_its_attention_in_both_models(browser: Browser, found: Comparison, path: Path):
    with offline(browser, path) as page:
        page.locator("#layer").select_option(label="0")
        page.locator("#head").select_option(label="1")
        page.locator("#tokens-1 button").nth(4).hover()
        share = found.without_mask.attention.weights[0][1][4][5] / 10_000
        shown = [token.replace("\n", "⏎") for token in found.shown]
        start, _, end = page.locator("#reading").inner_text().partition(" 0 with the mask, ")
        assert start == f"To predict “{shown[5]}”, “{shown[4]}” (position 4) attends to it with"
        assert float(end.removesuffix(" % without the mask.")) == pytest.approx(100 * share, abs=0.051)
        assert page.locator(".tokens .query").all_inner_texts() == [shown[4]] * 2
        assert page.locator("#tokens-0 .answer").count() == 1
        forbidden = page.locator("#tokens-0 button").nth(5).evaluate("b => getComputedStyle(b).backgroundColor")
        heard = page.locator("#tokens-1 button").nth(5).evaluate("b => getComputedStyle(b).backgroundColor")
        assert forbidden == "rgba(0, 77, 107, 0)"
        assert heard != "rgba(154, 47, 6, 0)"
        mean = found.without_mask.attention.to_answer[0][1]
        said = page.locator("#share-1").inner_text().removesuffix(" % of the attention goes to the answer")
        assert float(said) == pytest.approx(100 * mean, abs=0.051)
        assert page.locator("#share-0").inner_text() == "no attention to the answer"


def test_keys_and_the_map_select_a_token(browser: Browser, path: Path):
    with offline(browser, path) as page:
        page.locator("#tokens-0 button").nth(2).click()
        page.keyboard.press("ArrowRight")
        assert "(position 3)" in page.locator("#reading").inner_text()
        for _ in range(20):
            page.keyboard.press("ArrowRight")
        assert (
            "(position 11) is the last token of the row: neither model can hear its answer."
            in page.locator("#reading").inner_text()
        )
        canvas = page.locator("#map-1")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 20, box["y"] + 0.6 * box["height"] / 12)
        assert "(position 0)" in page.locator("#reading").inner_text()


def test_a_phone_needs_no_horizontal_scrolling(browser: Browser, path: Path):
    with offline(browser, path, **PHONE) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 375
        for text in page.locator("#scale svg text").all():
            box = text.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 375
        page.locator("#tokens-1 button").nth(3).tap()
        assert "(position 3)" in page.locator("#reading").inner_text()


def test_the_page_is_redrawn_for_another_width_or_colour_scheme(browser: Browser, path: Path):
    def until(true: Callable[[], bool]) -> None:
        # The page's own policy forbids what wait_for_function does.
        for _ in range(100):
            if true():
                return
            page.wait_for_timeout(50)
        pytest.fail("it was not drawn again")

    with offline(browser, path) as page:
        light = pixel(page, 1, 0, 0, 12)
        page.set_viewport_size({"width": 500, "height": 700})
        until(lambda: page.evaluate("document.querySelector('#scale svg').viewBox.baseVal.width < 500"))
        page.emulate_media(color_scheme="dark")
        until(lambda: pixel(page, 1, 0, 0, 12) != light)


@pytest.mark.parametrize("numbers", [{}, {"exam": 2.0, "loss": 2.0}, {"tables": (6.7, 4.7, None)}, {"loss": 8.0}])
def test_any_outcome_can_be_drawn(browser: Browser, tmp_path: Path, numbers: dict[str, Any]):
    comparison = a_comparison(**numbers)
    with offline(browser, generate_continuations(comparison, tmp_path)) as page:
        assert spaced(page.locator("h1").inner_text()) == conclusion_of(comparison).headline
        assert page.locator("#scale .dot").count() == 2
        # A line end is a token that can be seen.
        assert page.locator("#tokens-0 button").all_inner_texts() == ["a", "⏎"]
