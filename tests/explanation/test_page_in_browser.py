"""The page in a real browser with the network off: every cell shows the Trace's number, by mouse, keys and touch."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from rearview import MaskedSelfAttention, alibi, causal, explain, full, prefix
from rearview.explanation import Trace
from rearview.explanation.html import to_html, to_notebook
from rearview.explanation.numbers import digits_for, shown, signed
from tests.browser import a_browser, offline

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

SPEAKERS = ["Frank", "Emma", "Daniel", "Alex"]
PHONE: dict[str, Any] = {"viewport": {"width": 375, "height": 667}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def trace() -> Trace:
    """All stages, two heads."""
    numbers = torch.Generator().manual_seed(7)
    x, w_o = (torch.randn(*size, generator=numbers, dtype=torch.float64) for size in ((4, 6), (4, 3)))
    weights = torch.randn(3, 6, 4, generator=numbers, dtype=torch.float64)
    return explain(
        x, *weights, positions="sinusoidal", labels=SPEAKERS, num_heads=2, w_o=w_o, title="Who hears whom"
    )  # fmt: skip


@pytest.fixture
def path(trace: Trace, tmp_path: Path) -> Path:
    return written(trace, tmp_path)


def written(trace: Trace, folder: Path) -> Path:
    path = folder / "page.html"
    path.write_text(to_html(trace), encoding="utf-8")
    return path


def cells(page: Page) -> list[list[str]]:
    """Every number of the matrix, as the page writes it."""
    return page.evaluate(
        "[...document.querySelectorAll('#matrix tbody tr')]"
        ".map(row => [...row.querySelectorAll('td:not(.extra)')].map(td => td.textContent))"
    )


def cell(page: Page, row: int, column: int) -> Locator:
    return page.locator("#matrix tbody tr").nth(row).locator("td").nth(column)


def shown_all(matrix: Tensor) -> list[list[str]]:
    return [[shown(number) for number in row] for row in matrix.tolist()]


def terms(page: Page) -> list[list[str]]:
    """The lines of the panel's table: name, numbers."""
    rows = page.locator("#cell .terms tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def test_every_step_shows_the_numbers_of_the_trace(browser: Browser, trace: Trace, path: Path):
    with offline(browser, path) as page:
        assert page.title() == page.locator("h1").inner_text() == "Who hears whom"
        assert page.locator("#expression").inner_text() == "causal()"
        assert page.locator("#chips button").all_inner_texts() == [stage.symbol for stage in trace.stages]
        for head, masked in itertools.product(range(2), (True, False)):
            page.locator("#head").select_option(str(head))
            if (page.locator("#mask").get_attribute("aria-checked") == "true") != masked:
                page.locator("#mask").click()
            page.locator("#chips button").first.click()
            for n, stage in enumerate(trace.stages):
                assert page.locator("#count").inner_text() == f"Step {n + 1} of {len(trace.stages)}"
                assert page.locator("#chips [aria-current=step]").inner_text() == stage.symbol
                assert cells(page) == shown_all(stage.of_head(head, masked=masked)), (stage.key, head, masked)
                assert page.locator("#matrix thead th[scope=col]:not(.extra)").all_inner_texts() == list(stage.columns)
                assert page.locator("#matrix tbody th[scope=row] > span").all_inner_texts() == list(stage.rows)
                if masked:
                    assert page.locator("#formula").inner_text().replace("\n", "") == stage.formula.replace("W_", "W")
                    assert page.locator("#sentence").inner_text() == stage.sentence
                page.locator("#next").click(force=True)
            assert page.locator("#next").is_disabled()
        page.locator("#back").click()
        assert page.locator("#chips [aria-current=step]").inner_text() == "O"


def test_the_difference_is_a_view_of_weights_and_output(browser: Browser, trace: Trace, path: Path):
    with offline(browser, path) as page:
        for stage in trace.stages:
            page.locator("#chips").get_by_role("button", name=stage.symbol, exact=True).click()
            assert page.locator("#difference").is_visible() == (stage.key in ("weights", "output", "projected"))
        page.goto(f"{path.as_uri()}#step=weights")
        page.keyboard.press("d")
        for key in ("weights", "output"):
            difference = trace[key].difference(0)
            assert difference is not None
            assert cells(page) == [[signed(number) for number in row] for row in difference.tolist()]
            page.keyboard.press("ArrowRight")
        page.goto(f"{path.as_uri()}#step=weights&view=difference")
        cell(page, 1, 0).hover()
        masked, unmasked = (trace["weights"].of_head(0, masked=masked)[1] for masked in (True, False))
        kept = float(unmasked[:2].sum())
        said = page.locator("#cell .result").all_inner_texts()
        assert (
            said[0]
            == f"{shown(float(masked[0]))} − {shown(float(unmasked[0]))} = {signed(float(masked[0] - unmasked[0]))}"
        )
        assert said[1] == f"{shown(float(unmasked[0]))} / {shown(kept)} = {shown(float(masked[0]))}"
        extra = page.locator("#matrix tbody tr").nth(1).locator("td.extra").all_inner_texts()
        assert extra == [shown(1 - kept), shown(1 / kept)]


def test_forbidden_cells_are_marked(browser: Browser, trace: Trace, path: Path):
    forbidden = [(i, j) for i in range(4) for j in range(4) if j > i]

    def marked(page: Page, name: str) -> list[tuple[int, int]]:
        return [(i, j) for i in range(4) for j in range(4) if name in (cell(page, i, j).get_attribute("class") or "")]

    def hatched(cell: Locator) -> bool:
        return "gradient" in cell.evaluate("td => getComputedStyle(td).backgroundImage")

    with offline(browser, path, "#step=scores") as page:
        assert marked(page, "forbidden") == []
        for _ in ("mask", "masked", "weights"):
            page.keyboard.press("ArrowRight")
            assert (marked(page, "forbidden"), marked(page, "future")) == (forbidden, [])
            assert [(i, j) for i in range(4) for j in range(4) if hatched(cell(page, i, j))] == forbidden
            page.keyboard.press("m")
            assert (marked(page, "forbidden"), marked(page, "future")) == ([], forbidden)
            page.keyboard.press("m")
        assert {cell(page, i, j).inner_text() for i, j in forbidden} == {"0"}
        assert cell(page, 0, 1).get_attribute("aria-label") == "0, forbidden"
        assert page.locator("#matrix td.extra").all_inner_texts() == ["1.000"] * 4


def test_a_cell_shows_the_products_that_make_it(browser: Browser, trace: Trace, path: Path):
    def number(key: str, row: int, column: int) -> float:
        return float(trace[key].of_head(0)[row, column])

    with offline(browser, path, "#step=x_positioned") as page:
        assert "Point at a cell" in page.locator("#cell").inner_text()
        cell(page, 1, 2).hover()
        x, p = number("x", 1, 2), number("p", 1, 2)
        assert page.locator("#cell .result").inner_text() == f"{shown(x)} + {shown(p)} = {shown(x + p)}"

        page.goto(f"{path.as_uri()}#step=scores")
        cell(page, 2, 1).hover()
        pairs = [(number("q", 2, d), number("k", 1, d)) for d in range(2)]
        dot = sum(q * k for q, k in pairs)
        lines = [[f"d{d + 1}", shown(q), shown(k), shown(q * k)] for d, (q, k) in enumerate(pairs)]
        assert terms(page) == [*lines, ["Σ", "", "", shown(dot)]]
        assert page.locator("#cell .result").inner_text() == f"{shown(dot)} / √2 = {shown(number('scores', 2, 1))}"
        exact = float(page.locator("#cell .exact code").inner_text())
        assert exact == number("scores", 2, 1)
        assert page.locator("#matrix th.lit").all_inner_texts() == ["Emma", "Daniel"]

        # The same pair stays chosen from step to step.
        page.keyboard.press("ArrowRight")
        assert page.locator("#cell .note").inner_text() == "Daniel may hear Emma."
        page.keyboard.press("ArrowRight")
        score = shown(number("scores", 2, 1))
        assert page.locator("#cell .result").inner_text() == f"{score} + 0 = {score}"
        cell(page, 0, 3).hover()
        assert page.locator("#cell .result").inner_text() == f"{shown(number('scores', 0, 3))} + -∞ = -∞"
        page.keyboard.press("ArrowRight")
        cell(page, 2, 1).hover()
        scores = [number("masked", 2, key) for key in range(4)]
        powers = [math.exp(s - max(scores)) for s in scores]
        lines = [[SPEAKERS[k], shown(scores[k]), shown(powers[k]), shown(number("weights", 2, k))] for k in range(4)]
        assert terms(page) == [*lines, ["Σ", "", shown(sum(powers)), "1.000"]]
        assert lines[3][1:] == ["-∞", "0", "0"]
        assert page.locator("#cell .result").all_inner_texts() == [
            f"exp({shown(scores[1])} − {shown(max(scores))}) / {shown(sum(powers))}",
            f"= {shown(powers[1])} / {shown(sum(powers))} = {shown(number('weights', 2, 1))}",
        ]

        page.mouse.move(0, 0)
        page.keyboard.press("ArrowRight")
        assert page.locator("#cell[data-empty]").count() == 1, "other columns: nothing is chosen"
        cell(page, 2, 1).hover()
        lines = [
            [name, shown(number("weights", 2, key)), shown(number("v", key, 1)),
             shown(number("weights", 2, key) * number("v", key, 1))]
            for key, name in enumerate(SPEAKERS)
        ]  # fmt: skip
        assert lines[3][1:] == ["0", shown(number("v", 3, 1)), "0"]
        assert terms(page) == [*lines, ["Σ", "", "", shown(number("output", 2, 1))]]
        assert page.locator("#cell .terms .silent th").all_inner_texts() == ["Alex"]
        page.keyboard.press("m")
        assert page.locator("#cell .terms .silent").count() == 0
        assert page.locator("#cell .value").inner_text() == shown(float(trace["output"].of_head(0, masked=False)[2, 1]))


def test_a_sink_has_a_line_of_its_own(browser: Browser, tmp_path: Path):
    """One query of score 0 over two keys and a sink of 0: a third each; without the mask a quarter."""
    same, values = torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [3.0]])
    trace = explain(query=same, key=same, value=values, sinks=[0.0], labels="I love sushi")
    with offline(browser, written(trace, tmp_path), "#step=weights") as page:
        assert page.locator("#matrix td.extra").all_inner_texts() == ["0.500", "0.667", "0.750"]
        cell(page, 1, 0).hover()
        assert terms(page) == [
            ["I", "0", "1.000", "0.333"],
            ["love", "0", "1.000", "0.333"],
            ["sushi", "-∞", "0", "0"],
            ["sink", "0", "1.000", "0.333"],
            ["Σ", "", "3.000", "1.000"],
        ]
        assert page.locator("#cell .result").all_inner_texts() == ["exp(0 − 0) / 3.000", "= 1.000 / 3.000 = 0.333"]
        page.keyboard.press("d")
        cell(page, 1, 0).hover()
        assert page.locator("#cell .result").all_inner_texts() == ["0.333 − 0.250 = +0.083", "0.250 / 0.750 = 0.333"]
        assert (
            "and to the sink. Divided by that, the row and its sink sum to 1 again."
            in page.locator("#cell").inner_text()
        )


