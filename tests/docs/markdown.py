"""Parsing a page of documentation: fenced blocks, links, and commands.

>>> [(block.language, block.line) for block in blocks_of("text\\n```python\\n1 + 1\\n```\\n")]
[('python', 3)]
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

FENCE = re.compile(r"^( *)(```+|~~~+) *(.*?) *$")
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def pages() -> list[Path]:
    """The README and everything in docs/, however deep."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """`line` is the number of the first line inside the fence, counted from 1."""

    language: str
    text: str
    line: int

    @property
    def is_session(self) -> bool:
        """Whether it has prompts, and therefore output."""
        return self.language == "python" and self.text.lstrip().startswith(">>>")


@dataclass(frozen=True)
class Command:
    """`output` is what the page shows after it, or None."""

    text: str
    output: str | None


def blocks_of(text: str) -> list[Block]:
    found: list[Block] = []
    fence, language, inside, start = "", "", list[str](), 0
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if not fence and match:
            fence, language, inside, start = match[2], match[3], [], number + 1
        elif fence and match and match[2].startswith(fence) and not match[3]:
            found.append(Block(language, "".join(f"{each}\n" for each in inside), start))
            fence = ""
        elif fence:
            inside.append(line)
    if fence:
        raise ValueError(f"the fence that opens before line {start} is never closed")
    return found


def session(text: str) -> str:
    """A block with prompts as doctest reads it: a blank line inside an output is part of it.

    >>> print(session(">>> f()\\na\\n\\nb\\n\\n>>> g()\\n"), end="")
    >>> f()
    a
    <BLANKLINE>
    b
    <BLANKLINE>
    >>> g()
    """
    lines = text.splitlines()
    prompts = [n for n, line in enumerate(lines) if line.startswith(">>>")] + [len(lines)]
    for end in prompts[1:]:
        # Blank lines before the next prompt only set it apart.
        while lines[end - 1] == "":
            end -= 1
            lines[end] = "\0"
    return "".join(f"{'' if line == chr(0) else line or '<BLANKLINE>'}\n" for line in lines)


def commands_of(block: Block) -> Iterator[Command]:
    """What is typed in a shell: the lines of a bash block, or those after `$ ` with the output that follows."""
    if block.language == "bash":
        yield from (Command(line, None) for line in block.text.splitlines() if line and not line.startswith("#"))
    elif block.language == "console":
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Command(command, output.rstrip() or None)


def links_of(text: str) -> set[str]:
    """The links of a page to files of the repository."""
    prose = re.sub(r"^(```+).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = (match[1] or match[2] for match in LINK.finditer(prose))
    return {target for target in targets if not re.match(r"[a-z]+:", target)}


def anchors_of(text: str) -> set[str]:
    """The anchors of the headings, as they are written after `#` in a link."""
    prose = re.sub(r"^(```+).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
