"""An observation as one page: all heads in an overview, each head large, with zoom; a file that needs no network.

    >>> import torch
    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.observation import observe
    >>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=1, heads=2, width=8)).eval()
    >>> with observe(model) as seen:
    ...     logits = model(torch.arange(20).unsqueeze(0))
    >>> page(seen).startswith("<!doctype html>")
    True
    >>> seen.to_html("seen.html")    # doctest: +SKIP

The numbers of the page are those of the observation. A page stays below `max_bytes`: where maps of many heads would not
fit, numbers are kept to three digits, then maps have fewer bins, and the page says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rearview.drawing.html import framed as page_frame
from rearview.drawing.html import page_file, seal
from rearview.errors import BadArgument
from rearview.files import target_of, write_whole
from rearview.masks.frame import whole_number
from rearview.observation.views.exact_head import ExactHead
from rearview.observation.views.layer_change import MapView
from rearview.observation.views.packed_arrays import PackedArrays
from rearview.observation.views.page_contents import (
    Entry,
    HeadIndex,
    PageDetail,
    by_contrast,
    head_entries,
    page_contents,
)

if TYPE_CHECKING:
    from rearview.observation.result.display import Display

# The scripts that draw maps, wherever they are shown, and the one of this page.
MAP_SCRIPTS = ("data.js", "exact_head.js", "colours.js", "heads.js", "board.js", "side.js", "maps.js")
SCRIPTS = (*MAP_SCRIPTS, "page.js")
MAX_BYTES, NOTEBOOK_BYTES = 8_000_000, 2_000_000
# The largest number of positions with every weight in the page, where queries and keys were kept and they fit.
EXACT_UP_TO = 256
# The fewest bins per side of a map.
LEAST_BINS = 8
# The most bytes of JSON that describe the arrays of a head with exact weights.
EXACT_DESCRIPTION = 1000
# The maps of all layers take at least this share of the size that is estimated from one layer.
LEAST_SHARE = 0.9


def page(display: Display, *, item: int | None = None, max_bytes: int | None = None, title: str | None = None) -> str:
    """The page as text; see `Observation.to_html`."""
    max_bytes = MAX_BYTES if max_bytes is None else whole_number(max_bytes, "max_bytes", at_least=1)
    if title is not None and not isinstance(title, str):
        raise BadArgument("title", expected="a string", got=repr(title))
    return _fitted(display, item or 0, max_bytes, title)


def save(
    display: Display, path: str | os.PathLike[str], *, item: int | None, max_bytes: int | None, title: str | None
) -> Path:
    """Write the page to `path`; see `Observation.to_html`."""
    target = target_of(path, (".html",))
    write_whole(target, page(display, item=item, max_bytes=max_bytes, title=title).encode())
    return target


def framed(display: Display) -> str:
    """The page in an iframe, for a notebook."""
    return page_frame(_fitted(display, 0, NOTEBOOK_BYTES, None), title="What attention does", height=1100)


def _fitted(display: Display, item: int, max_bytes: int, title: str | None) -> str:
    """The page with as much detail as fits."""
    bins_before, size, heads, tried = 0, 0, None, set()
    whole: dict[int, Sequence[MapView]] = {}
    for detail in _details():
        if detail.exact_up_to not in whole:
            whole[detail.exact_up_to] = display._views(item=item, exact_up_to=detail.exact_up_to)
        views = whole[detail.exact_up_to]
        views = views if detail.bins is None else [view.coarser(detail.bins) for view in views]
        bins = max(max(view.map.shape[-2:]) for view in views)
        bins_before = max(bins_before, bins) if not detail.exact_up_to else 0
        is_least = detail.bins == LEAST_BINS
        if (bins, detail.short, detail.points) in tried or (_maps_alone(views, detail) > max_bytes and not is_least):
            continue
        tried.add((bins, detail.short, detail.points))
        heads = heads or head_entries(views)
        draw = partial(page_contents, display, views, detail, heads=heads, title=title, bins_before=bins_before)
        text = _sealed(draw())
        size = len(text)
        if size <= max_bytes:
            exact = _exact_heads(views, max_bytes - size)
            return _sealed(draw(exact=exact)) if exact else text
    advice = "Give more room, or observe fewer layers= or heads=."
    got = f"{max_bytes:,}; the smallest page has {size:,} bytes"
    raise BadArgument("max_bytes", expected="room for the page", got=got, advice=advice)


def _sealed(data: Entry) -> str:
    slots = {"maps": maps_markup()}
    return seal("rearview.observation.views", scripts=SCRIPTS, title=data["title"], data=data, slots=slots)


def maps_markup() -> str:
    """The HTML that the scripts of the maps fill in."""
    return page_file("rearview.observation.views", "maps.html")


def _exact_heads(views: Sequence[MapView], spare: int) -> dict[HeadIndex, ExactHead]:
    """The heads whose exact weights the page can compute within this many bytes, the most informative first."""
    found: dict[HeadIndex, ExactHead] = {}
    # Layers that need no such heads, and those whose heads no longer fit.
    done: set[int] = set()
    for n, row in by_contrast(views):
        exact = None if n in done else views[n].exact_head(row)
        # These numbers hardly compress, and base64 takes four characters for three bytes.
        needed = 0 if exact is None else exact.bytes * 4 // 3 + EXACT_DESCRIPTION
        if exact is None or needed > spare:
            done.add(n)
            continue
        spare -= needed
        found[n, row] = exact
    return found


def _maps_alone(views: Sequence[MapView], detail: PageDetail) -> float:
    """A lower estimate of the bytes that the maps take, from the maps of one layer."""
    middle = views[len(views) // 2].map
    block = PackedArrays(short=detail.short)
    block.add(middle)
    return LEAST_SHARE * len(block.text()) / middle.numel() * sum(view.map.numel() for view in views)


def _details() -> Iterator[PageDetail]:
    for exact_up_to in (EXACT_UP_TO, 0):
        yield PageDetail(exact_up_to)
        yield PageDetail(exact_up_to, short=True)
    yield PageDetail(points=256, short=True)
    bins = 512
    while bins >= LEAST_BINS:
        yield PageDetail(bins=bins, points=256, short=True)
        bins //= 2