def test_a_clicked_cell_stays_until_it_is_released(browser: Browser, path: Path):
    with offline(browser, path, "#step=weights") as page:
        cell(page, 1, 0).click()
        cell(page, 3, 3).hover()
        assert page.locator("#cell .place").inner_text() == "A Emma, Frank"
        page.keyboard.press("Escape")
        assert page.locator("#cell[data-empty]").count() == 1
        cell(page, 3, 3).hover()
        cell(page, 3, 2).hover()
        assert page.locator("#cell .place").inner_text() == "A Alex, Daniel"


def test_everything_works_with_the_keyboard(browser: Browser, trace: Trace, path: Path):
    with offline(browser, path) as page:
        symbol = page.locator("#chips [aria-current=step]")
        symbols = [stage.symbol for stage in trace.stages]
        page.keyboard.press("End")
        assert symbol.inner_text() == symbols[-1]
        page.keyboard.press("ArrowRight")
        assert symbol.inner_text() == symbols[-1]
        page.keyboard.press("ArrowLeft")
        assert symbol.inner_text() == symbols[-2]
        page.keyboard.press("Home")
        assert symbol.inner_text() == symbols[0]
        page.locator("#chips button").nth(symbols.index("A")).focus()
        page.keyboard.press("Enter")
        assert symbol.inner_text() == "A"
        page.locator("#mask").focus()
        page.keyboard.press("Space")
        assert page.locator("#mask").get_attribute("aria-checked") == "false"
        page.keyboard.press("m")
        assert page.locator("#mask").get_attribute("aria-checked") == "true"
        # The matrix is one stop of the Tab key; inside it arrow keys move and do not change the step.
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert page.locator("#cell .place").inner_text() == "A Emma, Emma"
        assert cell(page, 1, 1).evaluate("td => getComputedStyle(td).outlineStyle") == "solid"
        page.keyboard.press("End")
        assert page.locator("#cell .place").inner_text() == "A Emma, Alex"
        assert symbol.inner_text() == "A"
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.getAttribute('aria-current')") == "step"
        page.keyboard.press("ArrowRight")
        assert symbol.inner_text() == "O"


