"""The alphabet in which byte-level tokenizers write bytes: printable ones as themselves, others moved above 255.

>>> bytes_of("Ġlove")
b' love'
"""

from __future__ import annotations

from functools import cache


@cache
def alphabet() -> dict[str, int]:
    """Which byte a character stands for, as GPT-2 chose it.

    >>> alphabet()["a"], alphabet()["Ġ"]
    (97, 32)
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def bytes_of(token: str) -> bytes:
    """The bytes of a token; one that is not written in the alphabet stands for itself."""
    known = alphabet()
    if any(character not in known for character in token):
        return token.encode("utf-8")
    return bytes(known[character] for character in token)
