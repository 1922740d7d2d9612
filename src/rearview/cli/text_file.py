"""The file that `--text` names: what a model reads."""

from __future__ import annotations

from pathlib import Path

from rearview.codec import check_regular
from rearview.errors import BadArgument


def read_text_file(path: Path, *, expected: str = "a file of text", advice_if_missing: str = "") -> str:
    """The content of the file; pipes and devices, which may never end, are refused."""
    if not path.is_dir():
        check_regular(path)
    advice = ""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        advice = advice_if_missing if isinstance(error, FileNotFoundError) else ""
    except UnicodeDecodeError:
        why = "not UTF-8"
    except MemoryError:
        why = "it is too large"
    raise BadArgument("--text", expected=expected, got=f"{path}: {why}", advice=advice)
