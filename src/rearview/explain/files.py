"""A Trace as a file, in the form that the ending of its name asks for.

>>> from rearview.explain.files import ENDINGS
>>> ENDINGS
('.html', '.json', '.tex', '.svg', '.png')
"""

from __future__ import annotations

import os

from rearview.explain.trace import Trace
from rearview.masks.write import target_of, write_whole

ENDINGS = (".html", ".json", ".tex", ".svg", ".png")


def save(trace: Trace, path: str | os.PathLike[str], *, head: int = 0) -> None:
    """See `Trace.save`. A page and JSON hold every head; the others are of one."""
    target = target_of(path, ENDINGS)
    write_whole(target, _content(trace, target.suffix.lower(), trace.checked_head(head)))


def _content(trace: Trace, ending: str, head: int) -> bytes:
    if ending == ".html":
        return trace.to_html().encode()
    if ending == ".json":
        return trace.to_json().encode()
    if ending == ".tex":
        return trace.to_latex(head).encode()
    from rearview.explain.picture import picture

    return picture(trace, ending, head=head)