def test_the_page_reads_itself_aloud(browser: Browser, trace: Trace, path: Path):
    with offline(browser, path, "#step=weights") as page:
        for head, masked in ((0, True), (1, True), (1, False)):
            page.locator("#head").select_option(str(head))
            if not masked:
                page.locator("#mask").click()
            sentences = [reading.sentence for reading in trace.readings(head, masked=masked)]
            assert page.locator("#readings li").all_inner_texts() == sentences
            received = [key.sentence for key in trace.received(head)]
            assert page.locator("#received li span").all_inner_texts() == received
            assert page.locator("#remarks li").all_inner_texts() == list(trace.remarks(head))


def test_the_address_keeps_the_state(browser: Browser, trace: Trace, path: Path):
    with offline(browser, path, "#step=weights&mask=off&head=1") as page:
        assert cells(page) == shown_all(trace["weights"].of_head(1, masked=False))
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("m")
        assert page.url.endswith("#step=masked&mask=on&head=1")
        page.reload()
        assert cells(page) == shown_all(trace["masked"].of_head(1))
        for nonsense in ("#step=nothing&head=9&mask=%", "#step=toString&head=-1", "#%%%", "#"):
            page.evaluate("hash => { location.hash = hash; }", nonsense)
            assert page.locator("#chips [aria-current=step]").count() == 1


