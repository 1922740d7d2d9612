"""The page of the studio: one HTML text with its style and scripts, and the policy that allows nothing else.

>>> page, policy = index_page({"models": []}, in_frame=False)
>>> page.startswith("<!doctype html>"), "connect-src 'self'" in policy, "frame-ancestors 'none'" in policy
(True, True, True)
"""

from __future__ import annotations

from typing import Any

from rearview.drawing.html import Sealed, sealed
from rearview.observation.views.html import MAP_SCRIPTS, maps_markup

SCRIPTS = (
    "server.js", "read.js", "why.js", "mask.js", "write.js", "cut.js", "peek.js", "compare.js", "learn.js", "studio.js",
)  # fmt: skip
# A notebook is served from another port of this machine.
NOTEBOOKS = "'self' http://localhost:* http://127.0.0.1:*"


def index_page(data: dict[str, Any], *, in_frame: bool) -> tuple[str, str]:
    """The page and its content security policy."""
    found: Sealed = sealed(
        "rearview.webapp",
        scripts=(
            *(("rearview.observation.views", name) for name in MAP_SCRIPTS),
            *(("rearview.webapp", name) for name in SCRIPTS),
        ),
        styles=(("rearview.observation.views", "page.css"), ("rearview.webapp", "page.css")),
        title="Rearview studio",
        data=data,
        slots={"maps": maps_markup()},
        more_policy="connect-src 'self'; frame-src 'self'; img-src 'self' data:",
    )
    ancestors = NOTEBOOKS if in_frame else "'none'"
    return found.page, f"{found.policy}; frame-ancestors {ancestors}"
