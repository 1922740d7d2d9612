"""The tokenizer of a folder: a rearview_tokenizer.json, or a Hugging Face tokenizer.json."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rearview.errors import BadFile, RearviewError
from rearview.text import builtin, hub
from rearview.text.builtin import ByteTokenizer, CharTokenizer
from rearview.text.tokenizer import Tokenizer


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
    try:
        saved = json.loads(path.read_text(encoding="ascii"))
        kind, specials = saved["kind"], saved["specials"]
        if kind == ByteTokenizer.kind:
            return ByteTokenizer(specials)
        if kind == CharTokenizer.kind:
            return CharTokenizer(saved["alphabet"], specials)
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, RearviewError) as error:
        raise BadFile(path, f"is not a tokenizer: {error}.") from error
    raise BadFile(path, f"has the unknown tokenizer kind {kind!r}.")
