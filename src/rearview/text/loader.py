"""The tokenizer of a folder: a rearview_tokenizer.json, or a Hugging Face tokenizer.json."""

from __future__ import annotations

import os
from pathlib import Path

from rearview.codec import brief, parse_json, read_bytes
from rearview.errors import BadFile, RearviewError
from rearview.text import builtin, hub
from rearview.text.builtin import ByteTokenizer, CharTokenizer
from rearview.text.tokenizer import Tokenizer

LARGEST_FILE = 64 * 2**20


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer that is saved in a folder.

    >>> import tempfile
    >>> from rearview.text import ByteTokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ByteTokenizer().save(folder)
    ...     load_tokenizer(folder).kind
    'bytes'
    """
    path = Path(folder, builtin.FILE)
    if path.exists():
        return _load_builtin(path)
    if Path(folder, hub.FILE).exists():
        return hub.HubTokenizer.load(folder)
    raise BadFile(folder, f"has no tokenizer: neither {builtin.FILE} nor {hub.FILE}.")


def _load_builtin(path: Path) -> Tokenizer:
    saved = parse_json(read_bytes(path, most=LARGEST_FILE), path)
    if not isinstance(saved, dict) or not isinstance(saved.get("specials"), list):
        raise BadFile(path, "is not a tokenizer: expected an object with the fields kind and specials.")
    try:
        if saved.get("kind") == ByteTokenizer.kind:
            return ByteTokenizer(saved["specials"])
        if saved.get("kind") == CharTokenizer.kind:
            return CharTokenizer(saved.get("alphabet"), saved["specials"])  # pyright: ignore[reportArgumentType]
    except RearviewError as error:
        raise BadFile(path, f"is not a tokenizer: {error}") from error
    raise BadFile(path, f"has the unknown tokenizer kind {brief(saved.get('kind'))}.")
