"""The studio in a real browser: each view is used as a person would, with mouse and keys, and the network off."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rearview.models import BERT, GPT, BERTConfig, GPTConfig
from rearview.text import BPETokenizer, ByteTokenizer
from rearview.text_model import TextModel
from rearview.webapp import Studio
from tests.browser import a_browser
from tests.webapp.conftest import model

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 375, "height": 667},
    "has_touch": True,
    "is_mobile": True,
    "color_scheme": "dark",
}
TEXT = "I love sushi. Emma loves street food."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def studio() -> Iterator[Studio]:
    other = model(layers=2)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(1.5)
    with Studio([model(), TextModel("other", other.model, other.tokenizer)], [], text=TEXT) as running:
        yield running


@contextmanager
def opened(browser: Browser, studio: Studio, fragment: str = "", **settings: Any) -> Iterator[Page]:
    """The page; an error, a message of the console or a request to another host is a failure."""
    context = browser.new_context(**(settings or DESK))
    context.set_default_timeout(20_000)
    troubles: list[str] = []
    own = f"http://127.0.0.1:{studio.port}/"
    context.route(lambda url: not url.startswith(own), lambda route: route.abort())
    page = context.new_page()
    page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith((own, "about:", "data:")) else troubles.append(request.url),
    )
    page.goto(studio.url)
    if fragment:
        page.goto("about:blank")
        page.goto(own + fragment)
    page.locator("body[data-ready]").wait_for()
    yield page
    context.close()
    assert troubles == []


def until(page: Page, condition: str) -> None:
    # As a function: a string would be evaluated by the page, which its policy forbids.
    page.wait_for_function(f"() => {condition}")


def idle(page: Page) -> None:
    until(page, "document.body.dataset.busy === ''")


def open_view(page: Page, name: str) -> None:
    page.click(f"#tab-{name}")
    idle(page)


def test_reading_and_typing_again(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        assert page.inner_text("#facts") == "2 layers, 4 heads · 37 positions"
        assert "37 tokens" in page.inner_text("#source-note")
        assert page.locator("#next li").count() == 10
        before = page.evaluate("document.body.dataset.run")
        page.fill("#input", "Another text")
        until(page, f"document.body.dataset.run !== {before!r}")
        idle(page)
        assert page.inner_text("#facts").endswith("12 positions")
        page.check("#surprise")
        assert page.locator("#surprises button").count() == 12
        page.locator("#text button").nth(5).click()
        assert "query 5" in page.inner_text("#reading")


def test_a_cell_is_worked_out(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        page.locator("#board").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.locator("#why-card").wait_for()
        idle(page)
        rows = page.locator("#why tr").all_inner_texts()
        assert [row.split("\t")[0] for row in rows] == [
            "q",
            "k",
            "q · k",
            "× scale",
            "mask",
            "exp",
            "Σ",
            "weight",
            "× v",
        ]
        weight = page.inner_text("#value")
        assert rows[7].endswith(weight)
        page.uncheck("#why-mask")
        assert page.locator("#why tr").nth(7).inner_text() != rows[7]
        page.click("#why-steps")
        frame = page.frame_locator("#why-frame iframe")
        frame.locator("body").wait_for()
        assert "Layer 0, head" in frame.locator("h1").inner_text()


def test_tokens_and_maps_are_linked_by_the_mouse(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        page.locator("#text button").nth(9).hover()
        assert page.locator("#text button.query").all_inner_texts() == ["s"]
        assert "query 9" in page.inner_text("#reading")
        # The key that the query hears most is marked as well.
        assert page.locator("#text button.key").count() == 1
        board = page.locator("#board")
        left, top, wide = (int(board.get_attribute(f"data-{name}") or 0) for name in ("left", "top", "wide"))
        board.hover(position={"x": left + 2.5 * wide / 37, "y": top + 30.5 * wide / 37})
        assert "query 30" in page.inner_text("#text-note")
        assert page.locator("#text button.key").evaluate("e => [...e.parentElement.children].indexOf(e)") == 2
        page.click("#why-go")
        idle(page)
        assert "key 2" in page.inner_text("#why-note")
        page.locator("#main").focus()
        page.keyboard.press("Escape")
        assert page.locator("#why-card").is_hidden()


def test_the_word_of_a_cut_is_the_last_one_or_the_chosen_one(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        buttons = "[...document.querySelectorAll('#cut-text button')]"
        chosen = f"{buttons}.findIndex((each) => each.classList.contains('chosen'))"
        open_view(page, "cut")
        assert page.evaluate(chosen) == len(TEXT) - 1
        page.fill("#input", TEXT + " And so on.")
        until(page, f"{chosen} === {len(TEXT) + 10}")
        page.locator("#cut-text button").first.click()
        until(page, "location.hash.includes('position=0')")
        open_view(page, "read")
        open_view(page, "cut")
        assert page.evaluate(chosen) == 0


def test_a_page_without_a_text_says_what_to_do(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        page.fill("#input", "")
        page.locator("#read-empty").wait_for()
        assert page.locator("#maps").is_hidden()
        open_view(page, "cut")
        assert page.inner_text("#cut-lead") == "Type a text first."
        assert page.is_disabled("#rank-heads")
        page.fill("#input", "again")
        until(page, "document.getElementById('source-note').textContent === '5 tokens'")
        idle(page)
        open_view(page, "read")
        assert page.locator("#maps").is_visible()


def test_zooming_asks_for_exact_tiles(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        page.fill("#input", TEXT * 7)
        until(page, "document.getElementById('facts').textContent.includes('256 positions')")
        idle(page)
        page.locator("#board").focus()
        for _ in range(3):
            page.keyboard.press("+")
        until(page, "document.getElementById('board').dataset.bin === '1'")
        assert page.inner_text("#resolution") == "One cell is one query and one key, with its exact weight."


def test_a_mask_is_edited_drawn_and_run(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        open_view(page, "mask")
        page.fill("#expression", "causal() & window(3)")
        until(page, "document.getElementById('mask-diff').textContent.includes('91 pairs')")
        page.fill("#expression", "causal(")
        page.locator("#mask-error").wait_for()
        # The caret stands below the place that it means.
        said = page.inner_text("#mask-error").split("\n")
        assert (said[1], said[2]) == ("  causal(", "        ^")
        assert page.evaluate("getComputedStyle(document.getElementById('mask-error')).fontFamily").startswith("ui-mono")
        page.fill("#expression", "causal()")
        until(page, "document.getElementById('mask-diff').textContent.startsWith('The same pairs')")
        page.locator("#mask-error").wait_for(state="hidden")
        box = page.locator("#mask-cells").bounding_box()
        assert box is not None
        size = (box["width"] - 30) / 16
        page.mouse.move(box["x"] + 30 + 10.5 * size, box["y"] + 20 + 2.5 * size)
        page.mouse.down()
        page.mouse.move(box["x"] + 30 + 12.5 * size, box["y"] + 20 + 2.5 * size, steps=4)
        page.mouse.up()
        until(page, "document.getElementById('mask-diff').textContent.includes('3 only here')")
        assert page.input_value("#expression").startswith("ranges([[0, 0], [0, 0], [0, 10]")
        page.fill("#expression", "causal()")
        until(page, "document.getElementById('mask-diff').textContent.startsWith('The same pairs')")
        page.locator("#mask-cells").focus()
        for key in ("Home", "ArrowUp", "ArrowUp", "ArrowRight", " "):
            page.keyboard.press(key)
        until(page, "document.getElementById('mask-diff').textContent.includes('1 only here')")
        assert page.inner_text("#mask-said") == "Query 0 may hear key 1."
        page.fill("#mask-length", "200")
        page.fill("#expression", "causal()")
        until(page, "document.getElementById('mask-legend').textContent.includes('first 96 of 200')")
        page.keyboard.press("Tab")
        page.locator("#mask-cells").focus()
        page.keyboard.press(" ")
        assert "Choose a length of at most 96 to draw." in page.inner_text("#mask-said")
        page.fill("#expression", "window(2)")
        page.click("#mask-run")
        until(page, "document.getElementById('title').textContent.includes('window(2)')")
        idle(page)
        assert page.locator("#view-compare #maps").count() == 1
        assert "little & window(2)" in page.inner_text("#compared-said")


def test_writing_with_and_without_the_mask(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        open_view(page, "write")
        page.fill("#new-tokens", "8")
        page.check("#beside")
        page.click("#write")
        until(page, "document.querySelectorAll('#pages .new').length === 16")
        idle(page)
        assert page.locator("#pages h3").all_inner_texts() == ["with the mask", "without the mask"]
        token = page.locator("#pages .new").nth(3)
        token.hover()
        assert "had a probability of" in page.locator("#pages .said").first.inner_text()
        assert page.locator("#pages .bars").first.locator("li").count() == 8


def test_writing_can_be_stopped(browser: Browser):
    slow = model()
    slow.model.register_forward_pre_hook(lambda *_: time.sleep(0.05))
    with Studio([slow], [], text="I love") as running, opened(browser, running) as page:
        open_view(page, "write")
        page.fill("#new-tokens", "240")
        page.click("#write")
        until(page, "document.querySelectorAll('#pages .new').length > 2")
        page.click("#write-stop")
        idle(page)
        assert page.locator("#pages .new").count() < 240
        assert page.is_enabled("#write")


def test_cutting_and_ranking(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        open_view(page, "cut")
        page.select_option("#cut-layer", "1")
        page.select_option("#cut-head", "1")
        page.select_option("#cut-key", "4")
        page.click("#cut-add")
        page.locator("#cut-result li").first.wait_for()
        assert page.inner_text("#cuts") == "✕ layer 1, head 1: every query → key 4 “v”"
        assert re.search(r"The loss of the text goes from 5\.\d+ to 5\.\d+", page.inner_text("#cut-result"))
        page.click("#rank-tokens")
        page.locator("#ranked tbody tr").first.wait_for()
        assert page.locator("#ranked tbody tr").count() == 24
        page.click("#rank-links")
        until(page, "document.getElementById('ranked').textContent.includes('links of this word')")
        page.click("#rank-heads")
        until(page, "document.querySelectorAll('#ranked tbody tr').length === 4")
        page.locator("#ranked .plain").first.click()
        until(page, "document.querySelectorAll('#cuts li').length === 2")
        idle(page)
        page.click("#cut-clear")
        assert page.locator("#cuts li").count() == 0


def test_the_audit_ends_with_a_verdict(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        open_view(page, "peek")
        page.locator("#peek-text button").nth(5).click()
        until(page, "document.getElementById('peek-said').textContent.includes('No earlier output moved')")
        page.click("#peek")
        page.locator(".verdict").wait_for()
        assert page.inner_text(".verdict .badge") == "PROVEN"
        assert page.locator("#checks .passed").count() >= 6
        with page.expect_download() as download:
            page.click("#peek-save")
        assert download.value.suggested_filename == "audit.html"


def test_two_models_are_compared(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        open_view(page, "compare")
        page.select_option("#compare-second", "other")
        page.click("#compare")
        until(page, "document.getElementById('title').textContent.includes('other')")
        idle(page)
        assert page.inner_text("#title") == "What changed from little to other"
        for side, title in (("second", "other"), ("first", "little"), ("change", "What changed from little to other")):
            page.click(f"#sides [value={side}]")
            until(page, f"document.getElementById('title').textContent === {title!r}")
            idle(page)
        # Back in the first view, the maps are those of one model again.
        open_view(page, "read")
        until(page, "document.getElementById('title').textContent === 'little'")


def test_the_tour_moves_the_page(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        open_view(page, "learn")
        assert page.locator("#tour li").count() == 9
        page.evaluate("document.getElementById('new-tokens').value = 4")
        page.click("#tour-start")
        until(page, "document.getElementById('mask-ranges').textContent.includes('Alex')")
        assert page.inner_text("#h-guide") == "1 of 9 Only look back"
        page.locator("#mask-cells").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert page.inner_text("#mask-said") == "Emma may hear Frank."
        page.click("#guide-next")
        frame = page.frame_locator("#example-frame iframe")
        assert frame.locator("h1").inner_text() == "Four people recommend a restaurant, one after the other"
        with page.expect_download() as download:
            page.click("#example-save")
        assert download.value.suggested_filename == "restaurant.html"
        page.click("#guide-next")
        until(page, "document.getElementById('facts').textContent.includes('7 positions')")
        idle(page)
        page.click("#guide-next")
        until(page, "document.getElementById('mask-ranges').textContent.includes('sushi')")
        page.click("#guide-next")
        page.locator("#why-card").wait_for()
        idle(page)
        assert "not this one" in page.inner_text("#why")
        # It stands above the maps, below the words that speak of it.
        top = "document.getElementById({!r}).getBoundingClientRect().top".format
        assert page.evaluate(f"{top('guide')} < {top('why-card')} && {top('why-card')} < {top('all-heads')}")
        page.uncheck("#why-mask")
        assert "every key is heard" in page.inner_text("#why")
        page.click("#guide-next")
        page.click("#guide-more >> text=BERT")
        until(page, "document.getElementById('mask-diff').textContent.includes('66 only here')")
        page.click("#guide-next")
        idle(page)
        page.click("#guide-next")
        until(page, "document.querySelectorAll('#pages .new').length === 8")
        idle(page)
        page.click("#guide-next")
        page.locator(".verdict").wait_for()
        page.click("#guide-next")
        assert page.locator("#guide").is_hidden()
        assert page.locator("#view-learn").is_visible()
        assert page.locator("#why-card.told").count() == 0


def test_an_address_restores_the_view(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        page.fill("#input", "abc def")
        until(page, "document.getElementById('facts').textContent.includes('7 positions')")
        idle(page)
        page.select_option("#layer", "1")
        page.select_option("#head", "1")
        page.locator("#main").focus()
        page.keyboard.press("2")
        idle(page)
        fragment = page.evaluate("location.hash")
    with opened(browser, studio, fragment) as page:
        assert page.input_value("#input") == "abc def"
        assert page.locator("#view-mask").is_visible()
        page.click("#tab-read")
        assert page.inner_text("#h-head") == "Layer 1, head 1"


def test_an_address_restores_what_was_chosen(browser: Browser, studio: Studio):
    def fragment_of(page: Page, part: str) -> str:
        until(page, f"location.hash.includes({part!r})")
        return page.evaluate("location.hash")

    with opened(browser, studio) as page:
        page.locator("#board").focus()
        page.keyboard.press("+")
        page.locator("#text button").nth(20).click()
        idle(page)
        reading, zoomed = page.inner_text("#reading"), fragment_of(page, "pair=20")
        open_view(page, "cut")
        page.select_option("#cut-key", "4")
        page.click("#cut-add")
        page.locator("#cut-result li").first.wait_for()
        idle(page)
        result, cut = page.inner_text("#cut-result"), fragment_of(page, "cuts=")
        open_view(page, "compare")
        page.select_option("#compare-first", "other")
        page.fill("#compare-second-mask", "window(3)")
        page.click("#compare")
        page.locator("#compared-said table").wait_for()
        page.click("#sides [value=second]")
        until(page, "document.getElementById('title').textContent === 'other & window(3)'")
        idle(page)
        compared = fragment_of(page, "compared=second")
    with opened(browser, studio, zoomed) as page:
        assert page.inner_text("#reading") == reading
        assert page.is_enabled("#whole")
        page.locator("#why-card").wait_for()
    with opened(browser, studio, cut) as page:
        assert page.inner_text("#cut-result") == result
    with opened(browser, studio, compared) as page:
        assert page.inner_text("#title") == "other & window(3)"
        assert page.inner_text("#compared-said").count("other") == 2
    with opened(browser, studio, "#view=write&temperature=0.5&beside=1&stop-text=.") as page:
        assert page.input_value("#temperature") == "0.5"
        assert (page.is_checked("#beside"), page.input_value("#stop-text")) == (True, ".")
    with opened(browser, studio, "#step=2") as page:
        page.locator("#example-frame iframe").wait_for()
    with opened(browser, studio, "#view=nothing&layer=9&head=x&pair=1&zoom=5+1+2&cuts=a,,9&step=99x") as page:
        assert page.locator("#guide").is_visible()


def test_a_witness_is_replayed_on_the_text(browser: Browser):
    torch.manual_seed(0)
    ahead = BERT(BERTConfig(vocab_size=257, context=64, layers=1, heads=2, width=16)).eval()
    with (
        Studio([TextModel("ahead", ahead, ByteTokenizer())], [], text=TEXT) as running,
        opened(browser, running) as page,
    ):
        assert page.locator("#said-card").is_hidden()
        open_view(page, "peek")
        page.click("#peek")
        page.locator(".verdict").wait_for()
        assert page.inner_text(".verdict .badge") == "LEAKS"
        assert page.inner_text("#verdict pre") == "heard = self.attend("
        page.locator("text=Replay on the text").first.click()
        until(page, "document.getElementById('peek-said').textContent.includes('the model looks ahead')")
        open_view(page, "cut")
        assert page.inner_text("#cut-lead").startswith("ahead does not predict the next token")


def test_checkpoints_are_a_slider(browser: Browser, tmp_path: Path):
    for step in (10, 20, 30):
        torch.manual_seed(step)
        inner = GPT(GPTConfig(vocab_size=257, context=64, layers=1, heads=2, width=16))
        folder = tmp_path / "run" / f"step-{step:06}"
        inner.save_pretrained(folder)
        ByteTokenizer().save(folder)
    with Studio([], [tmp_path / "run"], text=TEXT) as running, opened(browser, running) as page:
        open_view(page, "compare")
        assert page.input_value("#compare-first") == "run at step 10"
        assert page.inner_text("#step-name") == "step 30, beside step 10"
        page.locator("#steps").focus()
        page.keyboard.press("ArrowLeft")
        until(
            page,
            "document.getElementById('title').textContent === 'What changed from run at step 10 to run at step 20'",
        )
        idle(page)
        page.click("#sides [value=second]")
        until(page, "document.getElementById('title').textContent === 'run at step 20'")
        # The slider moves the side that is shown.
        page.locator("#steps").focus()
        page.keyboard.press("ArrowRight")
        until(page, "document.getElementById('title').textContent === 'run at step 30'")
        idle(page)


class Notebook(BaseHTTPRequestHandler):
    """A page on another port with the studio in a frame, as a notebook shows it."""

    studio: Studio

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        # Browsers ask for an icon by themselves.
        if self.path == "/":
            self.wfile.write(f"<!doctype html><link rel=icon href='data:,'>{self.studio._repr_html_()}".encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_in_the_frame_of_a_notebook(browser: Browser, studio: Studio):
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Notebook,), {"studio": studio}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    context = browser.new_context(**DESK)
    context.set_default_timeout(20_000)
    troubles: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    # Another name of this machine is another site: cookies of the studio are not sent.
    page.goto(f"http://localhost:{server.server_port}/")
    frame = page.frame_locator("iframe").first
    frame.locator("body[data-ready]").wait_for()
    assert frame.locator("#facts").inner_text() == "2 layers, 4 heads · 37 positions"
    assert context.cookies() == []
    frame.locator("#text button").nth(5).click()
    frame.locator("#why-card").wait_for()
    frame.locator("#why-steps").click()
    assert "Layer" in frame.frame_locator("#why-frame iframe").locator("h1").inner_text()
    with page.expect_download() as download:
        frame.locator("#save").click()
    assert download.value.suggested_filename == "attention.html"
    context.close()
    server.shutdown()
    server.server_close()
    assert troubles == []


def test_saving_as_one_file(browser: Browser, studio: Studio, tmp_path: Path):
    with opened(browser, studio) as page:
        with page.expect_download() as download:
            page.click("#save")
        download.value.save_as(tmp_path / "attention.html")
    assert (tmp_path / "attention.html").read_text().startswith("<!doctype html>")


def test_a_phone_in_the_dark(browser: Browser, studio: Studio):
    # The pieces of numbers that begin a line of their own.
    broken = """() => [...document.querySelectorAll(".steps-of .number, .together")].flatMap((each) => {
      const range = document.createRange();
      range.selectNodeContents(each);
      const feet = [...range.getClientRects()].map(({ bottom }) => bottom);
      return Math.max(...feet) - Math.min(...feet) > 10 ? [each.textContent] : [];
    })"""
    with opened(browser, studio, **PHONE) as page:
        page.locator("#text button").nth(5).tap()
        page.locator("#why-card").wait_for()
        idle(page)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.evaluate(broken) == []
        open_view(page, "compare")
        page.click("#compare")
        page.locator("#compared-said table").wait_for()
        assert page.locator(".together").count() == 8
        assert page.evaluate(broken) == []
        open_view(page, "mask")
        until(page, "document.getElementById('mask-said').textContent.startsWith('Tap a cell')")
        for name in ("mask", "write", "cut", "peek", "compare", "learn"):
            open_view(page, name)
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name


def test_an_error_goes_away_with_its_view(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        open_view(page, "write")
        page.fill("#temperature", "")
        page.click("#write")
        until(page, "document.getElementById('status').classList.contains('error')")
        assert page.inner_text("#status") == "temperature: expected a number from 0 to 10, got none."
        page.fill("#temperature", "1")
        page.fill("#new-tokens", "1.5")
        page.click("#write")
        until(page, "document.getElementById('status').textContent.startsWith('tokens: expected a whole number')")
        page.locator("#main").focus()
        page.keyboard.press("4")
        page.locator("#status").wait_for(state="hidden")


def test_long_words_stay_on_a_phone(browser: Browser):
    torch.manual_seed(0)
    text = "Donaudampfschifffahrtsgesellschaftskapitaenspatent supercalifragilisticexpialidocious"
    tokenizer = BPETokenizer.train([f"{text} " * 30], vocab_size=380)
    config = GPTConfig(vocab_size=tokenizer.vocab_size, context=64, layers=1, heads=2, width=16)
    long = TextModel("a-folder-with-a-name-that-is-" + "long-" * 8, GPT(config).eval(), tokenizer)
    with Studio([long], [], text=f"{text} {text}") as running, opened(browser, running, **PHONE) as page:
        # A page that is too wide makes the window of a phone wider.
        fits = f"Math.max(document.documentElement.scrollWidth, innerWidth) === {PHONE['viewport']['width']}"
        assert page.locator("#text button").count() < 8
        assert page.evaluate(fits)
        open_view(page, "cut")
        page.click("#cut-add")
        page.locator("#cut-result li").first.wait_for()
        page.click("#rank-tokens")
        page.locator("#ranked tbody tr").first.wait_for()
        assert page.evaluate(fits)
        open_view(page, "write")
        page.fill("#new-tokens", "6")
        page.click("#write")
        until(page, "document.querySelectorAll('#pages .new').length === 6")
        assert page.evaluate(fits)
        open_view(page, "compare")
        page.click("#compare")
        page.locator("#compared-said table").wait_for()
        assert page.evaluate(fits)


@pytest.mark.parametrize("width", [861, 1024, 1101, 1280])
def test_every_view_is_in_the_bar(browser: Browser, studio: Studio, width: int):
    with opened(browser, studio, viewport={"width": width, "height": 800}) as page:
        assert page.evaluate(
            "(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)(document.getElementById('tabs'))"
        )


def test_every_control_has_a_name(browser: Browser, studio: Studio):
    with opened(browser, studio) as page:
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, textarea, canvas[tabindex]")].filter((e) => {
              const named = e.labels?.length || e.ariaLabel || e.textContent.trim() || e.title;
              return !(named || e.getAttribute("aria-describedby"));
            }).map((e) => e.id)"""
        )
        assert unnamed == []


