"""The page as text: it needs nothing from outside, says what the report says, and anyone's text stays text."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rearview.auditing import Report
from rearview.auditing.reporting.html import page_data, to_html, to_notebook
from rearview.errors import BadArgument
from tests.auditing import reports

HOSTILE = "</script><script>alert(1)</script>{{script}}"


@pytest.fixture(scope="module")
def leaking() -> Report:
    return reports.leaking()


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_needs_nothing_from_outside(leaking: Report):
    page = to_html(leaking)
    forbidden = (
        r"https?:|//[a-z]+\.|@import|url\(|\beval\b|new Function|innerHTML|outerHTML|document\.write|"
        r"<(?:link|img|iframe)"
    )
    assert not re.findall(forbidden, page)
    assert not re.findall(r"<[^>]+\s(?:src|href|style|on\w+)=", page.partition('<script type="module">')[0])


def test_the_policy_lets_only_its_own_style_and_script_run(leaking: Report):
    page = to_html(leaking)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    for kind, source in (
        ("style", page.partition("<style>")[2].partition("</style>")[0]),
        ("script", page.partition('<script type="module">')[2].partition("</script>")[0]),
    ):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy[1]


def test_it_says_what_the_report_says(leaking: Report):
    data = data_of(to_html(leaking))
    assert (data["verdict"], data["subject"], data["contract"]) == ("LEAKS", "Peeks", "causal()")
    assert leaking.hears is not None
    kinds = "".join(data["hears"]["cells"])
    assert kinds.count("f") == int(leaking.hears.leaks.sum())
    assert kinds.count("h") == int((leaking.hears.heard & ~leaking.hears.forbidden).sum())
    assert data["hears"]["amounts"][0][1] == float(f"{leaking.hears.amounts[0, 1]:.4g}")
    assert [(check["name"], check["status"], check["why"]) for check in data["checks"]] == [
        (check.name, check.status, check.why) for check in leaking.checks
    ]
    assert [place["module"] for place in data["places"]] == [place.module for place in leaking.places]
    assert [tuple(pair) for pair in data["modules"]] == list(leaking.modules)
    assert len(data["witnesses"]) == len(leaking.witnesses)


def test_a_witness_shows_both_inputs(leaking: Report):
    for shown, witness in zip(page_data(leaking)["witnesses"], leaking.witnesses, strict=True):
        (other,) = witness.other.values()
        assert shown["before"] == [str(token) for token in witness.clean[""][witness.item].tolist()]
        assert shown["after"] == [str(token) for token in other[witness.item].tolist()]
    frames = page_data(reports.packed())["witnesses"][0]
    assert all(value.endswith(" …") for value in frames["before"])


@pytest.mark.parametrize("name", ["leaking", "proven", "held", "inconclusive", "packed"])
def test_every_verdict_has_its_headline(name: str):
    report = getattr(reports, name)()
    data = page_data(report)
    assert data["headline"].endswith(".")
    assert data["why"].lower().startswith(report.why[:10].lower())
    assert (data["proof"] is None) == (report.proof is None)
    if report.proof is not None:
        assert data["proof"]["remedy"].rstrip(".").lower() == report.proof.remedy.lower()
        assert bool(data["proof"]["remedy"]) == bool(report.proof.remedy)
    written = {text for check in data["checks"] for text in check["numbers"].values()}
    assert not written & {"True", "False"}


def test_what_others_wrote_stays_text(leaking: Report):
    place = replace(leaking.places[0], source=HOSTILE, module=HOSTILE)
    page = to_html(replace(leaking, subject=HOSTILE, contract=HOSTILE, places=(place,)))
    assert page.count("</script>") == 2
    assert "<script>alert" not in page
    assert data_of(page)["places"][0]["source"] == HOSTILE


def test_it_is_saved_and_shown_in_a_notebook(leaking: Report, tmp_path: Path):
    leaking.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == to_html(leaking)
    assert to_notebook(leaking).startswith('<iframe title="Audit of Peeks" sandbox="allow-scripts"')
    assert leaking._repr_html_() == to_notebook(leaking)
    with pytest.raises(BadArgument, match=r"expected a name that ends in \.html, \.json or \.txt, got '\.pdf'"):
        leaking.save(tmp_path / "report.pdf")


def test_hashes_and_a_missing_proof_are_on_the_page(leaking: Report):
    data = page_data(leaking)
    assert f"SHA-256 of weights {leaking.fingerprint['weights'][:12]}" in data["facts"]
    held = replace(reports.held(), must_prove=True)
    assert page_data(held)["headline"] == "Nothing forbidden was heard, but it is not proven, as it must be."
