"""Text measured in terminal cells: cut, padded and wrapped; control characters written out; counts and shares.

>>> from rearview.drawing.cells import cut, width
>>> cut("restaurant", 6), width("寿司")
('resta…', 4)
"""

import unicodedata


def printable(text: str) -> str:
    """The text with control characters written out: a newline or an escape code would break a drawing.

    >>> printable("a\\tb")
    'a\\\\tb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def drawn(word: str) -> str:
    """A token as a label: control characters are written out, and spaces at its edges are made visible.

    >>> drawn(" love"), drawn("a\\tb")
    ('␣love', 'a\\\\tb')
    """
    # Most tokens of real models begin with a space, which would be invisible at an edge.
    word = printable(word)
    inner = word.strip(" ")
    if not inner:
        return "␣" * len(word)
    before = len(word) - len(word.lstrip(" "))
    return "␣" * before + inner + "␣" * (len(word) - before - len(inner))


def harmless(text: str, keep: str = "") -> str:
    """The text with control characters replaced, except those in `keep`: a model may generate escape codes.

    >>> harmless("red \\x1b[31m\\n", keep="\\n")
    'red �[31m\\n'
    """
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop.

    >>> sentence("nothing moved"), sentence("Why?")
    ('Nothing moved.', 'Why?')
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def wrapped(text: str, most: int, *, later: str = "") -> list[str]:
    """Lines of at most `most` cells; those after the first begin with `later`. A longer word gets its own line.

    >>> wrapped("a share of 12.5 % itself", 13, later="  ")
    ['a share of', '  12.5 %', '  itself']
    """
    lines: list[str] = []
    # A number and its percent sign stay together.
    for word in text.replace(" %", "\N{NO-BREAK SPACE}%").split(" "):
        if lines and width(f"{lines[-1]} {word}") <= most:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{later if lines else ''}{word}")
    return [line.replace("\N{NO-BREAK SPACE}%", " %") for line in lines]


def counted(number: int, one: str, many: str) -> str:
    """A number with its noun in the singular or plural.

    >>> counted(1, "query", "queries"), counted(4096, "query", "queries")
    ('1 query', '4,096 queries')
    """
    return f"{number:,} {one if number == 1 else many}"


def percent(part: int, whole: int) -> str:
    """A share with one decimal; only 0 is written as 0.0 % and only 1 as 100.0 %.

    >>> percent(2, 3), percent(1, 10**9), percent(10**9 - 1, 10**9), percent(3, 3)
    ('66.7 %', 'under 0.1 %', 'over 99.9 %', '100.0 %')
    """
    share = 100 * part / max(1, whole)
    if part > 0 and share < 0.05:
        return "under 0.1 %"
    if part < whole and share >= 99.95:
        return "over 99.9 %"
    return f"{share:.1f} %"


def width(text: str) -> int:
    """The number of terminal cells that a text takes.

    >>> width("sushi"), width("寿司")
    (5, 4)
    """
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    # Combining marks and joiners are drawn on the character before them.
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def letters(text: str) -> list[str]:
    """The letters of a text, with combining marks kept with their letter.

    >>> [len(letter) for letter in letters("nin\\u0303o")]
    [1, 1, 2, 1]
    """
    found: list[str] = []
    for character in text:
        if found and _cells(character) == 0:
            found[-1] += character
        else:
            found.append(character)
    return found


def cut(text: str, most: int) -> str:
    """The text in at most `most` cells, with `…` where it was cut."""
    if width(text) <= most:
        return text
    kept, used = "", 0
    for character in text:
        used += _cells(character)
        if used > most - 1:
            break
        kept += character
    return kept + "…"


def left(text: str, cells: int) -> str:
    """The text padded on the right to this many cells."""
    return text + " " * (cells - width(text))


def right(text: str, cells: int) -> str:
    """The text padded on the left to this many cells."""
    return " " * (cells - width(text)) + text


def centre(text: str, cells: int) -> str:
    """The text padded on both sides to this many cells."""
    return left(" " * ((cells - width(text)) // 2) + text, cells)


def in_bytes(count: int) -> str:
    """A number of bytes for people.

    >>> in_bytes(900), in_bytes(3 * 2**20)
    ('900 B', '3.0 MiB')
    """
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
