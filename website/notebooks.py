"""Notebooks as pages: each is executed from top to bottom, and its cells and outputs are written as Markdown.

Notebooks are stored without outputs. A rich output (a trace, an observation, a report) is a frame that loads nothing.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

from website.sources import ROOT

FOLDER = ROOT / "docs" / "notebooks"
# Seconds that one cell may take on a busy machine.
PATIENCE = 300
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class NotebookFailed(Exception):
    """A cell raised; the message has the name of the notebook, the cell and the error."""


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def executed(paths: Sequence[Path]) -> list[Any]:
    """The notebooks with the outputs of their cells, run at the same time by this interpreter; no file is changed."""
    return asyncio.run(_all_executed(paths))


async def _all_executed(paths: Sequence[Path]) -> list[Any]:
    return list(await asyncio.gather(*map(_executed, paths)))


async def _executed(path: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    with tempfile.TemporaryDirectory() as folder:
        # Files instead of ports, in a folder of its own: the kernels run at the same time.
        config = Config(KernelManager={"transport": "ipc", "connection_file": f"{folder}/kernel.json"})
        client = NotebookClient(
            notebook,
            timeout=PATIENCE,
            startup_timeout=PATIENCE,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            # Consecutive outputs of print are one.
            coalesce_streams=True,
            config=config,
        )
        try:
            # Without the startup files of the user who builds.
            return await client.async_execute(env={**os.environ, "IPYTHONDIR": folder})
        except CellExecutionError as error:
            raise NotebookFailed(f"{path.name}: {COLOURS.sub('', str(error))}") from error


def page(notebook: Any, name: str) -> str:
    """An executed notebook as Markdown."""
    parts = list[str]()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            parts.append(f"```python\n{cell.source}\n```")
            parts += [shown for output in cell.outputs if (shown := _output(output))]
    heading, _, rest = "\n\n".join(parts).partition("\n")
    download = f'<a href="{name}" download>Download this notebook</a> to run it in Jupyter.'
    return f"{heading}\n\n{download}\n{rest}\n"


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return _text(output.text)
    data = output.get("data", {})
    if "text/html" in data:
        # In one line, so that nothing in it is read as Markdown; each frame is pinned to the hashes of its own scripts.
        return f'<div class="notebook-output">{data["text/html"].replace(chr(10), "&#10;")}</div>'
    if "image/svg+xml" in data:
        return f'<div class="notebook-output">{data["image/svg+xml"]}</div>'
    return _text(data["text/plain"]) if "text/plain" in data else ""


def _text(text: str) -> str:
    return f"``` {{ .text .notebook-output }}\n{COLOURS.sub('', text).rstrip()}\n```"
