"""The tokenizer of a folder: our own small file, or a Hugging Face tokenizer.json."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rearview.errors import BadFile, RearviewError
from rearview.text import hub, own
from rearview.text.bytewise import ByteTokenizer
from rearview.text.characters import CharTokenizer
from rearview.text.tokenizer import Tokenizer


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer that was saved in a folder.

    >>> import tempfile
    >>> from rearview.text import ByteTokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ByteTokenizer().save(folder)
    ...     load_tokenizer(folder).kind
    'bytes'
    """
    path = Path(folder, own.FILE)
    if path.exists():
        return _own(path)
    if Path(folder, hub.FILE).exists():
        return hub.HubTokenizer.load(folder)
    raise BadFile(folder, f"has no tokenizer: neither {own.FILE} nor {hub.FILE}.")


def _own(path: Path) -> Tokenizer:
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
    raise BadFile(path, f"is of the kind {kind!r}, which is not known here.")
