"""The ways to look at what was seen, and at a difference, with eyes: terminal, page, picture, notebook."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rearview.observe.heat import HeatDrawing
    from rearview.observe.layer import Layer


class Showing:
    """What `Seen` and `SeenDiff` share. The drawing itself is loaded when something is drawn."""

    def show(
        self,
        layer: int | str | Layer | None = None,
        head: int | None = None,
        *,
        scale: str = "log",
        width: int | None = None,
        item: int = 0,
        file: IO[str] | None = None,
    ) -> HeatDrawing:
        """A drawing for the terminal: of all heads, of those of a layer, or of one. `print` it.

        Args:
            layer, head: which; all unless given.
            scale: "log", "linear", "without_first" (the first key left out) or "expected" (against equal attention);
                of a difference "log" or "linear".
            width: in characters; by default that of the terminal.
            item: the batch item; a difference has its own.
            file: where to write it too, in colour if that is a terminal.
        """
        from rearview.observe import terminal

        return terminal.show(self, layer, head, scale=scale, width=width, item=item, file=file)  # type: ignore[arg-type]

    def to_html(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        item: int | None = None,
        max_bytes: int | None = None,
        title: str | None = None,
    ) -> str | Path:
        """One page to look at it with a mouse, which needs no network: as text, or written to `path`.

        Args:
            item: the batch item, the first unless given; a difference has its own.
            max_bytes: the page is no larger; maps are made coarser until it is not.
            title: the headline.
        """
        from rearview.observe import html

        room: dict[str, Any] = {} if max_bytes is None else {"max_bytes": max_bytes}
        return html.page(self, path, item=item, title=title, **room)  # type: ignore[arg-type]

    def picture(
        self,
        path: str | os.PathLike[str],
        layer: int | str | Layer | None = None,
        head: int | None = None,
        *,
        scale: str = "log",
        item: int = 0,
    ) -> None:
        """A picture for a paper: .png, .svg or .pdf. `scale` as in `show`."""
        from rearview.observe import picture

        picture.save(self, path, layer, head, scale=scale, item=item)  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        from rearview.observe import html

        return html.framed(self)  # type: ignore[arg-type]
