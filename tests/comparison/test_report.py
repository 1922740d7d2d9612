"""The report as text: it needs no network, and generated text stays text."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from rearview.comparison import Comparison, Writing, conclusion_of
from rearview.comparison.report import page_data, thinned, to_html
from tests.comparison.example import a_comparison

HOSTILE = ("</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>{{script}}")


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.words = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = f"{tag}#{dict(attrs).get('id')}" if tag == "script" and dict(attrs).get("id") else tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        self.texts[self._open] = self.texts.get(self._open, "") + data
        if self._open not in ("script", "script#data", "style"):
            self.words += data


def with_texts(*texts: str) -> Comparison:
    comparison = a_comparison(prompts=texts, shown=texts)
    side = replace(comparison.without_mask, writing=Writing(texts, 0.5, None))
    conditions = replace(comparison.conditions, text=texts[0], command=texts[1])
    return replace(comparison, without_mask=side, conditions=conditions)


def test_the_page_needs_no_network():
    text = to_html(a_comparison())
    assert not re.findall(r"https?:(?!//www\.w3\.org/2000/svg)|@import|url\(|\beval\b|new Function|innerHTML", text)
    for tag, attributes in Page(text).tags:
        assert not {"src", "href", "srcset", "style", "onclick", "onload"} & attributes.keys(), tag
        assert tag not in ("link", "iframe", "object", "embed", "img", "base", "form")


def test_the_policy_lets_only_its_own_style_and_script_run():
    page = Page(to_html(a_comparison()))
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.texts[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy


def test_every_word_and_number_can_be_read_without_a_script():
    comparison = a_comparison()
    words = " ".join(Page(to_html(comparison)).words.replace("\N{NO-BREAK SPACE}", " ").split())
    conclusion = conclusion_of(comparison)
    for sentence in (conclusion.headline, *conclusion.sentences, "The claim holds"):
        assert sentence in words
    assert "<td>2.000</td><td>9.000</td>" in to_html(comparison)
    for text in ("seed 0", "rearview compare --text 'a text'", "SHA-256 0123456789ab"):
        assert text in words
    for text in (*comparison.prompts, *comparison.with_mask.writing.texts, *comparison.continuations.texts):
        assert " ".join(text.split()) in words


def test_generated_text_stays_text():
    text, plain = to_html(with_texts(*HOSTILE)), to_html(with_texts("one", "two"))
    assert [tag for tag, _ in Page(text).tags] == [tag for tag, _ in Page(plain).tags]
    assert Page(text).texts["script"] == Page(plain).texts["script"]
    assert json.loads(Page(text).texts["script#data"])["shown"] == list(HOSTILE)
    assert HOSTILE[0] in Page(text).words


def test_lone_surrogates_and_control_characters_can_be_written():
    text = to_html(with_texts("\ud83d", "\x00\x1b"))
    text.encode()
    assert not {"\x00", "\x1b"} & set(text)


def test_long_curves_are_thinned_to_means():
    points = [(n, float(n % 2)) for n in range(1, 10_001)]
    assert len(thinned(points)) == 300
    assert all(abs(loss - 0.5) < 0.02 for _, loss in thinned(points))
    assert thinned(points[:3]) == [(1.0, 1.0), (2.0, 0.0), (3.0, 1.0)]


def test_the_page_has_the_numbers_of_the_comparison():
    comparison = a_comparison(tables=(6.7, 4.7, None))
    data: dict[str, Any] = page_data(comparison)
    assert data["baselines"] == [["single characters", 4.7], ["uniform guessing", 6.7]]
    for side, known in zip(data["sides"], (comparison.with_mask, comparison.without_mask), strict=True):
        assert side["weights"] == known.attention.weights
        assert (side["atOnce"], side["exam"]) == (known.at_once.bits, known.exam.bits)
