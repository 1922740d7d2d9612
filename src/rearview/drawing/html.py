"""A page in one file, which contains its style, its scripts and its data and loads nothing else.

>>> page = seal("rearview.explanation", scripts=("trace.js",), title="<mine>", data={"a": "</script>"})
>>> page.startswith("<!doctype html>"), "<title>&lt;mine&gt;</title>" in page, "\\\\u003c/script\\\\u003e" in page
(True, True, True)

The content security policy of the page allows only the style and the script whose hashes it contains. Data is embedded
as JSON in which "<", ">" and "&" are escaped, so that no text can end the script element.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from rearview.drawing import palette

# The package with the files that all pages share, and its scripts.
SHARED, SCRIPTS = "rearview.drawing", ("elements.js", "matrix.js", "tokens.js")


def seal(
    package: str, *, scripts: Sequence[str], title: str, data: dict[str, Any], slots: Mapping[str, str] | None = None
) -> str:
    """One page: `page/page.html` of a package with its page.css, its scripts and the data.

    The palette, the common style and the scripts for elements, matrices and token texts are added. `slots` is HTML for
    further `{{name}}` places of the page.
    """
    parts = [(package, name) for name in scripts]
    return sealed(package, scripts=parts, styles=[(package, "page.css")], title=title, data=data, slots=slots).page


@dataclass(frozen=True)
class Sealed:
    """A page, and the content security policy that it contains."""

    page: str
    policy: str


def sealed(
    package: str,
    *,
    scripts: Sequence[tuple[str, str]],
    styles: Sequence[tuple[str, str]],
    title: str,
    data: dict[str, Any],
    slots: Mapping[str, str] | None = None,
    more_policy: str = "",
) -> Sealed:
    """`seal` with scripts and styles of several packages, as (package, name), and further rules of the policy."""
    style = palette.css() + page_file(SHARED, "base.css") + "".join(page_file(*part) for part in styles)
    script = "\n".join([*(page_file(SHARED, name) for name in SCRIPTS), *(page_file(*part) for part in scripts)])
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        **(slots or {}),
        "policy": f"{policy}; {more_policy}" if more_policy else policy,
        "title": as_text(title),
        "style": style,
        "data": _embedded(data),
        "script": script,
    }
    # In one pass, so that a text which looks like a slot is not replaced.
    whole = page_file(SHARED, "head.html") + page_file(package, "page.html") + page_file(SHARED, "foot.html")
    return Sealed(re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], whole), parts["policy"])


def preformatted(text: str) -> str:
    """A text as a cell of a notebook shows it: with its line breaks, every character equally wide.

    >>> preformatted("a < b").endswith("a &lt; b</pre>")
    True
    """
    return f'<pre style="line-height: 1.2; white-space: pre; overflow-x: auto">{html.escape(text)}</pre>'


def framed(page: str, *, title: str, height: int) -> str:
    """The page in an iframe, which separates its style from that of the notebook."""
    return (
        f'<iframe title="{as_text(title)}" sandbox="allow-scripts" width="100%" height="{height}" '
        f'style="border: 0; border-radius: 8px" srcdoc="{html.escape(page)}"></iframe>'
    )


def as_text(text: str) -> str:
    """HTML that displays this text, whatever it contains."""
    return html.escape(text).encode("ascii", "xmlcharrefreplace").decode()


def _embedded(data: dict[str, Any]) -> str:
    # Labels are untrusted text: it must not end the script element or begin another.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_file(package: str, name: str) -> str:
    """A file of the folder `page` of a package."""
    return (files(package) / "page" / name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
