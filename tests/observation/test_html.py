"""The page as text: it needs nothing from outside, carries the observed numbers, and is no larger than allowed."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rearview import causal, window
from rearview.errors import BadArgument, RearviewError
from rearview.observation import Observation, observe
from rearview.observation.views.html import framed, page
from tests.observation import observations
from tests.observation.models import gpt, tokens

HOSTILE = "</script><script>alert(1)</script>{{script}}"


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_needs_nothing_from_outside():
    text = page(observations.seen())
    forbidden = (
        r"https?:|//[a-z]+\.|@import|url\(|\beval\b|new Function|innerHTML|outerHTML|document\.write|fetch\(|"
        r"<(?:link|img|iframe)"
    )
    assert not re.findall(forbidden, text)
    assert not re.findall(r"<[^>]+\s(?:src|href|style|on\w+)=", text.partition('<script type="module">')[0])


def test_the_policy_lets_run_only_what_the_page_holds():
    text = page(observations.seen())
    style, script = re.search(r"<style>(.*?)</style>", text, re.DOTALL), text.partition('<script type="module">')[2]
    assert style
    for piece in (style[1], script.partition("</script>")[0]):
        digest = base64.b64encode(hashlib.sha256(piece.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in text
    assert "default-src 'none'" in text
    assert "unsafe" not in text


def test_labels_and_titles_stay_text():
    seen = observations.seen(3, words=False, title=HOSTILE)
    seen.labels = [HOSTILE, "a", "b"]
    text = page(seen)
    assert text.count("<script") == 2
    data = data_of(text)
    assert (data["title"], data["labels"][0][0]) == (HOSTILE, HOSTILE)


def test_the_numbers_are_those_of_the_observation():
    seen = observations.seen(12, title="mine")
    data = data_of(page(seen))
    assert (data["kind"], data["title"], data["facts"]) == ("seen", "mine", ["2 layers, 6 heads", "12 positions"])
    assert data["notes"] == []
    for n, layer in enumerate(data["layers"]):
        assert (layer["name"], layer["bin"], layer["rows"], layer["columns"]) == (f"blocks.{n}.attention", 1, 12, 12)
        assert layer["resolution"] == "One cell is one query and one key, with its exact weight."
        for head in layer["heads"]:
            sinks = [float(seen.sinks(k, n, head["head"])) for k in (1, 4, 8)]
            assert [head["figures"][f"first_{k}"] for k in (1, 4, 8)] == pytest.approx(sinks, rel=1e-5)
            links = [link for link in seen.links(n, head["head"], k=32) if link.query][:20]
            assert head["links"] == [[a.query, a.key, pytest.approx(a.weight, rel=1e-6)] for a in links]
            assert head["sentences"]
    assert [*data["labels"]] == [["<s>", *(f"␣{word.strip()}" for word in observations.labels(12)[1:])]]


def test_bins_are_stated_and_kept_calls_give_exact_maps():
    model, ids = gpt(), tokens(40, batch=1)
    with observe(model, map_size=8) as seen:
        model(ids)
    assert {layer["bin"] for layer in data_of(page(seen))["layers"]} == {1}
    with observe(model, map_size=8, keep=None) as seen:
        model(ids)
    layer = data_of(page(seen))["layers"][1]
    assert layer["bin"] == 5
    assert layer["resolution"] == (
        "Bins of 5 tokens: one cell is 5 queries x 5 keys, the sum over keys and the mean over queries."
    )
    assert layer["elsewhere"] == "Queries and keys were not kept, so there are no exact weights."


def test_a_page_stays_below_its_size():
    seen = observations.seen(200, layers=4, heads=8, map_size=200)
    roomy, empty = page(seen), page(observations.seen(2, layers=1, heads=1))
    assert data_of(roomy)["notes"] == []
    assert data_of(roomy)["layers"][0]["arrays"]["map"]["code"] == "f4"
    sizes = []
    for room in (1_500_000, 400_000, len(empty) + 120_000):
        text = page(seen, max_bytes=room)
        assert len(text) <= room
        data = data_of(text)
        assert "stored with three digits" in data["notes"][-1]
        sizes.append(data["layers"][0]["rows"])
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]
    assert re.match(r"To keep the page small, its maps have up to \d+ bins per side instead of 200\.", data["notes"][0])
    with pytest.raises(BadArgument, match=r"max_bytes: expected room for the page, got 1,000; the smallest page has"):
        page(seen, max_bytes=1000)


def test_it_is_written_in_one_step(tmp_path: Path):
    seen = observations.seen()
    path = tmp_path / "seen.html"
    assert seen.to_html(path) == path
    assert path.read_text() == seen.to_html()
    assert [each.name for each in tmp_path.iterdir()] == ["seen.html"]
    target = tmp_path / "seen.txt"
    with pytest.raises(BadArgument) as caught:
        seen.to_html(target)
    assert str(caught.value) == f"path: expected a name that ends in .html, got '.txt' ({target})."
    with pytest.raises(BadArgument, match=r"title: expected a string, got 3"):
        page(seen, title=3)  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert data_of(page(seen, title="Other"))["title"] == "Other"


def test_items_of_a_batch_have_pages_of_their_own():
    model, ids = gpt(), tokens(10)
    with observe(model) as seen:
        model(ids)
    first, second = data_of(page(seen)), data_of(page(seen, item=1))
    assert second["facts"][-1] == "item 1 of a batch of 2"
    assert second["layers"][0]["heads"][0]["figures"]["entropy"] == pytest.approx(
        float(seen.entropy(0, 0, item=1).mean()), rel=1e-5
    )
    assert first["layers"] != second["layers"]
    with pytest.raises(BadArgument, match="item: expected a batch item from 0 to 1, got 2"):
        page(seen, item=2)


def test_a_difference_has_a_page_too():
    before, after = observations.seen(12, title="one"), observations.seen(12, mask=causal() & window(4), title="two")
    diff = before.diff(after)
    data = data_of(page(diff))
    assert (data["kind"], data["title"], data["scales"]) == ("diff", "What changed from one to two", ["linear", "log"])
    for n, layer in enumerate(diff.layers):
        found = [head["figures"] for head in data["layers"][n]["heads"]]
        for name in ("moved", "largest", "entropy", "sinks"):
            assert [each[name] for each in found] == pytest.approx(getattr(layer, name).tolist(), rel=1e-5, abs=1e-9)
        # JSON has no infinity.
        assert [each["kl"] for each in found] == [None] * 3
    with pytest.raises(BadArgument, match=r"item: expected 0, that of the difference, got 1"):
        page(diff, item=1)


def test_an_empty_observation_is_refused():
    with pytest.raises(RearviewError, match="Nothing was observed"):
        page(Observation())


def test_a_notebook_shows_it_in_a_frame():
    seen = observations.seen()
    text = framed(seen)
    assert text == seen._repr_html_()
    assert text.startswith("<iframe")
    assert 'sandbox="allow-scripts"' in text
    many = observations.seen(300, layers=8, heads=16, map_size=150)
    assert len(framed(many)) < 2_400_000
