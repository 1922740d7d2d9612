"""Whether a shared library is whole. To map one that was cut short kills the process, without an exception.

>>> import sys
>>> is_whole(Path(sys.executable))
True
"""

import struct
from pathlib import Path

MAGIC = b"\x7fELF\x02\x01"
LOADED = 1


def is_whole(path: Path) -> bool:
    """Whether a 64-bit ELF file holds all that its headers say is loaded. Files of other kinds are not checked.

    A library is written by a linker, so its headers are only damaged where the file is not what was built.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(64)
        if not start.startswith(MAGIC):
            # Too short to be told, or of another system; the loader reads its beginning and refuses what it is not.
            return len(start) == 64
        if len(start) < 64:
            return False
        programs, sections = struct.unpack_from("<QQ", start, 32)
        program_size, program_count, section_size, section_count = struct.unpack_from("<4H", start, 54)
        if max(programs + program_size * program_count, sections + section_size * section_count) > size:
            return False
        file.seek(programs)
        headers = file.read(program_size * program_count)
    for at in range(0, len(headers), program_size):
        kind, _, offset, _, _, stored = struct.unpack_from("<IIQQQQ", headers, at)
        if kind == LOADED and offset + stored > size:
            return False
    return True
