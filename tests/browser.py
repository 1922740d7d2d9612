"""A real browser for pages: the system's chromium, driven by Playwright, with the network off.

Without a browser the tests are skipped with a reason; in CI (if the variable CI is set) they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextmanager
def a_browser() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _without("playwright is not installed: make setup")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield browser
        browser.close()


def chromium() -> str:
    """The path of the browser: REARVIEW_CHROMIUM, or the first of the usual names on PATH."""
    named = os.environ.get("REARVIEW_CHROMIUM")
    found = next(filter(None, map(shutil.which, [named] if named else NAMES)), None)
    if found is None:
        _without(
            f"no browser: REARVIEW_CHROMIUM={named}" if named else f"no browser: none of {', '.join(NAMES)} on PATH"
        )
    return found


def _without(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{reason}. In CI the browser tests may not be skipped.")
    pytest.skip(reason)


@contextmanager
def offline(browser: Browser, path: Path, fragment: str = "", **settings: Any) -> Iterator[Page]:
    """The file, opened with the network off. An error, a message or a request that the page makes is a failure."""
    context = browser.new_context(**settings)
    context.set_offline(True)
    context.set_default_timeout(20_000)
    troubles: list[str] = []
    asked: list[str] = []
    context.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
    page = context.new_page()
    page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    address = path.as_uri() + fragment
    page.goto(address)
    yield page
    context.close()
    assert troubles == []
    assert {url.partition("#")[0] for url in asked} <= {path.as_uri(), "about:srcdoc"}
