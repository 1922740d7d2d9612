"""Stop strings: cut a text before the first of them, and hold back what may turn out to be the beginning of one.

    >>> stops = StopStrings(["END", "\\n\\n"])
    >>> stops.feed("to be E")
    'to be '
    >>> stops.feed("NTRY"), stops.found
    ('ENTRY', False)
    >>> stops.feed("!EN"), stops.feed("DLESS"), stops.found
    ('!', '', True)

The result does not depend on how the text is split. The stop string that is complete first counts; of two that end at
the same character, the longer counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from rearview.errors import BadArgument


class StopStrings:
    """Takes a text in pieces. The results of `feed`, and of `flush`, join to the text before the first stop string."""

    def __init__(self, strings: Iterable[str] = ()):
        self.strings = tuple(strings)
        for string in self.strings:
            if not isinstance(string, str) or not string:
                raise BadArgument("stop", expected="non-empty strings", got=repr(string))
        self.found = False
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that cannot become part of a stop string any more."""
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
        """The text that was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """The number of characters at the end of `text` that are the beginning of `string`."""
    longest = min(len(text), len(string) - 1)
    return next((count for count in range(longest, 0, -1) if text.endswith(string[:count])), 0)