def test_on_a_phone_the_matrix_scrolls_and_taps_work(browser: Browser, trace: Trace, path: Path):
    with offline(browser, path, "#step=weights", **PHONE) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, "only the matrix scrolls sideways"
        for control in ("#back", "#next", "#mask", "#difference", "#head"):
            box = page.locator(control).bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 375
            assert box["height"] >= 40
        cell(page, 3, 0).tap()
        assert page.locator("#cell .place").inner_text() == "A Alex, Frank"
        panel, tapped = page.locator("#cell").bounding_box(), cell(page, 3, 0).bounding_box()
        assert panel is not None
        assert tapped is not None
        assert tapped["y"] + tapped["height"] <= panel["y"], "the panel does not hide the cell"
        assert panel["y"] + panel["height"] <= 668
        page.locator("#cell .close").tap()
        assert page.locator("#cell[data-empty]").count() == 1
        page.locator("#mask").tap()
        assert cells(page) == shown_all(trace["weights"].of_head(0, masked=False))
        page.locator("#next").tap()
        assert cells(page) == shown_all(trace["output"].of_head(0, masked=False))


def test_labels_are_text(browser: Browser, tmp_path: Path):
    labels = [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "\"'&<!--",
        "寿司",
        "{{data}}",
        "w" * 300,
    ]
    trace = explain(torch.randn(6, 3), *torch.randn(3, 3, 3), labels=labels, features=labels[:3], title="<b>&amp;</b>")
    with offline(browser, written(trace, tmp_path), "#step=weights") as page:
        assert page.title() == page.locator("h1").inner_text() == "<b>&amp;</b>"
        assert page.locator("#matrix tbody th > span").evaluate_all("spans => spans.map(s => s.textContent)") == labels
        assert page.locator("img, #matrix b, #readings script").count() == 0
        cell(page, 5, 1).hover()
        assert labels[1] in page.locator("#cell .place").inner_text()
        assert page.locator("#readings li").nth(1).inner_text() == trace.readings()[1].sentence
        long = page.locator("#matrix tbody th").nth(5)
        assert long.get_attribute("title") == labels[5]
        box = long.bounding_box()
        assert box is not None
        assert box["width"] < 200


