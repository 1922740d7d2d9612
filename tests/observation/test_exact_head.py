"""Long inputs at full zoom: the page computes the exact weight of every pair from queries and keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rearview import Mask, alibi, causal, documents, prefix, where, window
from rearview.attention.call import Call
from rearview.observation import Layer, Observation
from rearview.observation.views.exact_head import exact_head
from rearview.observation.views.html import page as page_of
from rearview.observation.views.sentences import share
from rearview.observation.watching.retained_calls import RetainedCalls, extended
from tests.browser import a_browser, offline
from tests.observation import observations
from tests.observation.board import point

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 1000}}
LENGTH, HEADS = 400, 4


def watched(
    mask: Mask = causal(),
    *,
    dtype: torch.dtype = torch.float32,
    key_heads: int = HEADS,
    cut: int = LENGTH,
    **options: Any,
) -> Observation:
    """One layer over 400 positions, in bins; from `cut` on, position by position, as in generation."""
    query, key = (x.to(dtype) for x in observations.queries_and_keys(LENGTH, HEADS))
    key = key[:, :key_heads]
    calls = [(0, cut), *((n, n + 1) for n in range(cut, LENGTH))]
    statistics = kept = None
    for start, stop in calls:
        call = Call.of_scores(query[:, :, start:stop], key[:, :, :stop], mask=mask, **options)
        statistics = extended(statistics, call, map_size=64, links=8)
        kept = RetainedCalls.of(call) if kept is None else kept.and_then(call)
    assert statistics is not None
    layer = Layer("blocks.0.attention", "self", 0, tuple(range(HEADS)), statistics, kept)
    return Observation([layer], labels=observations.labels(LENGTH))


def written(seen: Observation, folder: Path, **options: Any) -> Path:
    path = folder / "seen.html"
    path.write_text(page_of(seen, **options), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


def pointed_at(page: Page, along: float, down: float) -> tuple[int, int, str]:
    """Query, key and share under a point of the map, given as parts of its sides."""
    page.mouse.move(*point(page, along, down))
    reading = page.locator("#reading").inner_text()
    positions = [int(text.replace(",", "")) for text in re.findall(r"(?:query|key) ([\d,]+)", reading)]
    assert len(positions) == 2, reading
    return positions[0], positions[1], page.locator("#value").inner_text()


CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "window with a prefix": {"mask": causal() & (window(40) | prefix(2))},
    "documents": {"mask": causal() & documents(torch.arange(LENGTH).unsqueeze(0) // 90)},
    "shared keys": {"key_heads": 2},
    "softcap": {"softcap": 3.0, "scale": 0.4},
    "alibi": {"bias": alibi(HEADS)},
    "learned sinks": {"sinks": torch.tensor([1.0, 0.5, 2.0, -1.0])},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "generation": {"cut": 380},
}


@pytest.mark.parametrize("case", CASES)
def test_zoomed_in_every_pair_has_its_exact_weight(browser: Browser, tmp_path: Path, case: str):
    seen = watched(**CASES[case])
    with offline(browser, written(seen, tmp_path), "#layer=0&head=2", **DESK) as page:
        page.locator("body[data-ready]").wait_for()
        bins = seen.layers[0].statistics.bin_width
        assert page.locator("#board").get_attribute("data-bin") == str(bins)
        assert f"Bins of {bins} tokens" in page.locator("#resolution").inner_text()
        # A link zooms to its pair.
        page.locator("#links tbody button").last.click()
        assert page.locator("#board").get_attribute("data-bin") == "1"
        assert page.locator("#resolution").inner_text().startswith("One cell is one query and one key")
        shown = page.locator("#links tbody tr").last.locator("td").last.inner_text()
        assert page.locator("#value").inner_text() == shown
        page.keyboard.press("Escape")
        for along, down in ((0.11, 0.52), (0.31, 0.93), (0.52, 0.55)):
            query, key, value = pointed_at(page, along, down)
            exact = float(seen.tile(0, 2, range(query, query + 1), range(key, key + 1)))
            shown = float(value.replace(" %", "")) / (100 if " %" in value else 1)
            assert shown == pytest.approx(exact, rel=6e-3), (query, key)


def test_arrow_keys_pan_beyond_the_edge_of_the_view(browser: Browser, tmp_path: Path):
    seen = watched()
    with offline(browser, written(seen, tmp_path), "#layer=0&head=3&scale=linear", **DESK) as page:
        page.locator("body[data-ready]").wait_for()
        board = page.locator("#board")
        board.focus()
        page.keyboard.press("ArrowDown")
        for _ in range(6):
            page.keyboard.press("+")
        assert board.get_attribute("data-bin") == "1"
        for _ in range(30):
            page.keyboard.press("ArrowDown")
        for _ in range(20):
            page.keyboard.press("ArrowRight")
        assert page.locator("#value").inner_text() == share(float(seen.tile(0, 3, range(30, 31), range(20, 21))))
        # The text is shaded by what this query hears.
        assert "query 30 " in page.locator("#text-note").inner_text()
        page.locator("#text button").nth(200).click()
        assert "query 200 " in page.locator("#reading").inner_text()
        # Every scale shows something, and the whole map returns.
        pictures = set()
        for _ in range(4):
            page.keyboard.press("s")
            pictures.add(board.screenshot())
        assert len(pictures) == 4
        page.keyboard.press("0")
        assert board.get_attribute("data-bin") == "7"


def test_two_fingers_zoom_to_the_pairs(browser: Browser, tmp_path: Path):
    phone: dict[str, Any] = {"viewport": {"width": 375, "height": 700}, "has_touch": True, "is_mobile": True}
    with offline(browser, written(watched(), tmp_path), "#layer=0&head=1", **phone) as page:
        page.locator("body[data-ready]").wait_for()
        board = page.locator("#board")
        board.scroll_into_view_if_needed()
        box = board.bounding_box()
        assert box is not None
        x, y = box["x"] + 0.6 * box["width"], box["y"] + 0.4 * box["height"]
        device = page.context.new_cdp_session(page)

        def touch(kind: str, apart: float) -> None:
            fingers = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
            device.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers if apart else []})

        for _ in range(3):
            touch("touchStart", 20)
            for apart in (30, 45, 60):
                touch("touchMove", apart)
            touch("touchEnd", 0)
        page.locator("#board[data-bin='1']").wait_for()
        page.touchscreen.tap(x, y)
        assert re.search(r"query \d+ .* key \d+ ", page.locator("#reading").inner_text())


def test_a_small_page_says_how_to_get_exact_weights(browser: Browser, tmp_path: Path):
    seen = watched()
    small, one_more, large = (len(page_of(seen, max_bytes=size)) for size in (130_000, 230_000, 8_000_000))
    assert small <= 130_000 < one_more <= 230_000 < large
    with offline(browser, written(seen, tmp_path, max_bytes=130_000), "#layer=0&head=2", **DESK) as page:
        page.locator("body[data-ready]").wait_for()
        assert "seen.tile(0, head, rows, cols) gives exact weights." in page.locator("#resolution").inner_text()
        page.locator("#links tbody button").first.click()
        assert page.locator("#board").get_attribute("data-bin") == "7"


def test_heads_whose_weights_a_page_cannot_compute():
    query, key = observations.queries_and_keys(8, 2)
    no_ranges = where(lambda b, h, q, k: (q + k) % 2 == 0)
    for mask, bias in ((causal(), torch.zeros(8, 8)), (no_ranges, None)):
        call = Call.of_scores(query, key, mask=mask, bias=bias)
        statistics = extended(None, call, map_size=4, links=0)
        for kept in (RetainedCalls.of(call), None):
            assert exact_head(Layer("a", "self", 0, (0, 1), statistics, kept), item=0, row=0) is None
