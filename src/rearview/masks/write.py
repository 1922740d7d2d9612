"""Files that are written whole: a reader sees the old one or the new one, never half of one."""

import os
from collections.abc import Sequence
from pathlib import Path

from rearview.errors import BadArgument


def target_of(path: str | os.PathLike[str], endings: Sequence[str]) -> Path:
    """The path, if its name has one of these endings and its folder exists.

    >>> target_of("causal.SVG", [".svg", ".png"]).suffix
    '.SVG'
    """
    if not isinstance(path, (str, os.PathLike)):
        raise BadArgument("path", expected="a file name", came=repr(path))
    target = Path(path)
    if target.suffix.lower() not in endings:
        came = repr(target.suffix) if target.suffix else "no ending"
        known = f"{', '.join(endings[:-1])} or {endings[-1]}"
        raise BadArgument("path", expected=f"a name that ends in {known}", came=f"{came} ({target})")
    if not target.parent.is_dir():
        raise BadArgument("path", expected="a folder that exists", came=str(target.parent))
    return target


def write_whole(target: Path, data: bytes) -> None:
    """Write beside the target, then put it in its place in one step."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(data)
        os.replace(beside, target)
    except OSError as error:
        raise BadArgument("path", expected="a file that can be written", came=f"{error.strerror} ({target})") from error
    finally:
        beside.unlink(missing_ok=True)