def test_rows_that_hear_nothing_or_only_themselves_are_marked(browser: Browser, tmp_path: Path):
    trace = explain(torch.randn(4, 3), *torch.randn(3, 3, 3), labels=SPEAKERS, mask=causal() & ~prefix(1))
    with offline(browser, written(trace, tmp_path), "#step=weights") as page:
        assert page.locator("#matrix .badge").all_inner_texts() == ["hears nothing", "only itself"]
        assert cells(page)[0] == ["0"] * 4
        assert page.locator("#readings .nothing").inner_text() == trace.readings()[0].sentence
        cell(page, 0, 0).hover()
        assert "nothing is heard" in page.locator("#cell").inner_text()
        page.keyboard.press("d")
        assert page.locator("#matrix tbody tr").first.locator("td.extra").all_inner_texts() == ["1.000", "–"]
        page.keyboard.press("ArrowRight")
        page.keyboard.press("d")
        assert cells(page)[0] == ["0"] * 3
        cell(page, 0, 0).hover()
        assert "exactly 0" in page.locator("#cell .note").inner_text()


def test_on_paper_every_step_is_written(browser: Browser, trace: Trace, path: Path):
    with offline(browser, path, "#head=1") as page:
        assert page.locator("#paper section").count() == 0
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert page.locator("main").is_hidden()
        sections = page.locator("#paper section")
        formulas = [stage.formula.replace("W_", "W") for stage in trace.stages]
        assert sections.locator("h2").all_inner_texts() == formulas
        for n, stage in enumerate(trace.stages):
            tables = sections.nth(n).locator("table")
            assert tables.count() == (1 if stage.unmasked is None else 2)
            for table, masked in zip(tables.all(), (True, False), strict=False):
                matrix = stage.of_head(1, masked=masked)
                lines = table.locator("tbody tr").all()
                written = [line.locator("td").all_inner_texts() for line in lines]
                assert written == [[shown(x, digits_for(matrix)) for x in row] for row in matrix.tolist()]
                assert [line.locator("th").inner_text() for line in lines] == list(stage.rows)
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert page.locator("#paper section").count() == 0
        # The browser itself fires both events.
        assert page.pdf().startswith(b"%PDF-")


