"""A page in one file: its style, its scripts and its data inside, and nothing from outside.

>>> page = seal("rearview.explain", scripts=("trace.js",), title="<mine>", data={"a": "</script>"})
>>> page.startswith("<!doctype html>"), "<title>&lt;mine&gt;</title>" in page, "\\\\u003c/script\\\\u003e" in page
(True, True, True)

The policy of the page lets run only the style and the script whose hashes it holds. Data is JSON that no text can break
out of.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

# Where what all pages share is kept.
HOUSE = "rearview.explain"


def seal(
    package: str, *, scripts: Sequence[str], title: str, data: dict[str, Any], slots: Mapping[str, str] | None = None
) -> str:
    """`page/page.html` of a package with page.css, the scripts and the data in it; `slots`: HTML for other places.

    The head, the paper and ink of the style, and how elements are made are the same for all pages.
    """
    style = _read(HOUSE, "base.css") + _read(package, "page.css")
    script = "\n".join([_read(HOUSE, "elements.js"), *(_read(package, name) for name in scripts)])
    parts = {
        **(slots or {}),
        "policy": f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'",
        "title": as_text(title),
        "style": style,
        "data": _inert(data),
        "script": script,
    }
    # In one pass: a text that looks like a slot stays a text.
    return re.sub(
        r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], _read(HOUSE, "head.html") + _read(package, "page.html")
    )


def framed(page: str, *, title: str, height: int) -> str:
    """The page in a frame of its own, so that neither its style nor the notebook's reaches the other."""
    return (
        f'<iframe title="{as_text(title)}" sandbox="allow-scripts" width="100%" height="{height}" '
        f'style="border: 0; border-radius: 8px" srcdoc="{html.escape(page)}"></iframe>'
    )


def as_text(text: str) -> str:
    """Anyone's text, as HTML that shows it."""
    return html.escape(text).encode("ascii", "xmlcharrefreplace").decode()


def _inert(data: dict[str, Any]) -> str:
    # Labels are anyone's text: nothing in it may end the script element or begin another.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(package: str, name: str) -> str:
    return (files(package) / "page" / name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
