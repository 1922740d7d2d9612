"""Pages of the site that are files elsewhere in the repository, and links that lead to them.

>>> address_of("src/rearview/masks/README.md"), address_of("docs/masks.md"), address_of("src/rearview/files.py")
('inside/masks.md', 'masks.md', None)
>>> address_of("docs/notebooks/look.ipynb")
'notebooks/look.md'
>>> linked("See [the design](../DESIGN.md#spans).", source="docs/masks.md", address="masks.md")
'See [the design](project/design.md#spans).'
>>> linked("See [the harness](harness.py).", source="bench/README.md", address="benchmarks/harness.md")
'See the harness.'
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from website import dialect

ROOT = Path(__file__).parents[1]

# Files of the repository by their address on the site.
PROJECT = {
    "CHANGELOG.md": "project/changelog.md",
    "DESIGN.md": "project/design.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "README.md": "index.md",
    "tests/README.md": "project/tests.md",
    "bench/README.md": "benchmarks/harness.md",
    "bench/results": "benchmarks/index.md",
}
PACKAGE, RESULTS = "src/rearview/", "bench/results/"

LINK = re.compile(r"(?<!!)\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s]+)\)")


def pages() -> dict[str, str]:
    """What becomes a page although it is not in docs/: files of the repository, each with its address."""
    files = [name for name in PROJECT if (ROOT / name).is_file() and name != "README.md"]
    files += sorted(str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).rglob("README.md"))
    files += [str(path.relative_to(ROOT)) for path in dated()]
    return {name: address for name in files if (address := address_of(name))}


def dated() -> list[Path]:
    """The files of results, without the page about their folder."""
    return sorted(path for path in (ROOT / RESULTS).glob("*.md") if path.name != "README.md")


def address_of(source: str) -> str | None:
    """Where the site has a file of the repository; None where it has not."""
    if source.rstrip("/") in PROJECT:
        return PROJECT[source.rstrip("/")]
    if source.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", source.removeprefix("docs/"))
    if source.startswith(PACKAGE) and source.endswith("/README.md"):
        folder = source.removeprefix(PACKAGE).removesuffix("/README.md")
        return f"inside/{folder.replace('/', '-')}.md"
    if source.startswith(RESULTS) and source.endswith(".md") and not source.endswith("/README.md"):
        return f"benchmarks/{source.removeprefix(RESULTS)}"
    return None


def linked(text: str, *, source: str, address: str) -> str:
    """The text of a file of the repository with its links as they lead from its page; code is left alone.

    A link to a file without a page becomes plain text: the site must not have dead links.
    """

    def changed(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        there = address_of(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if there is None:
            return words
        here = posixpath.relpath(there, posixpath.dirname(address) or ".")
        return f"[{words}]({here}{'#' + anchor if anchor else ''})"

    return "".join(part if is_code else LINK.sub(changed, part) for is_code, part in dialect.parts(text))
