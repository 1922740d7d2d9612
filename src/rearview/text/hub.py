"""Any tokenizer.json, as Hugging Face folders carry it, through the `tokenizers` library.

>>> import tempfile
>>> from rearview.text import BPETokenizer, HubTokenizer
>>> with tempfile.TemporaryDirectory() as folder:
...     BPETokenizer.train(["to be or not to be"], vocab_size=260).save(folder)
...     tokenizer = HubTokenizer.load(folder)
>>> tokenizer.decode(tokenizer.encode("to be"))
'to be'
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rearview.errors import BadArgument, BadFile, MissingExtra
from rearview.text.bytelevel import bytes_of
from rearview.text.specials import END, MASK, PAD, sentinels

if TYPE_CHECKING:
    import tokenizers

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
# What the special tokens are called, where no file says it.
ENDS = (END, "<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]")
MASKS = (MASK, "[MASK]")
PADS = (PAD, "[PAD]")


class HubTokenizer:
    """A `tokenizers.Tokenizer`, and which of its special tokens end, hide and pad; looked up by name unless given."""

    kind = "pieces"

    def __init__(
        self, inner: tokenizers.Tokenizer, *, end: str | None = None, mask: str | None = None, pad: str | None = None
    ):
        self.inner = inner
        # Only text is asked for: no cutting or padding that a file may have been saved with.
        inner.no_truncation()
        inner.no_padding()
        self.names = {
            "eos_token": _known(inner, (end,) if end else ENDS),
            "mask_token": _known(inner, (mask,) if mask else MASKS),
            "pad_token": _known(inner, (pad,) if pad else PADS),
        }
        vocab = inner.get_vocab(with_added_tokens=True)
        # Ids may have holes; a model's rows must reach the last.
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self.sentinel_ids = sentinels(vocab)
        self._special = {id for id, token in inner.get_added_tokens_decoder().items() if token.special}
        self._bytewise = _is_bytelevel(inner)

    @property
    def end_id(self) -> int | None:
        return self._id("eos_token")

    @property
    def mask_id(self) -> int | None:
        return self._id("mask_token")

    @property
    def pad_id(self) -> int | None:
        return self._id("pad_token")

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """The ids. `specials`: names such as [MASK] are read as these tokens, and what the file puts around a text
        ([CLS] and [SEP], say) is added."""
        if not isinstance(text, str):
            raise BadArgument("text", expected="a string", came=type(text).__name__)
        self.inner.encode_special_tokens = not specials
        try:
            return self.inner.encode(text, add_special_tokens=specials).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise BadArgument("text", expected="text that UTF-8 can write", came=str(error)) from error

    def decode(self, ids: Sequence[int]) -> str:
        wrong = next((id for id in ids if not 0 <= id < self.vocab_size), None)
        if wrong is not None:
            raise BadArgument("ids", expected=f"ids from 0 to {self.vocab_size - 1}", came=wrong)
        return self.inner.decode(list(ids), skip_special_tokens=True)

    def token_bytes(self, id: int) -> bytes | None:
        if not self._bytewise:
            return None
        token = self.inner.id_to_token(id)
        return b"" if token is None or id in self._special else bytes_of(token)

    def save(self, folder: str | os.PathLike[str]) -> None:
        self.inner.encode_special_tokens = False
        Path(folder, FILE).write_text(self.inner.to_str(pretty=True), encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **{k: v for k, v in self.names.items() if v}}
        Path(folder, CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> HubTokenizer:
        """From a folder with tokenizer.json; tokenizer_config.json, if there, names the special tokens."""
        library = tokenizers_library()
        path = Path(folder, FILE)
        try:
            inner = library.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BadFile(path, "is not there.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise BadFile(path, f"cannot be read: {error}.") from error
        except Exception as error:  # The library raises Exception itself.
            raise BadFile(path, f"is not a tokenizer that the tokenizers library reads: {error}.") from error
        said = _said(Path(folder, CONFIG))
        return cls(inner, end=said.get("eos_token"), mask=said.get("mask_token"), pad=said.get("pad_token"))

    def _id(self, role: str) -> int | None:
        name = self.names[role]
        return None if name is None else self.inner.token_to_id(name)


def tokenizers_library() -> Any:
    """The `tokenizers` module."""
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra("tokenizers", extra="models", needed_for="A tokenizer of word pieces") from error
    return tokenizers


def _known(inner: tokenizers.Tokenizer, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if inner.token_to_id(name) is not None), None)


def _said(path: Path) -> dict[str, str]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadFile(path, f"is not JSON that can be read: {error}.") from error
    if not isinstance(config, dict):
        raise BadFile(path, "is not a JSON object.")
    # A token is its text, or an object that has it.
    contents = {key: value.get("content") if isinstance(value, dict) else value for key, value in config.items()}
    return {key: value for key, value in contents.items() if isinstance(value, str)}


def _is_bytelevel(inner: tokenizers.Tokenizer) -> bool:
    decoder = json.loads(inner.to_str()).get("decoder") or {}
    return decoder.get("type") == "ByteLevel"
