"""The site is built as `make docs` builds it, with every warning an error, and read in a browser without a network."""

import doctest
import importlib
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import rearview
from tests.browser import a_browser
from tests.docs.markdown import ROOT, blocks_of, pages

# Elements whose address is fetched when the page is shown; the address of an <a> is fetched when it is chosen.
FETCHED = {"src", "srcset", "poster", "data"}
FETCHED_LINKS = {"stylesheet", "icon", "preconnect", "preload", "modulepreload", "prefetch", "dns-prefetch", "manifest"}
# Packages whose every name is public, besides those that `rearview` itself offers.
PUBLIC = ["masks.exchange", "integrations.transformers"]


class Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self.anchors, self.links, self.loaded = set[str](), set[str](), set[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.loaded |= {given[name] for name in FETCHED if name in given}
        if tag == "link" and FETCHED_LINKS & set(given.get("rel", "").split()):
            self.loaded.add(given["href"])
        elif tag in ("a", "link") and "href" in given:
            self.links.add(given["href"])


class Site:
    """A built site."""

    def __init__(self, folder: Path):
        self.folder = folder

    @cached_property
    def pages(self) -> dict[Path, Page]:
        # 404.html is for a server, and has addresses from its root.
        return {path: Page(path) for path in sorted(self.folder.rglob("*.html")) if path.name != "404.html"}

    def page(self, name: str) -> Page:
        return self.pages[self.folder / name]

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["commands", "dialect", "docstrings", "reference", "results", "sources"])
def test_examples_of_the_builder_run(name: str):
    result = doctest.testmod(importlib.import_module(f"website.{name}"))
    assert result.failed == 0
    assert result.attempted > 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=600,
    )
    assert built.returncode == 0, built.stdout
    # With --quiet, mkdocs counts no warnings, and --strict has no effect.
    assert "INFO" in built.stdout
    assert "WARNING" not in built.stdout
    return Site(folder)


def test_every_link_and_anchor_leads_somewhere(site: Site):
    dead = list[str]()
    count = 0
    for path, page in site.pages.items():
        for link in page.links | page.loaded:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            count += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                dead.append(f"{path.relative_to(site.folder)}: {link}")
            elif parts.fragment and unquote(parts.fragment) not in site.pages[target].anchors:
                dead.append(f"{path.relative_to(site.folder)}: {link} has no such anchor")
    assert count > 1000, "the reader of links finds none"
    assert dead == []


def test_no_page_loads_anything_from_another_host(site: Site):
    for path, page in site.pages.items():
        foreign = [each for each in page.loaded if urlsplit(each).scheme not in ("", "data") or each.startswith("//")]
        assert foreign == [], path
    for style in site.folder.rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import )\s*[\"']?([^\"')\s]+)", style.read_text(encoding="utf-8"))
        assert [each for each in addresses if re.match(r"(?:https?:)?//", each)] == [], style


def test_every_public_name_is_in_the_reference(site: Site):
    anchors = set[str]().union(*(page.anchors for path, page in site.pages.items() if path.parent.name == "reference"))
    overview = site.page("reference/index.html")
    shown = {link.rpartition(".")[2] for link in overview.links if "#rearview." in link}
    assert set(rearview.__all__) <= shown
    packages = [
        name for name in [*rearview._PARTS, *PUBLIC] if hasattr(importlib.import_module(f"rearview.{name}"), "__all__")
    ]
    assert {"masks", "attention", "auditing", "models", "testing", "errors"} <= set(packages)
    names = {
        f"rearview.{part}.{name}" for part in packages for name in importlib.import_module(f"rearview.{part}").__all__
    }
    assert names - anchors == set()


