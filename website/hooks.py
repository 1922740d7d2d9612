"""The steps of a build that are this project's own; mkdocs calls the functions by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import commands, dialect, notebooks, reference, results, sources

# In mkdocs.yml it stands beside the contract.
PROOF = "inside/auditing-proof.md"
# Pages that are in the navigation as soon as their files are in the repository.
AWAITED = {"found.md": "docs/found.md", "reliability.md": "docs/reliability.md", "project/security.md": "SECURITY.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the navigation, and name anchors as GitHub does."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = dialect.slug
    config.nav = _filled(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written here, and those that are files elsewhere in the repository."""
    written = {**commands.pages(), **reference.pages(), "benchmarks/index.md": results.index()}
    written |= {address: _read(source) for source, address in sources.pages().items()}
    for address, text in written.items():
        files.append(File.generated(config, address, content=text))
    try:
        done = zip(notebooks.notebooks(), notebooks.executed(notebooks.notebooks()), strict=True)
    except notebooks.NotebookFailed as failure:
        raise PluginError(str(failure)) from failure
    for path, notebook in done:
        text = notebooks.page(notebook, path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the links of a file lead to pages, and write out what mkdocs would read differently from GitHub."""
    address = page.file.src_uri
    written_here = address.startswith(("cli/", "reference/", "notebooks/")) or address == "benchmarks/index.md"
    if not written_here:
        source = {there: name for name, there in sources.pages().items()}.get(address, f"docs/{address}")
        markdown = sources.linked(markdown, source=source, address=address)
    return dialect.plain(markdown)


def _read(source: str) -> str:
    return (sources.ROOT / source).read_text(encoding="utf-8")


def _filled(nav: list[Any]) -> list[Any]:
    """The navigation with generated sections listed, and without awaited pages that are not there."""
    done = list[Any]()
    for entry in nav:
        ((title, value),) = entry.items() if isinstance(entry, dict) else ((None, entry),)
        if isinstance(value, list):
            done.append({title: _filled(value)})
        elif value == "...cli":
            done += ["cli/index.md", *({verb: f"cli/{verb}.md"} for verb in commands.VERBS)]
        elif value == "...reference":
            names = ({package.module: f"reference/{name}.md"} for name, package in reference.PACKAGES.items())
            done += ["reference/index.md", *names]
        elif value == "...inside":
            inside = (address for address in sources.pages().values() if address.startswith("inside/"))
            done += [{Path(each).stem.replace("-", "/"): each} for each in inside if each != PROOF]
        elif value == "...results":
            done += [{f"{row.date} {row.title}": f"benchmarks/{row.file}"} for row in results.rows()]
        elif value not in AWAITED or (sources.ROOT / AWAITED[value]).exists():
            done.append(entry)
    return done
