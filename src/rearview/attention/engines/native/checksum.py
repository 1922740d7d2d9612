"""Whether the shared library is the file that was built.

A library that was cut short kills the process when it is mapped, and one with flipped bits may do anything; neither
raises an exception. The build writes its SHA-256 beside it, in the format of sha256sum, and it is compared first.

>>> from rearview.attention.engines.native.library import PATH
>>> damage(PATH) is None or not PATH.exists()
True
"""

import hashlib
from pathlib import Path


def damage(library: Path) -> str | None:
    """What is wrong with the file of a library, or None if it is the one that was built."""
    recorded = library.with_name(f"{library.name}.sha256")
    if not recorded.exists():
        return f"its checksum, {recorded.name}, is missing"
    if hashlib.sha256(library.read_bytes()).hexdigest() != recorded.read_text("utf-8", "replace").partition(" ")[0]:
        return "the file is not the one that was built"
    return None
