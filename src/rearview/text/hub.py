"""Tokenizers of Hugging Face folders: any tokenizer.json, read with the `tokenizers` library.

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
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.codec import brief, parse_json, read_bytes
from rearview.errors import BadArgument, BadFile, MissingExtra, RearviewError
from rearview.text.specials import END, MASK, PAD, sentinels

if TYPE_CHECKING:
    import tokenizers

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
LARGEST_FILE = 2**28
# The largest vocabularies of released models have about a quarter of a million tokens.
LARGEST_VOCAB = 2**24
# Names of the special tokens, tried in order where tokenizer_config.json gives none.
ENDS = (END, "<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]")
MASKS = (MASK, "[MASK]")
PADS = (PAD, "[PAD]")


class HubTokenizer:
    """A `tokenizers.Tokenizer` with its end, mask and pad tokens, which are found by their usual names unless given."""

    kind = "pieces"

    def __init__(
        self, inner: tokenizers.Tokenizer, *, end: str | None = None, mask: str | None = None, pad: str | None = None
    ):
        self.inner = inner
        # A file may have been saved with truncation or padding switched on.
        inner.no_truncation()
        inner.no_padding()
        self.names = {
            "eos_token": _known(inner, (end,) if end else ENDS),
            "mask_token": _known(inner, (mask,) if mask else MASKS),
            "pad_token": _known(inner, (pad,) if pad else PADS),
        }
        vocab = inner.get_vocab(with_added_tokens=True)
        # Ids may have gaps; the embedding of a model must reach the last id.
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self.sentinel_ids = sentinels(vocab)
        self._special = {id for id, token in inner.get_added_tokens_decoder().items() if token.special}
        self._is_byte_level = _has_byte_level_decoder(inner)
        self.reads_pieces = _reads_pieces(inner)

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
        """The ids of a text.

        With `specials`, names such as [MASK] in the text become special tokens, and the tokens that the file puts
        around a text, such as [CLS] and [SEP], are added.
        """
        if not isinstance(text, str):
            raise BadArgument("text", expected="a string", got=type(text).__name__)
        self.inner.encode_special_tokens = not specials
        try:
            with _library_errors(FILE, "this tokenizer cannot encode the text"):
                return self.inner.encode(text, add_special_tokens=specials).ids
        except BadFile as error:
            if isinstance(error.__cause__, (UnicodeEncodeError, TypeError)):
                raise BadArgument("text", expected="text that UTF-8 can encode", got=error.__cause__) from error
            raise

    def encode_tensors(self, texts: Sequence[str]) -> list[Tensor]:
        """The ids of each text, int32; the texts are encoded in parallel."""
        self.inner.encode_special_tokens = True
        try:
            found = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except (UnicodeEncodeError, TypeError) as error:
            raise BadArgument("texts", expected="texts that UTF-8 can encode", got=str(error)) from error
        return [torch.tensor(each.ids, dtype=torch.int32) for each in found]

    def decode(self, ids: Sequence[int]) -> str:
        wrong = next((id for id in ids if not 0 <= id < self.vocab_size), None)
        if wrong is not None:
            raise BadArgument("ids", expected=f"ids from 0 to {self.vocab_size - 1}", got=wrong)
        with _library_errors(FILE, "this tokenizer cannot decode the tokens"):
            return self.inner.decode(list(ids), skip_special_tokens=True)

    def token_bytes(self, id: int) -> bytes | None:
        if not self._is_byte_level:
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
        """Read tokenizer.json from a folder; tokenizer_config.json, if present, names the special tokens."""
        path = Path(folder, FILE)
        if not path.exists():
            raise BadFile(path, "does not exist.")
        data = read_bytes(path, most=LARGEST_FILE)
        _check_ids(parse_json(data, path), path)
        with _library_errors(path, "is not a tokenizer that the tokenizers library can read"):
            inner = tokenizers_library().Tokenizer.from_str(data.decode("utf-8-sig"))
        names = _token_names(Path(folder, CONFIG))
        return cls(inner, end=names.get("eos_token"), mask=names.get("mask_token"), pad=names.get("pad_token"))

    def _id(self, role: str) -> int | None:
        name = self.names[role]
        return None if name is None else self.inner.token_to_id(name)


def tokenizers_library() -> ModuleType:
    """The `tokenizers` module, which is imported when it is first needed."""
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra("tokenizers", extra="models", needed_for="A subword tokenizer") from error
    return tokenizers


def _known(inner: tokenizers.Tokenizer, names: tuple[str, ...]) -> str | None:
    # Half a character (a lone surrogate) is in no vocabulary, and the library cannot be asked for it.
    askable = (name for name in names if not re.search("[\ud800-\udfff]", name))
    return next((name for name in askable if inner.token_to_id(name) is not None), None)


@contextmanager
def _library_errors(source: object, what: str) -> Iterator[None]:
    """Errors of the tokenizers library, which raises Exception itself, as `BadFile`."""
    try:
        yield
    except RearviewError:
        raise
    except BaseException as error:
        # A panic of the library, which is in Rust, is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadFile(source, f"{what}: {error}.") from error


def _check_ids(data: object, path: Path) -> None:
    """Refuse ids that no vocabulary has: the library takes memory in proportion to the largest one."""
    model = data.get("model") if isinstance(data, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    added = data.get("added_tokens") if isinstance(data, dict) else None
    ids = list(vocab.values()) if isinstance(vocab, dict) else []
    ids += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    for id in ids:
        if not isinstance(id, int) or not 0 <= id < LARGEST_VOCAB:
            raise BadFile(path, f"expected ids from 0 to {LARGEST_VOCAB - 1:,}, got {brief(id)}.")


def _token_names(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    config = parse_json(read_bytes(path, most=LARGEST_FILE), path)
    if not isinstance(config, dict):
        raise BadFile(path, "is not a JSON object.")
    # A token is given by its text, or by an object that has its text as "content".
    contents = {key: value.get("content") if isinstance(value, dict) else value for key, value in config.items()}
    return {key: value for key, value in contents.items() if isinstance(value, str)}


def _has_byte_level_decoder(inner: tokenizers.Tokenizer) -> bool:
    return isinstance(inner.decoder, tokenizers_library().decoders.ByteLevel)


def _reads_pieces(inner: tokenizers.Tokenizer) -> bool:
    """Whether the tokens of a text are those of its pieces: it is divided into words as by GPT-2, and not changed."""
    parts = json.loads(inner.to_str())
    words = parts.get("pre_tokenizer") or {}
    plain = words.get("type") == "ByteLevel" and words.get("use_regex", True) and not words.get("add_prefix_space")
    return plain and parts.get("normalizer") is None


@cache
def byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for, as in GPT-2.

    Printable bytes are written as themselves, the others as characters from U+0100 on.

    >>> byte_alphabet()["a"], byte_alphabet()["Ġ"]
    (97, 32)
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def bytes_of(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary; a token outside its alphabet is plain text.

    >>> bytes_of("Ġlove")
    b' love'
    """
    alphabet = byte_alphabet()
    if any(character not in alphabet for character in token):
        return token.encode("utf-8")
    return bytes(alphabet[character] for character in token)