def test_what_the_pages_import_is_in_the_reference(site: Site):
    anchors = set[str]().union(*(page.anchors for path, page in site.pages.items() if path.parent.name == "reference"))
    missing = set[str]()
    count = 0
    for page in pages():
        code = "".join(
            block.text for block in blocks_of(page.read_text(encoding="utf-8")) if block.language == "python"
        )
        for module, names in re.findall(r"from rearview\.([\w.]+) import ([\w, ]+)", code):
            for name in filter(None, names.replace(" ", "").split(",")):
                count += 1
                # An engine is a module, which its guide describes.
                if module != "attention.engines" and f"rearview.{module}.{name}" not in anchors:
                    missing.add(f"{page.name}: rearview.{module}.{name}")
    assert count > 30
    assert missing == set()


def test_every_verb_has_a_page_with_every_option(site: Site, monkeypatch: pytest.MonkeyPatch):
    from rearview.cli import run
    from rearview.cli.verbs import VERBS

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    for verb in VERBS:
        with redirect_stdout(io.StringIO()) as said:
            assert run([verb, "--help"]) == 0
        options = set(re.findall(r"^│ +(--[a-z-]+)", said.getvalue(), flags=re.MULTILINE)) - {"--help"}
        text = site.text(f"cli/{verb}.html")
        assert {option for option in options if f"<code>{option}</code>" not in text} == set(), verb
    # Its help has two subcommands.
    assert "rearview mask diff" in site.text("cli/mask.html")


def test_results_are_listed_newest_first(site: Site):
    text = site.text("benchmarks/index.html")
    shown = re.findall(r'<td[^>]*><a href="(\d{4}-\d\d-\d\d[^"]*)\.html">', text)
    files = (ROOT / "bench" / "results").glob("2*.md")
    assert sorted(shown) == sorted(path.stem for path in files)
    dates = [name[:10] for name in shown]
    assert dates == sorted(dates, reverse=True)


def test_notebooks_are_stored_without_outputs_and_shown_with_them(site: Site):
    notebooks = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert len(notebooks) == 3
    for path in notebooks:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells if "outputs" in cell)
        assert (site.folder / "notebooks" / path.name).is_file()
        assert f"notebooks/{path.stem}.html" in site.page("index.html").links
    masks, audit, look = (
        re.sub(r"<[^>]*>", "", site.text(f"notebooks/{name}.html"))
        for name in ("masks-and-attend", "audit-your-model", "look-at-attention")
    )
    assert "(True, False)" in masks  # the first document did not change, the others did
    assert "Verdict.PROVEN" in audit.replace("&lt;", "<")
    assert "LEAKS" in audit
    assert "[7, 7, 7, 7, 7, 7, 7]" in look
    # Where the token can no longer be seen, the loss is far above that of a guess, 2.8.
    losses = dict(re.findall(r"window\((\d)\)  loss (\d+\.\d)", look))
    assert float(losses["8"]) < 0.1 < 2.8 < float(losses["7"])


@pytest.mark.parametrize("width", [390, 1400])
def test_the_site_is_read_without_a_network(site: Site, width: int):
    names = ["index.html", "masks.html", "reference/attention.html", "notebooks/look-at-attention.html"]
    with a_browser() as browser:
        context = browser.new_context(viewport={"width": width, "height": 900})
        context.set_offline(True)
        context.set_default_timeout(60_000)
        troubles, asked = list[str](), set[str]()
        page = context.new_page()
        page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: asked.add(urlsplit(request.url).scheme))
        for name in names:
            page.goto((site.folder / name).as_uri())
            page.wait_for_load_state("load")
            # Wide tables and code are scrolled within the page.
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        # A rich output works: the second step of the explanation.
        frame = page.frame_locator("iframe").first
        frame.get_by_role("button", name="Q", exact=True).click()
        frame.get_by_text("Step 2 of 9").wait_for()
        if width == 390:
            page.locator("label.md-header__button[for=__search]").click()
        page.locator(".md-search__input").press_sequentially("polarity")
        page.locator(".md-search-result__item").first.wait_for()
        assert any(
            "exchange.html" in (link or "")
            for link in page.locator(".md-search-result__link").evaluate_all("all => all.map(a => a.href)")
        )
        context.close()
    assert troubles == []
    assert asked <= {"file", "about", "data", "blob"}
