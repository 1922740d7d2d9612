"""The ways to look at an observation or a difference: terminal, page, picture, notebook."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, overload

# The code that draws is imported when something is drawn: `observe` alone does not need it.
if TYPE_CHECKING:
    from rearview.observation.result.layer import Layer
    from rearview.observation.views.heat_map import HeatDrawing
    from rearview.observation.views.layer_change import MapView


class Display:
    """The drawings that `Observation` and `ObservationDiff` share. Each of them provides its views."""

    @property
    def headline(self) -> str:
        """The title of drawings."""
        raise NotImplementedError

    @property
    def length(self) -> int:
        """The number of positions of the sequence."""
        raise NotImplementedError

    def _views(
        self, layer: int | str | Layer | None = None, *, item: int = 0, exact_up_to: int = 0
    ) -> Sequence[MapView]:
        """The layers as they are drawn: all of them, or one.

        Up to `exact_up_to` positions the maps are exact, where queries and keys were kept.
        """
        raise NotImplementedError

    def _check_scale(self, scale: str) -> None:
        """Raise `BadArgument` unless drawings of this kind know the scale."""
        raise NotImplementedError

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
        """A drawing for the terminal: of all heads, of the heads of a layer, or of one head. `print` it.

        Args:
            layer, head: which to draw; all by default.
            scale: "log", "linear", "without_first" (without the first key) or "expected" (relative to uniform
                attention); for a difference "log" or "linear".
            width: in characters; by default that of the terminal.
            item: the batch item; a difference has its own.
            file: a file to write the drawing to as well, in colour if it is a terminal.
        """
        from rearview.observation.views import terminal

        return terminal.show(self, layer, head, scale=scale, width=width, item=item, file=file)

    @overload
    def to_html(
        self, path: None = None, *, item: int | None = ..., max_bytes: int | None = ..., title: str | None = ...
    ) -> str: ...

    @overload
    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        item: int | None = ...,
        max_bytes: int | None = ...,
        title: str | None = ...,
    ) -> Path: ...

    def to_html(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        item: int | None = None,
        max_bytes: int | None = None,
        title: str | None = None,
    ) -> str | Path:
        """An interactive page in one file that needs no network: as text, or written to `path`.

        Args:
            item: the batch item, the first by default; a difference has its own.
            max_bytes: the largest size of the page, 8 MB by default; maps get coarser until they fit.
            title: the headline.
        """
        from rearview.observation.views import html

        if path is None:
            return html.page(self, item=item, max_bytes=max_bytes, title=title)
        return html.save(self, path, item=item, max_bytes=max_bytes, title=title)

    def picture(
        self,
        path: str | os.PathLike[str],
        layer: int | str | Layer | None = None,
        head: int | None = None,
        *,
        scale: str = "log",
        item: int = 0,
    ) -> None:
        """Write a picture for a paper: .png, .svg or .pdf. `scale` is as in `show`."""
        from rearview.observation.views import picture

        picture.save(self, path, layer, head, scale=scale, item=item)

    def _repr_html_(self) -> str:
        from rearview.observation.views import html

        return html.framed(self)
