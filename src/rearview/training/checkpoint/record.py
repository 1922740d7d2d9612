"""training.json: the step and the settings of a checkpoint, and the checksum of each of its files and of itself.

>>> record = Record(step=7, config={}, fingerprint="", validation=None, files={})
>>> Record.from_bytes(record.to_bytes(), "training.json") == record
True
>>> Record.from_bytes(record.to_bytes().replace(b"7", b"8"), "training.json")
Traceback (most recent call last):
rearview.errors.BadFile: training.json: is damaged: its checksum does not match.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType

from rearview.codec import Reader, brief, check_regular, parse_json, read_bytes
from rearview.errors import BadFile

NAME = "training.json"
LARGEST_FILE = 64 * 2**20


@dataclass(frozen=True)
class Record:
    """What a checkpoint knows of its run.

    Args:
        config: the settings, as `TrainConfig.to_json` returns them.
        fingerprint: the fingerprint of the text.
        validation: the validation loss at this step, if it was measured.
        files: the size and checksum of each file.
    """

    step: int
    config: dict[str, object]
    fingerprint: str
    validation: float | None
    files: dict[str, tuple[int, str]]

    def to_bytes(self) -> bytes:
        body = json.loads(json.dumps(asdict(self)))
        return (json.dumps({**body, "checksum": _checksum(body)}, indent=1) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, path: object) -> Record:
        reader = Reader(path)
        try:
            body = reader.read(dict[str, object], parse_json(data, path))
            checksum = body.pop("checksum", None)
            # A loss that is not finite is a number of JSON as Python writes it, which the reader would refuse.
            loss = body.get("validation")
            validation = loss if isinstance(loss, float) else reader.read(NoneType, loss, "validation")
            record = reader.read(cls, body, given={"validation": validation})
            if record.step < 0:
                reader.refuse("step", "a number of at least 0", record.step)
            for name in record.files:
                if Path(name).is_absolute() or ".." in Path(name).parts:
                    reader.refuse("files", "names of files in this folder", brief(name))
        except BadFile as error:
            raise BadFile(path, f"is damaged, or is not the record of a checkpoint: {error.why}.") from error
        if checksum != _checksum(body):
            raise BadFile(path, "is damaged: its checksum does not match.")
        return record

    @classmethod
    def read(cls, folder: Path) -> Record:
        path = folder / NAME
        try:
            data = read_bytes(path, most=LARGEST_FILE)
        except BadFile as error:
            raise BadFile(path, f"cannot be read: {error.why}.") from error
        return cls.from_bytes(data, path)

    def damage(self, folder: Path, *, but: Sequence[str] = ()) -> BadFile | None:
        """The first file that differs from what was written; files whose names begin as one of `but` are not read."""
        for name, (size, digest) in self.files.items():
            if name.startswith(tuple(but)):
                continue
            path = folder / name
            try:
                check_regular(path)
                got = path.stat().st_size
                if got != size:
                    return BadFile(path, f"is damaged: expected {size} bytes, got {got}.")
                if checksum_of(path) != digest:
                    return BadFile(path, "is damaged: its checksum does not match.")
            except BadFile as error:
                return BadFile(path, f"is damaged: {error.why}.")
            except OSError as error:
                return BadFile(path, f"is damaged: {error.strerror}.")
        return None


def checksum_of(path: Path) -> str:
    """The SHA-256 checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(body: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