# The words whose contrast with what is behind them is below that of WCAG 2, level AA.
TOO_FAINT = """() => {
  const channels = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return colour.startsWith("color(") ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
  };
  const linear = (x) => (x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4);
  const light = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const hasWords = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!hasWords || !element.checkVisibility() || element.disabled || element.tagName === "OPTION") continue;
    const behind = [];
    for (let each = element; each; each = each.parentElement) {
      const colour = channels(getComputedStyle(each).backgroundColor);
      if (colour[3]) behind.unshift(colour);
      if (colour[3] === 1) break;
    }
    const onto = (under, over) => under.map((x, n) => over[n] * over[3] + x * (1 - over[3]));
    const paper = behind.reduce(onto, [255, 255, 255]);
    const [dark, bright] = [light(channels(getComputedStyle(element).color)), light(paper)].sort((a, b) => a - b);
    const ratio = (bright + 0.05) / (dark + 0.05);
    if (ratio < 4.5) faint.push(`${element.tagName} ${element.parentElement.id} ${element.textContent} ${ratio}`);
  }
  return faint;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read(browser: Browser, studio: Studio, scheme: str):
    with opened(browser, studio, **DESK, color_scheme=scheme) as page:
        page.check("#surprise")
        page.locator("#text button").nth(20).click()
        page.locator("#why-card").wait_for()
        idle(page)
        assert page.evaluate(TOO_FAINT) == []
        open_view(page, "write")
        page.fill("#new-tokens", "4")
        page.click("#write")
        until(page, "document.querySelectorAll('#pages .new').length === 4")
        open_view(page, "cut")
        page.click("#rank-tokens")
        page.locator("#ranked tbody tr").first.wait_for()
        open_view(page, "peek")
        page.locator("#peek-text button").nth(5).click()
        page.click("#peek")
        page.locator(".verdict").wait_for()
        for name in ("mask", "write", "cut", "peek", "compare", "learn"):
            open_view(page, name)
            assert page.evaluate(TOO_FAINT) == [], name


def test_a_long_text_stays_responsive(browser: Browser):
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=257, context=1 << 17, layers=1, heads=1, width=8, positions="rotary")
    long = TextModel("long", GPT(config).eval(), ByteTokenizer())
    with Studio([long], [], text="start") as running, opened(browser, running) as page:
        page.evaluate("document.getElementById('input').value = 'All work and no play. '.repeat(500)")
        page.evaluate("document.getElementById('input').dispatchEvent(new Event('input'))")
        until(page, "document.getElementById('facts').textContent.includes('11,000 positions')")
        idle(page)
        # The scale begins below the weights of a long row, and large numbers are written out.
        assert "from under 0.001 %" in (page.get_attribute("#ramp", "aria-label") or "")
        assert re.fullmatch(r"\d,\d{3}", page.inner_text("#figures [data-figure=distance]"))
        page.locator("#board").focus()
        page.evaluate(
            """() => {
              window.frames_drawn = 0;
              const tick = () => { window.frames_drawn += 1; requestAnimationFrame(tick); };
              tick();
            }"""
        )
        for _ in range(8):
            page.keyboard.press("+")
            page.wait_for_timeout(100)
        frames = page.evaluate("() => window.frames_drawn")
        assert frames > 10
        until(page, "Number(document.getElementById('board').dataset.bin) < 43")
