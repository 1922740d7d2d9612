"""The palette: both themes have every colour, and every page uses colours that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rearview
from rearview.drawing.palette import CHANGE, DARK, HEAT, LIGHT, css, rgb

PAGES = sorted(path for path in Path(rearview.__file__).parent.glob("**/page") if path.is_dir())
SHARED = next(path for path in PAGES if path.parent.name == "drawing")


def defined(style: str) -> set[str]:
    return set(re.findall(r"(--[\w-]+):", style))


def test_both_themes_have_the_same_colours():
    assert LIGHT.keys() == DARK.keys()
    assert {*HEAT, *CHANGE} <= LIGHT.keys()
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in (*LIGHT.values(), *DARK.values()))
    assert rgb("#0a10ff") == (10, 16, 255)


def test_the_dark_theme_overrides_the_light_one():
    light, _, dark = css().partition("@media")
    assert f"--ink: {LIGHT['ink']};" in light
    assert f"--ink: {DARK['ink']};" in dark
    # A colour that both themes share is written once.
    assert "--glow" in light
    assert "--glow" not in dark


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_pages_use_colours_that_exist(page: Path):
    style = css() + "".join(path.read_text() for folder in (SHARED, page) for path in folder.glob("*.css"))
    scripts = "".join(path.read_text() for path in page.glob("*.js"))
    used = set(re.findall(r"var\((--[\w-]+)", style)) | set(re.findall(r'"(--[\w-]+)"', scripts))
    assert used
    # A script may set a variable itself.
    set_by_scripts = set(re.findall(r'setProperty\("(--[\w-]+)"', scripts))
    assert used <= defined(style) | set_by_scripts
