"""Stop strings: text is cut before the first of them, and what may be its beginning is held back until it is sure.

    >>> gate = StopStrings(["END", "\\n\\n"])
    >>> gate.feed("to be E")
    'to be '
    >>> gate.feed("NTRY"), gate.found
    ('ENTRY', False)
    >>> gate.feed("!EN"), gate.feed("DLESS"), gate.found
    ('!', '', True)

How the text was cut into pieces makes no difference: the string that is complete first counts, and of two that are
complete at the same character the longer.
"""

from __future__ import annotations

from collections.abc import Iterable

from rearview.errors import BadArgument


class StopStrings:
    """Feed it pieces of text; the returned pieces, `flush` last, are the text before the first stop string."""

    def __init__(self, strings: Iterable[str] = ()):
        self.strings = tuple(strings)
        for string in self.strings:
            if not isinstance(string, str) or not string:
                raise BadArgument("stop", expected="strings of at least one character", came=repr(string))
        self.found = False
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that is certain now."""
        if self.found:
            return ""
        text = self._held + text
        matches = [(at + len(string), at) for string in self.strings if (at := text.find(string)) >= 0]
        if matches:
            self.found, self._held = True, ""
            return text[: min(matches)[1]]
        keep = max((_overlap(text, string) for string in self.strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, when nothing follows any more."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """How many characters at the end of `text` are the beginning of `string`."""
    longest = min(len(text), len(string) - 1)
    return next((count for count in range(longest, 0, -1) if text.endswith(string[:count])), 0)
