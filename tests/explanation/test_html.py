"""The HTML of the page: it loads nothing, contains every number in full, and escapes labels."""

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
import torch

from rearview import causal, explain, full, prefix
from rearview.explanation import Trace
from rearview.explanation.html import to_html, to_notebook

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'&<!--",
    "寿司",
    "{{script}}",
    "\u2028",
]


def a_trace(**changes: Any) -> Trace:
    x, *weights = (torch.randn(4, 6, dtype=torch.float64), *torch.randn(3, 6, 4, dtype=torch.float64))
    return explain(x, *weights, **{"positions": "sinusoidal", "labels": "I love sushi today", **changes})


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.open: tuple[str, dict[str, str | None]] = ("", {})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open = (tag, dict(attrs))
        self.tags.append(self.open)

    def handle_endtag(self, tag: str) -> None:
        self.open = ("", {})

    def handle_data(self, data: str) -> None:
        tag, attributes = self.open
        name = f"{tag}#{attributes.get('id')}" if tag == "script" and attributes.get("id") else tag
        self.texts[name] = self.texts.get(name, "") + data


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def data_of(page: str) -> dict[str, Any]:
    return json.loads(parsed(page).texts["script#data"])


def test_the_page_needs_nothing_from_outside():
    page = to_html(a_trace())
    assert not re.findall(
        r"https?:|//[a-z]+\.|@import|url\(|\beval\b|new Function|innerHTML|outerHTML|document\.write", page
    )
    for tag, attributes in parsed(page).tags:
        assert not {"src", "href", "srcset", "style", "onclick", "onload"} & attributes.keys(), tag
        assert tag not in ("link", "iframe", "object", "embed", "img", "base", "form")


def test_the_policy_lets_only_its_own_style_and_script_run():
    tags = parsed(page := to_html(a_trace()))
    policy = next(a["content"] for tag, a in tags.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for kind in ("style", "script"):
        source = tags.texts[kind]
        assert f">{source}</{kind}>" in page
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy


@pytest.mark.parametrize(
    "trace",
    [
        lambda: a_trace(),
        lambda: a_trace(num_heads=2, w_o=torch.randn(4, 3)),
        lambda: a_trace(positions="rotary", mask=causal() & ~prefix(1)),
        lambda: a_trace(positions=None, mask=full()),
    ],
    ids=["positions", "heads", "silent row", "full"],
)
def test_every_number_of_the_trace_is_in_the_page_exactly(trace: Any):
    trace = trace()
    data = data_of(to_html(trace))
    # float() reads a number as well as "-inf".
    matrices = [[[float(number) for number in row] for row in matrix] for matrix in data["matrices"]]
    assert [stage["key"] for stage in data["stages"]] == [stage.key for stage in trace.stages]
    for stage, written in zip(trace.stages, data["stages"], strict=True):
        assert [matrices[place] for place in written["with"]["matrix"]] == stage.matrix.tolist()
        assert (written["rows"], written["columns"]) == (list(stage.rows), list(stage.columns))
        assert written["with"]["formula"] == stage.formula
        if stage.unmasked is None:
            assert written["without"] is None
        else:
            assert [matrices[place] for place in written["without"]["matrix"]] == stage.unmasked.tolist()
    assert [[[seen == "1" for seen in row] for row in head] for head in data["visible"]] == trace.visible.tolist()
    assert data["scale"] == trace.scale
    for head, spoken in enumerate(data["spoken"]):
        for which, masked in (("with", True), ("without", False)):
            assert [row["sentence"] for row in spoken[which]] == [
                r.sentence for r in trace.readings(head, masked=masked)
            ]
        assert [key["sentence"] for key in spoken["received"]] == [r.sentence for r in trace.received(head)]
        assert spoken["remarks"] == list(trace.remarks(head))


def test_equal_matrices_are_written_once():
    data = data_of(to_html(a_trace()))
    masked = next(stage for stage in data["stages"] if stage["key"] == "masked")
    scores = next(stage for stage in data["stages"] if stage["key"] == "scores")
    assert masked["without"]["matrix"] == scores["with"]["matrix"]


def test_labels_are_escaped():
    x = torch.randn(6, 4)
    page = to_html(explain(x, *torch.randn(3, 4, 4), labels=HOSTILE, title="</title><script>alert(1)</script>"))
    plain = to_html(explain(x, *torch.randn(3, 4, 4)))
    assert [tag for tag, _ in parsed(page).tags] == [tag for tag, _ in parsed(plain).tags]
    assert data_of(page)["labels"] == [*HOSTILE[:-1], "\\u2028"]
    assert page.count("alert(1)") == page.count("\\u003cscript\\u003ealert(1)") + page.count(
        "onerror=alert(1)"
    ) + page.count("&lt;script&gt;alert(1)")
    assert parsed(page).texts["script"] == parsed(plain).texts["script"]


def test_a_title_that_is_half_a_character_can_be_written():
    to_html(a_trace(title="\ud83d", labels=["\ud83d", "b", "c", "d"])).encode()


def test_a_notebook_shows_the_page_in_a_frame():
    trace = a_trace(title='"quoted" <b>')
    ((tag, attributes),) = parsed(to_notebook(trace)).tags
    assert tag == "iframe"
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["srcdoc"] == to_html(trace)
    assert attributes["title"] == '"quoted" <b>'
    assert trace._repr_html_() == to_notebook(trace)
    assert html.escape('<script type="module">') in to_notebook(trace)
