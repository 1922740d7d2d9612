"""Writing files atomically: a reader sees the old file or the new one, never a part of it."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from rearview.errors import BadArgument


def target_of(path: str | os.PathLike[str], endings: Sequence[str]) -> Path:
    """The path as a `Path`, if its name has one of these endings and its folder exists.

    >>> target_of("causal.SVG", [".svg", ".png"]).suffix
    '.SVG'
    """
    if not isinstance(path, (str, os.PathLike)):
        raise BadArgument("path", expected="a file name", got=repr(path))
    target = Path(path)
    if target.suffix.lower() not in endings:
        got = repr(target.suffix) if target.suffix else "no ending"
        known = " or ".join(part for part in (", ".join(endings[:-1]), endings[-1]) if part)
        raise BadArgument("path", expected=f"a name that ends in {known}", got=f"{got} ({target})")
    if not target.parent.is_dir():
        raise BadArgument("path", expected="a folder that exists", got=str(target.parent))
    return target


def write_whole(target: Path, data: bytes) -> None:
    """Write the file atomically: to a temporary file next to the target, which then replaces it."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, target)
    except OSError as error:
        raise BadArgument("path", expected="a file that can be written", got=f"{error.strerror} ({target})") from error
    finally:
        # On a file system that cannot be written to, even this is refused.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