def test_six_tokens_fit_a_small_laptop(browser: Browser, tmp_path: Path):
    generator = torch.Generator().manual_seed(3)
    q, k, v = torch.randn(3, 6, 4, generator=generator, dtype=torch.float64)
    path = written(explain(query=q, key=k, value=v, labels="The weather is lovely today ,"), tmp_path)
    with offline(browser, path, "#step=weights", viewport={"width": 1280, "height": 720}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        for box in ("#scroll", "#received", "#readings", "#remarks"):
            wide, high = page.locator(box).evaluate(
                "box => [box.scrollWidth - box.clientWidth, box.scrollHeight - box.clientHeight]"
            )
            assert (wide, high) <= (0, 0), box


def test_numbers_are_written_as_everywhere_else(browser: Browser, tmp_path: Path):
    # Ties, which JavaScript and Python round differently, and the very small and large.
    numbers = [n / 16 for n in range(-40, 41)] + [n / 2000 for n in range(-20, 21)]
    numbers += [
        0.0,
        -0.0,
        1e-5,
        -1e-5,
        5e-324,
        1.0005,
        2.0015,
        123456789.0625,
        1e20,
        1e21,
        -1.5e22,
        1e300,
        0.0005,
        1 / 3,
    ]
    value = torch.tensor([numbers], dtype=torch.float64)
    trace = explain(query=torch.ones(1, 2), key=torch.ones(1, 2), value=value)
    with offline(browser, written(trace, tmp_path), "#step=v") as page:
        assert cells(page) == [[shown(number) for number in numbers]]
        cell(page, 0, len(numbers) - 1).hover()
        assert float(page.locator("#cell .exact code").inner_text()) == 1 / 3


def test_rotated_scaled_or_biased_scores_add_up(browser: Browser, tmp_path: Path):
    turned = explain(torch.randn(3, 4), *torch.randn(3, 4, 4), positions="rotary", scale=0.25, labels=["a", " b", "\n"])
    with offline(browser, written(turned, tmp_path), "#step=scores") as page:
        cell(page, 2, 0).hover()
        query, key = turned["q_turned"].matrix[0, 2], turned["k_turned"].matrix[0, 0]
        dot, score = float((query * key).sum()), float(turned["scores"].matrix[0, 2, 0])
        assert page.locator("#cell .result").inner_text() == f"{shown(dot)} × 0.250 = {shown(score)}"
        assert page.locator("#matrix tbody th").all_inner_texts() == ["a", "␣b", "\\n"], "what is not seen is written"
    biased = explain(MaskedSelfAttention(4, 1, score_bias=alibi(1)), torch.randn(3, 4))
    with offline(browser, written(biased, tmp_path), "#step=scores") as page:
        cell(page, 2, 0).hover()
        query, key = biased["q"].matrix[0, 2], biased["k"].matrix[0, 0]
        dot, score = float((query * key).sum()), float(biased["scores"].matrix[0, 2, 0])
        bias = shown(score - dot * biased.scale)
        assert page.locator("#cell .result").inner_text() == f"{shown(dot)} / √4 + {bias} = {shown(score)}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_can_be_read_on_every_weight(browser: Browser, tmp_path: Path, scheme: Any):
    score = torch.linspace(0.5, 0.9999, 40).logit().unsqueeze(-1)
    trace = explain(query=score, key=[[1.0], [0.0]], value=[[1.0], [2.0]], key_labels="a b", mask=full(), scale=1.0)
    settings: dict[str, Any] = {"color_scheme": scheme, "reduced_motion": "reduce"}
    with offline(browser, written(trace, tmp_path), "#step=weights", **settings) as page:
        colours = page.locator("#matrix tbody td:not(.extra)").evaluate_all(
            "tds => tds.map(td => [getComputedStyle(td).color, getComputedStyle(td).backgroundColor])"
        )
        assert len(colours) == 2 * 40
        assert min(contrast(*map(channels, pair)) for pair in colours) >= 4.5


def channels(colour: str) -> list[float]:
    numbers = [float(number) for number in re.findall(r"[\d.]+(?:e-\d+)?", colour.removeprefix("color(srgb"))]
    return numbers[:3] if colour.startswith("color(srgb") else [number / 255 for number in numbers[:3]]


def contrast(one: list[float], other: list[float]) -> float:
    """WCAG 2, between 1 and 21."""

    def light(colour: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_a_long_sequence_can_still_be_used(browser: Browser, tmp_path: Path):
    trace = explain(torch.randn(200, 4), *torch.randn(3, 4, 4))
    with offline(browser, written(trace, tmp_path), "#step=weights") as page:
        # Only rows near the view have cells.
        assert page.locator("#matrix tbody td").count() < 100 * 200
        row, tenth = (page.locator("#matrix tbody tr").nth(n) for n in (199, 9))
        for key, masked in (("m", False), ("m", True)):
            page.locator("#scroll").evaluate("box => box.scrollTo(0, 0)")
            page.keyboard.press(key)
            weights = shown_all(trace["weights"].of_head(0, masked=masked))
            # Rows near the visible part get their cells in the next frame.
            tenth.locator("td").nth(150).wait_for()
            assert cells(page)[:10] == weights[:10]
            page.locator("#scroll").evaluate("box => box.scrollTo(0, box.scrollHeight)")
            row.locator("td").nth(150).wait_for()
            assert row.locator("td:not(.extra)").all_inner_texts() == weights[199]
        cell(page, 199, 150).click()
        assert page.locator("#cell .place").inner_text() == "A t200, t151"
        # The headers stay visible.
        box, corner = page.locator("#scroll").bounding_box(), page.locator("#matrix .corner").bounding_box()
        assert box is not None
        assert corner is not None
        assert abs(corner["x"] - box["x"]) < 10
        assert abs(corner["y"] - box["y"]) < 10


def test_a_notebook_can_show_it(browser: Browser, trace: Trace, tmp_path: Path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>notebook</title><h1>mine</h1>{to_notebook(trace)}", encoding="utf-8")
    with offline(browser, path) as page:
        frame = page.frame_locator("iframe")
        frame.locator("#chips button", has_text="A").last.click()
        frame.locator("#mask").click()
        weights = shown_all(trace["weights"].of_head(0, masked=False))
        rows = frame.locator("#matrix tbody tr").all()
        assert [row.locator("td:not(.extra)").all_inner_texts() for row in rows] == weights
