"""The colours of every drawing: pages are light or dark, pictures are light, terminals are dark.

>>> LIGHT["ink"], rgb(DARK["heat-0"]), css().splitlines()[2]
('#1c2733', (12, 17, 22), '  --paper: #f6f8f9;')
"""

LIGHT = {
    "paper": "#f6f8f9",
    "card": "#ffffff",
    "ink": "#1c2733",
    "quiet": "#5a6773",
    "line": "#dde4e9",
    # The outline of what is chosen, and of a query's own position.
    "glow": "#f2a541",
    "teal": "#1f6f8b",
    "deep": "#004d6b",
    # Text on a cell that is nearly as light as the card, and on one that is as dark as `deep`.
    "on-light": "#000000",
    "on-deep": "#ffffff",
    "orange": "#b35f00",
    "red": "#c02426",
    "good": "#176c43",
    "plum": "#8d6bb0",
    # A key that the mask forbids.
    "blocked": "#edf1f4",
    "hatch": "#d3dbe1",
    # Shares of attention, from none to all.
    "heat-0": "#ffffff",
    "heat-1": "#d3e8ee",
    "heat-2": "#86c0d1",
    "heat-3": "#2f8fad",
    "heat-4": "#0d5675",
    "heat-5": "#06263f",
    # Changes, from the largest loss to the largest gain.
    "less-3": "#a04f0a",
    "less-2": "#d98a33",
    "less-1": "#f6dcb4",
    "even": "#fbfbfa",
    "more-1": "#a6d3df",
    "more-2": "#2a86a3",
    "more-3": "#063a56",
}
DARK = LIGHT | {
    "paper": "#10161c",
    "card": "#171e26",
    "ink": "#e6ecf1",
    "quiet": "#9aa8b4",
    "line": "#2b3641",
    "teal": "#5db3cf",
    "deep": "#45a3c0",
    "on-light": "#ffffff",
    "on-deep": "#000000",
    "orange": "#f0a94b",
    "red": "#ff6b63",
    "good": "#58c48d",
    "plum": "#b494d8",
    "blocked": "#1e2730",
    "hatch": "#303c48",
    "heat-0": "#0c1116",
    "heat-1": "#103347",
    "heat-2": "#17607c",
    "heat-3": "#2b9bb8",
    "heat-4": "#8fd6de",
    "heat-5": "#fdfbe8",
    "less-3": "#cf8a41",
    "less-2": "#955a20",
    "less-1": "#4a2f14",
    "even": "#11171d",
    "more-1": "#164a5e",
    "more-2": "#3ea5c4",
    "more-3": "#d2f3f6",
}
# The stops of the two colour scales, by name.
HEAT = ("heat-0", "heat-1", "heat-2", "heat-3", "heat-4", "heat-5")
CHANGE = ("less-3", "less-2", "less-1", "even", "more-1", "more-2", "more-3")

Colour = tuple[int, int, int]


def rgb(colour: str) -> Colour:
    """A colour such as "#1c2733" as red, green and blue from 0 to 255."""
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return red, green, blue


def css() -> str:
    """The palette as variables of a page: `--ink` and so on, for readers with a light and with a dark theme."""
    light, dark = (_variables(colours) for colours in (LIGHT, {n: c for n, c in DARK.items() if c != LIGHT[n]}))
    return (
        f":root {{\n  color-scheme: light dark;\n{light}}}\n"
        f"@media (prefers-color-scheme: dark) {{\n:root {{\n{dark}}}\n}}\n"
    )


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"  --{name}: {colour};\n" for name, colour in colours.items())
