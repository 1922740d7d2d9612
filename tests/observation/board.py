"""Where things are on the large map of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def point(page: Page, along: float, down: float) -> tuple[float, float]:
    """On the screen, a point of the map that is given as parts of its sides."""
    board = page.locator("#board")
    board.scroll_into_view_if_needed()
    box = board.bounding_box()
    assert box is not None
    left, top, wide, high = (
        float(board.get_attribute(f"data-{name}") or 0) for name in ("left", "top", "wide", "high")
    )
    return box["x"] + left + along * wide, box["y"] + top + down * high
