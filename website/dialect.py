"""Markdown as GitHub reads it, written so that the reader of mkdocs sees the same.

>>> print(plain("Two masks:\\n- causal\\n- full\\n"), end="")
Two masks:
<BLANKLINE>
- causal
- full
>>> slug("What `auto` takes, and why", "-")
'what-auto-takes-and-why'
"""

from __future__ import annotations

import re
from collections.abc import Iterator

FENCED = re.compile(r"^( *)(```+|~~~+)([^\n]*)\n.*?^ *\2[ \t]*$\n?", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^( *)(```+|~~~+) *python *\n(?= *>>>)")
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +\S")
CODE_WITH_BAR = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")


def parts(text: str) -> Iterator[tuple[bool, str]]:
    """The text cut at its fenced blocks; True with what is fenced."""
    end = 0
    for fenced in FENCED.finditer(text):
        yield False, text[end : fenced.start()]
        yield True, fenced[0]
        end = fenced.end()
    yield False, text[end:]


def plain(text: str) -> str:
    """The text with what the two readers understand differently written out."""
    # A block with prompts is a session: only what follows a prompt is Python.
    return "".join(SESSION.sub(r"\1\2pycon\n", part) if is_code else _prose(part) for is_code, part in parts(text))


def _prose(text: str) -> str:
    done = list[str]()
    for line in text.split("\n"):
        before = done[-1] if done else ""
        # A list that follows a line of text needs an empty line.
        if ITEM.match(line) and before.strip() and not ITEM.match(before) and not before.startswith((" ", "|")):
            done.append("")
        # In a table GitHub reads \| inside of code as |; here the backslash would be shown.
        done.append(CODE_WITH_BAR.sub(_code, line) if line.lstrip().startswith("|") else line)
    return "\n".join(done)


def _code(match: re.Match[str]) -> str:
    text = match[1].replace("&", "&amp;").replace("<", "&lt;").replace("\\|", "&#124;")
    return f"<code>{text}</code>"


def slug(heading: str, separator: str) -> str:
    """The anchor of a heading, as on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)
