"""What tokenizers without a library share: special tokens, and one small file.

>>> import tempfile
>>> from rearview.text import CharTokenizer, load_tokenizer
>>> with tempfile.TemporaryDirectory() as folder:
...     CharTokenizer("abc").save(folder)
...     load_tokenizer(folder).alphabet
'abc'
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rearview.errors import BadArgument
from rearview.text.specials import Specials

FILE = "rearview_tokenizer.json"


class OwnTokenizer(ABC):
    """Ordinary tokens from 0, then the special ones."""

    kind: str

    def __init__(self, specials: Specials):
        self.specials = specials
        self.vocab_size = specials.start + len(specials.names)

    @property
    def end_id(self) -> int | None:
        return self.specials.end_id

    @property
    def mask_id(self) -> int | None:
        return self.specials.mask_id

    @property
    def pad_id(self) -> int | None:
        return self.specials.pad_id

    @property
    def sentinel_ids(self) -> tuple[int, ...]:
        return self.specials.sentinel_ids

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """The ids. `specials`: names such as <mask> in the text are read as these tokens."""
        if not isinstance(text, str):
            raise BadArgument("text", expected="a string", came=type(text).__name__)
        if not specials:
            return self._plain(text)
        parts = ([part] if isinstance(part, int) else self._plain(part) for part in self.specials.cut(text))
        return [id for part in parts for id in part]

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str: ...

    @abstractmethod
    def token_bytes(self, id: int) -> bytes: ...

    @abstractmethod
    def save(self, folder: str | os.PathLike[str]) -> None: ...

    @abstractmethod
    def _plain(self, text: str) -> list[int]: ...

    def _check(self, ids: Sequence[int]) -> None:
        wrong = next((id for id in ids if not 0 <= id < self.vocab_size), None)
        if wrong is not None:
            raise BadArgument("ids", expected=f"ids from 0 to {self.vocab_size - 1}", came=wrong)

    def _write(self, folder: str | os.PathLike[str], rest: dict[str, Any]) -> None:
        text = json.dumps({"kind": self.kind, **rest, "specials": self.specials.names}, ensure_ascii=True, indent=1)
        Path(folder, FILE).write_text(text + "\n", encoding="ascii")
