"""Folders and files that survive a power cut: written to the disk before anything relies on them."""

from __future__ import annotations

import os
from pathlib import Path

from rearview.errors import BadArgument
from rearview.files import write_whole


def sync(path: Path) -> None:
    """Write what the system still holds in memory of a file or folder to the disk."""
    # Windows cannot open folders.
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder and those above it. A folder exists after a power cut only if the one above it was synced."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            sync(folder.parent)
    except OSError as error:
        raise BadArgument("out", expected="a folder that can be made", got=f"{error.strerror} ({path})") from error


def write_synced(path: Path, data: bytes) -> None:
    """Write a whole file, to the disk."""
    write_whole(path, data)
    sync(path)
    sync(path.parent)
