"""The page in a real browser with the network off: all its numbers are the observed ones, by mouse, keys and touch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rearview import causal, window
from rearview.observation import Observation, ObservationDiff, observe
from rearview.observation.views.html import framed, page
from rearview.observation.views.sentences import share
from tests.browser import a_browser, offline
from tests.observation import observations
from tests.observation.board import point
from tests.observation.models import t5

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE: dict[str, Any] = {"viewport": {"width": 375, "height": 667}, "has_touch": True, "is_mobile": True}
DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def seen() -> Observation:
    return observations.seen(16, layers=3, heads=4, title="Who hears whom")


def written(seen: Observation | ObservationDiff, folder: Path, **options: Any) -> Path:
    path = folder / "seen.html"
    path.write_text(page(seen, **options), encoding="utf-8")
    return path


@pytest.fixture
def path(seen: Observation, tmp_path: Path) -> Path:
    return written(seen, tmp_path)


def ready(page: Page) -> Page:
    page.locator("body[data-ready]").wait_for()
    return page


def place(page: Page, row: int, column: int, rows: int, columns: int) -> tuple[float, float]:
    """Where a cell of the whole map is on the screen."""
    return point(page, (column + 0.5) / columns, (row + 0.5) / rows)


def hover(page: Page, row: int, column: int, rows: int, columns: int) -> tuple[str, str, str]:
    page.mouse.move(*place(page, row, column, rows, columns))
    value, reading, compared = (page.locator(f"#{name}").inner_text() for name in ("value", "reading", "compared"))
    return value, reading, compared


def choose(page: Page, layer: int, head: int) -> None:
    page.locator("#layer").select_option(str(layer))
    page.locator("#head").select_option(str(head))


def test_every_pair_shows_its_weight(browser: Browser, seen: Observation, path: Path):
    words = ["<s>", *(f"␣{word.strip()}" for word in observations.labels(16)[1:])]
    with offline(browser, path, **DESK) as page:
        assert ready(page).title() == page.locator("h1").inner_text() == "Who hears whom"
        for layer, head in ((0, 0), (1, 1), (2, 3)):
            choose(page, layer, head)
            assert page.locator("#h-head").inner_text() == f"Layer {layer}, head {head}"
            whole = seen.map(layer, head)
            torch.testing.assert_close(whole.double(), observations.weights(16, 4, layer)[head], atol=1e-6, rtol=1e-5)
            for row, column in ((0, 0), (15, 0), (15, 15), (9, 4), (4, 3)):
                value, reading, compared = hover(page, row, column, 16, 16)
                assert value == share(float(whole[row, column]))
                assert reading == (
                    f"of the attention of query {row} “{words[row]}” goes to key {column} “{words[column]}”."
                )
                assert compared.startswith(f"Uniform attention: {share(1 / (row + 1))}")
        assert hover(page, 2, 9, 16, 16)[:2] == ("0", f"query 2 “{words[2]}” may not hear key 9 “{words[9]}”.")


def test_figures_links_and_sentences_are_those_of_the_observation(browser: Browser, seen: Observation, path: Path):
    with offline(browser, path, **DESK) as page:
        ready(page)
        choose(page, 1, 2)
        figures = dict(page.locator("#figures tr").evaluate_all(
            "rows => rows.map(row => [row.cells[1].dataset.figure, row.cells[1].textContent])"
        ))  # fmt: skip
        assert {n: figures[f"first_{n}"] for n in (1, 4, 8)} == {
            n: share(float(seen.sinks(n, 1, 2))) for n in (1, 4, 8)
        }
        assert float(figures["entropy"]) == pytest.approx(float(seen.entropy(1, 2).mean()), rel=5e-3)
        assert float(figures["distance"]) == pytest.approx(float(seen.distance(1, 2).mean()), rel=5e-3)
        rows = [row.locator("td").all_inner_texts() for row in page.locator("#links tbody tr").all()]
        links = [link for link in seen.links(1, 2, k=32) if link.query][:20]
        assert [row[2] for row in rows] == [share(link.weight) for link in links]
        assert [(row[0].split("“")[0].strip(), row[1].split("“")[0].strip()) for row in rows] == [
            (str(link.query), str(link.key)) for link in links
        ]
        histogram = seen.histogram(1, 2)
        told = page.locator("#back").get_attribute("aria-label") or ""
        assert f" 0: {share(float(histogram[1] / histogram.sum()))};" in told
        assert "of the weight goes to" in page.locator("#sentences li").first.inner_text()


def test_a_head_is_picked_from_the_overview(browser: Browser, path: Path):
    with offline(browser, path, **DESK) as page:
        ready(page)
        page.locator("#heads[data-drawn='12']").wait_for()
        box = page.locator("#heads").bounding_box()
        assert box is not None
        size = (box["height"] - 20) / 3
        page.mouse.move(box["x"] + 58 + 2.5 * size, box["y"] + 20 + 1.5 * size)
        assert page.locator("#heads-said").inner_text().startswith("Layer 1, head 2: ")
        page.mouse.click(box["x"] + 58 + 2.5 * size, box["y"] + 20 + 1.5 * size)
        assert page.locator("#h-head").inner_text() == "Layer 1, head 2"
        assert page.url.endswith("#layer=1&head=2&scale=log")
        page.locator("#metric").select_option("first_1")
        assert re.match(r"Layer 1, head 2, on the first key [\d.]+ %: ", page.locator("#heads-said").inner_text())


def test_everything_works_with_the_keyboard(browser: Browser, seen: Observation, path: Path):
    with offline(browser, path, "#layer=1&head=1&scale=linear", **DESK) as page:
        ready(page)
        assert page.locator("#scales [aria-checked=true]").inner_text() == "linear"
        page.keyboard.press("]")
        assert page.locator("#h-head").inner_text() == "Layer 1, head 2"
        page.keyboard.press("[")
        page.keyboard.press("PageDown")
        assert page.locator("#h-head").inner_text() == "Layer 2, head 1"
        page.locator("#heads").focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowLeft")
        assert page.locator("#h-head").inner_text() == "Layer 1, head 0"
        page.locator("#board").focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        whole = seen.map(1, 0)
        # The first key puts the cross into the corner, further keys move it.
        assert page.locator("#value").inner_text() == share(float(whole[2, 1]))
        page.keyboard.press("+")
        page.keyboard.press("+")
        assert page.locator("#whole").is_enabled()
        for _ in range(12):
            page.keyboard.press("ArrowDown")
        assert page.locator("#value").inner_text() == share(float(whole[14, 1]))
        page.keyboard.press("0")
        assert page.locator("#whole").is_disabled()
        page.keyboard.press("s")
        assert page.locator("#scales [aria-checked=true]").inner_text() == "without the first key"
        page.keyboard.press("Escape")
        assert page.locator("#reading").inner_text().startswith("Point at the map")
        page.locator("#scales [aria-checked=true]").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#scales [aria-checked=true]").inner_text() == "against uniform"


def test_zoom_by_wheel_and_buttons_keeps_numbers_and_places(browser: Browser, seen: Observation, path: Path):
    with offline(browser, path, "#layer=0&head=3", **DESK) as page:
        ready(page)
        x, y = place(page, 10, 5, 16, 16)
        page.mouse.click(x, y)
        for _ in range(4):
            page.mouse.wheel(0, -240)
        page.locator("#whole:enabled").wait_for()
        page.keyboard.press("Escape")
        page.mouse.move(x + 1, y + 1)
        assert page.locator("#reading").inner_text().startswith("of the attention of query 10 ")
        assert page.locator("#value").inner_text() == share(float(seen.map(0, 3)[10, 5]))
        before = page.locator("#board").screenshot()
        page.mouse.down()
        page.mouse.move(x - 120, y - 60, steps=4)
        page.mouse.up()
        assert page.locator("#board").screenshot() != before
        page.locator("#whole").click()
        # A link moves the view to its pair.
        page.locator("#links tbody button").first.click()
        link = next(link for link in seen.links(0, 3, k=32) if link.query)
        assert page.locator("#value").inner_text() == share(link.weight)
        assert f"query {link.query} " in page.locator("#reading").inner_text()


def colours(page: Page, row: int, rows: int, columns: int) -> list[list[int]]:
    """The colours of a row of the map, as they are on the canvas."""
    return page.evaluate(
        """([row, rows, columns]) => {
          const board = document.getElementById("board"), sharp = devicePixelRatio;
          const copy = new OffscreenCanvas(board.width, board.height).getContext("2d", { willReadFrequently: true });
          copy.drawImage(board, 0, 0);
          const [left, top, wide, high] = ["left", "top", "wide", "high"].map((name) => Number(board.dataset[name]));
          const y = (top + (row + 0.15) * high / rows) * sharp;
          return Array.from({ length: columns }, (_, column) =>
            [...copy.getImageData((left + (column + 0.15) * wide / columns) * sharp, y, 1, 1).data].slice(0, 3));
        }""",
        [row, rows, columns],
    )


def test_scales_change_the_colours_as_they_say(browser: Browser, seen: Observation, path: Path):
    shares = seen.map(0, 0)[11, :12].tolist()
    by_number = sorted(range(12), key=lambda column: shares[column])
    with offline(browser, path, "#layer=0&head=0&scale=linear", **DESK) as page:
        ready(page)

        def darkness() -> list[int]:
            return [-sum(colour) for colour in colours(page, 11, 16, 16)[:12]]

        def turn_to(scale: str) -> None:
            page.locator("#scales button", has_text=re.compile(f"^{scale}$")).click()

        forbidden = colours(page, 2, 16, 16)[9]
        linear = darkness()
        assert linear[0] > max(linear[1:]) + 200, "the sink outshines everything on a linear scale"
        turn_to("log")
        # Equal colours are equal shares, to one of 256 steps.
        dark = darkness()
        ordered = [shares[column] for column in sorted(range(12), key=lambda column: dark[column])]
        assert ordered == pytest.approx(sorted(ordered), rel=0.05)
        turn_to("without the first key")
        rest = darkness()
        assert rest.index(max(rest)) == by_number[-2], "the first key is left out"
        turn_to("against uniform")
        row = colours(page, 11, 16, 16)
        assert row[0][2] > row[0][0], "more than uniform is blue"
        assert row[by_number[0]][0] > row[by_number[0]][2], "less is orange"
        assert colours(page, 2, 16, 16)[9] == forbidden, "what is forbidden is grey on every scale"


def test_the_text_is_shaded_and_chooses_queries(browser: Browser, seen: Observation, path: Path):
    with offline(browser, path, "#layer=0&head=1", **DESK) as page:
        ready(page)
        tokens = page.locator("#text button")
        assert tokens.count() == 16
        tokens.nth(9).click()
        assert "query 9 " in page.locator("#text-note").inner_text()
        papers = tokens.evaluate_all("all => all.map(token => getComputedStyle(token).backgroundColor)")
        depths = [float(re.findall(r"[\d.]+", paper)[3]) for paper in papers]
        page.keyboard.press("ArrowRight")
        assert "query 10 " in page.locator("#text-note").inner_text()
        page.keyboard.press("ArrowLeft")
        whole = seen.map(0, 1)[9]
        wanted = (0.5 * (whole / whole.max()).sqrt()).tolist()
        assert depths[:10] == pytest.approx(wanted[:10], abs=0.01)


@pytest.mark.parametrize(
    "settings", [PHONE, {**PHONE, "color_scheme": "dark"}, {"viewport": {"width": 820, "height": 1180}}]
)
def test_it_fits_a_phone(browser: Browser, seen: Observation, path: Path, settings: dict[str, Any]):
    with offline(browser, path, "#layer=1&head=0", **settings) as page:
        ready(page)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        x, y = place(page, 12, 3, 16, 16)
        if settings.get("has_touch"):
            page.touchscreen.tap(x, y)
        else:
            page.mouse.click(x, y)
        assert page.locator("#value").inner_text() == share(float(seen.map(1, 0)[12, 3]))
        assert page.locator(".cell").is_visible()
        small = page.locator(".segments button, .zoom button").evaluate_all("all => all.map(each => each.offsetHeight)")
        assert min(small) >= 36


def test_a_long_input_is_in_bins_and_says_so(browser: Browser, tmp_path: Path):
    seen = observations.seen(900, layers=1, heads=2, map_size=60)
    whole = seen.map(0, 1)
    with offline(browser, written(seen, tmp_path), "#layer=0&head=1", **DESK) as page:
        ready(page)
        assert (
            page.locator("#resolution").inner_text().startswith("Bins of 15 tokens: one cell is 15 queries x 15 keys")
        )
        value, reading, _ = hover(page, 40, 12, 60, 60)
        assert value == share(float(whole[40, 12]))
        assert reading.startswith("of the attention of queries 600–614 “")
        assert " on average, goes to keys 180–194 " in reading


def test_many_heads_stay_usable(browser: Browser, tmp_path: Path):
    seen = observations.seen(64, layers=24, heads=24, words=False)
    with offline(browser, written(seen, tmp_path), **DESK) as page:
        ready(page)
        page.locator(f"#heads[data-drawn='{24 * 24}']").wait_for()
        choose(page, 23, 20)
        value, reading, _ = hover(page, 50, 10, 64, 64)
        assert value == share(float(seen.map(23, 20)[50, 10]))
        assert reading == "of the attention of query 50 goes to key 10."
        scrolled = page.locator("#heads-scroll").evaluate("box => box.scrollTop")
        assert scrolled > 0, "the chosen head is brought into sight"


def test_three_digits_are_kept_where_room_is_short(browser: Browser, tmp_path: Path):
    seen = observations.seen(100, layers=2, heads=4, map_size=100)
    with offline(browser, written(seen, tmp_path, max_bytes=180_000), "#layer=1&head=2", **DESK) as page:
        ready(page)
        assert "three digits" in page.locator("#notes").inner_text()
        value, *_ = hover(page, 80, 30, 100, 100)
        assert float(value.removesuffix(" %")) == pytest.approx(100 * float(seen.map(1, 2)[80, 30]), rel=5e-3)


def test_a_difference_shows_both_sides(browser: Browser, tmp_path: Path):
    before, after = (
        observations.seen(16, title="wide"),
        observations.seen(16, mask=causal() & window(4), title="narrow"),
    )
    diff = before.diff(after)
    with offline(browser, written(diff, tmp_path), "#layer=1&head=0", **DESK) as page:
        ready(page)
        assert page.locator("h1").inner_text() == "What changed from wide to narrow"
        assert page.locator("#scales button").all_inner_texts() == ["linear", "log"]
        change = diff.map(1, 0)
        value, reading, compared = hover(page, 15, 0, 16, 16)
        assert value == share(float(change[15, 0]))
        assert value.startswith("−")
        assert " loses from query 15 " in reading
        assert compared == f"Before {share(float(before.map(1, 0)[15, 0]))}, after 0."
        value, reading, _ = hover(page, 15, 14, 16, 16)
        assert value == f"+{share(float(change[15, 14]))}"
        assert " gains from query 15 " in reading
        figures = dict(page.locator("#figures tr").evaluate_all(
            "rows => rows.map(row => [row.cells[1].dataset.figure, row.cells[1].textContent])"
        ))  # fmt: skip
        layer = diff.layer(1)
        assert figures["moved"] == share(float(layer.moved[0]))
        assert figures["kl"] == "∞"
        assert figures["sinks"] == share(float(layer.sinks[0]))
        rows = [row.locator("td").all_inner_texts() for row in page.locator("#links tbody tr").all()]
        largest = change.abs().flatten().topk(20).indices.tolist()
        assert [row[2].lstrip("+") for row in rows] == [share(float(change.flatten()[n])) for n in largest]


def test_an_encoder_and_a_decoder_are_on_one_page(browser: Browser, tmp_path: Path):
    model = t5()
    with observe(model, labels=list("abcde"), source_labels=list("ABCDEFGHI")) as seen:
        model(torch.randint(2, 64, (1, 9)), torch.randint(2, 64, (1, 5)))
    with offline(browser, written(seen, tmp_path), "#layer=3&head=1", **DESK) as page:
        ready(page)
        assert page.locator("#h-head").inner_text() == "Layer 3 cross, head 1"
        value, reading, _ = hover(page, 4, 7, 5, 9)
        assert value == share(float(seen.map(3, 1)[4, 7]))
        assert reading == "of the attention of query 4 “e” goes to key 7 “H”."
        page.locator("#layer").select_option("0")
        value, reading, _ = hover(page, 8, 2, 9, 9)
        assert reading == "of the attention of query 8 “I” goes to key 2 “C”."


def test_a_notebook_can_show_it(browser: Browser, seen: Observation, tmp_path: Path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>notebook</title><h1>mine</h1>{framed(seen)}", encoding="utf-8")
    with offline(browser, path, **DESK) as page:
        frame = page.frame_locator("iframe")
        frame.locator("body[data-ready]").wait_for()
        frame.locator("#layer").select_option("2")
        frame.locator("#head").select_option("1")
        frame.locator("#board").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert frame.locator("#value").inner_text() == share(float(seen.map(2, 1)[1, 0]))
