"""What was seen as one page: all heads at a glance, each head large, with zoom; a file that needs no network.

    >>> import torch
    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.observe import observe
    >>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=1, heads=2, width=8)).eval()
    >>> with observe(model) as seen:
    ...     logits = model(torch.arange(20).unsqueeze(0))
    >>> page(seen).startswith("<!doctype html>")
    True
    >>> seen.to_html("seen.html")    # doctest: +SKIP

The numbers of the page are those of the Seen. A page stays below `max_bytes`: where maps of many heads would not fit,
numbers are kept to three digits, then maps have fewer bins, and the page says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from rearview.errors import BadArgument
from rearview.explain import sealed
from rearview.masks.frame import whole_number
from rearview.masks.write import target_of, write_whole
from rearview.observe.block import Block
from rearview.observe.changing import looks_at
from rearview.observe.contents import Place, Room, changed_contents, contents_of, heads_of, most_telling
from rearview.observe.diff import SeenDiff
from rearview.observe.looking import Look
from rearview.observe.near import Near, near_of

if TYPE_CHECKING:
    from rearview.observe.seen import Seen

SCRIPTS = ("data.js", "near.js", "colours.js", "heads.js", "board.js", "side.js", "page.js")
MAX_BYTES, NOTEBOOK_BYTES = 8_000_000, 2_000_000
# Up to so many positions the page has every weight, where queries and keys were kept and they fit.
EXACT_UP_TO = 256
# A map is made no coarser than this.
LEAST_BINS = 8
# What a page says of a head that can be looked at pair by pair, beside its numbers; at most.
NEAR_WORDS = 1000
# Of what one layer lets expect, all of them take at least this share.
SURELY = 0.9


@overload
def page(
    seen: Seen | SeenDiff, path: None = None, *, item: int | None = ..., max_bytes: int = ..., title: str | None = ...
) -> str: ...


@overload
def page(
    seen: Seen | SeenDiff,
    path: str | os.PathLike[str],
    *,
    item: int | None = ...,
    max_bytes: int = ...,
    title: str | None = ...,
) -> Path: ...


def page(
    seen: Seen | SeenDiff,
    path: str | os.PathLike[str] | None = None,
    *,
    item: int | None = None,
    max_bytes: int = MAX_BYTES,
    title: str | None = None,
) -> str | Path:
    """The page as text, or written to `path`; see `Seen.to_html`.

    Args:
        item: the batch item, the first unless given. A difference has its own.
        max_bytes: the page is no larger.
        title: the headline; by default that of what was seen.
    """
    target = None if path is None else target_of(path, (".html",))
    whole_number(max_bytes, "max_bytes", at_least=1)
    if title is not None and not isinstance(title, str):
        raise BadArgument("title", expected="a text", came=repr(title))
    text = _fitted(seen, item or 0, max_bytes, title)
    if target is None:
        return text
    write_whole(target, text.encode())
    return target


def framed(seen: Seen | SeenDiff) -> str:
    """The page in a frame of its own, for a notebook."""
    return sealed.framed(_fitted(seen, 0, NOTEBOOK_BYTES, None), title="What attention does", height=1100)


def _fitted(seen: Seen | SeenDiff, item: int, max_bytes: int, title: str | None) -> str:
    """The page with as much as fits."""
    bins_before, size, heads, tried = 0, 0, None, set()
    whole: dict[int, Any] = {}
    for room in _rooms():
        if room.exact_up_to not in whole:
            whole[room.exact_up_to] = looks_at(seen, item=item, exact_up_to=room.exact_up_to)
        looks = whole[room.exact_up_to]
        looks = looks if room.bins is None else [look.coarser(room.bins) for look in looks]
        bins = max(max(look.map.shape[-2:]) for look in looks)
        bins_before = max(bins_before, bins) if not room.exact_up_to else 0
        is_least = room.bins == LEAST_BINS
        if (bins, room.short, room.points) in tried or (_maps_alone(looks, room) > max_bytes and not is_least):
            continue
        tried.add((bins, room.short, room.points))
        heads = heads or heads_of(seen, looks)
        contents: Any = changed_contents if isinstance(seen, SeenDiff) else contents_of
        draw = partial(contents, seen, looks, room, heads=heads, title=title, bins_before=bins_before)
        text = _sealed(draw())
        size = len(text)
        if size <= max_bytes:
            near = {} if isinstance(seen, SeenDiff) else _near(looks, max_bytes - size)
            return _sealed(draw(near=near)) if near else text
    advice = "Give more room, or observe fewer layers= or heads=."
    came = f"{max_bytes:,}; the smallest page has {size:,} bytes"
    raise BadArgument("max_bytes", expected="room for the page", came=came, advice=advice)


def _sealed(data: Any) -> str:
    return sealed.seal("rearview.observe", scripts=SCRIPTS, title=data["title"], data=data)


def _near(looks: list[Look], spare: int) -> dict[Place, Near]:
    """The heads that can be looked at pair by pair in so many bytes, the most telling ones first."""
    found: dict[Place, Near] = {}
    # Layers that are exact as they are, and those whose heads do not fit any more.
    done = {n for n, look in enumerate(looks) if look.is_exact}
    for n, row in most_telling(looks):
        near = None if n in done else near_of(looks[n].layer, item=looks[n].item, row=row)
        # Numbers of this kind hardly shrink, and four letters stand for three bytes.
        needed = 0 if near is None else near.bytes * 4 // 3 + NEAR_WORDS
        if near is None or needed > spare:
            done.add(n)
            continue
        spare -= needed
        found[n, row] = near
    return found


def _maps_alone(looks: list[Any], room: Room) -> float:
    """About how many bytes the maps take: those of one layer, for all."""
    middle = looks[len(looks) // 2].map
    block = Block(short=room.short)
    block.add(middle)
    return SURELY * len(block.text()) / middle.numel() * sum(look.map.numel() for look in looks)


def _rooms() -> Iterator[Room]:
    for exact_up_to in (EXACT_UP_TO, 0):
        yield Room(exact_up_to)
        yield Room(exact_up_to, short=True)
    yield Room(points=256, short=True)
    bins = 512
    while bins >= LEAST_BINS:
        yield Room(bins=bins, points=256, short=True)
        bins //= 2
