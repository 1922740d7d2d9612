"""What a token looks like in a drawing: its text, with what cannot be seen made visible.

>>> from rearview.text import ByteTokenizer
>>> token_labels(ByteTokenizer(), [72, 105, 32, 10, 195, 256])
['H', 'i', '␣', '⏎', '\\\\xc3', '<256>']
"""

from __future__ import annotations

from collections.abc import Sequence

from rearview.text.tokenizer import Tokenizer

VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def token_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """One label a token; the same text always has the same label."""
    return [_label(tokenizer, id) for id in ids]


def _label(tokenizer: Tokenizer, id: int) -> str:
    data = tokenizer.token_bytes(id)
    text = tokenizer.decode([id]) if data is None else data.decode("utf-8", errors="backslashreplace")
    return text.translate(VISIBLE) or f"<{id}>"
