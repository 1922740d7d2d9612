"""What tests of hostile files share: bounds on time and memory, hostile values, mutations, and what is no file."""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rearview.errors import RearviewError

MUTATIONS = int(os.environ.get("REARVIEW_FUZZ", "12"))
SEED = os.environ.get("REARVIEW_FUZZ_SEED", "")
SECONDS, BYTES = 20, 3 * 2**30
ESCAPE = "\x1b]0;owned\x07\x1b[2J"

HOSTILE: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**30, 10**12, 0.5, -1e-5, 1e308),
    *("", "x", "1e-5", "nan", "inf", ESCAPE, "‮", "\ud800", "../../etc/passwd", "causal(", "a" * 10_000),
    *([], [[]], [None], ["gelu"], {}, {"content": 5}, {"": {}}, [1, "a"], list(range(50))),
]


@contextmanager
def bounded() -> Iterator[None]:
    """Fail what takes too long, and what takes too much memory, instead of waiting for it."""

    def too_long(*_: object) -> None:
        pytest.fail(f"took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, limits[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def holds(use: Callable[[Any], None], path: object) -> str | None:
    """The error of reading the path, whose text a terminal may be given; None where it could be read."""
    with bounded():
        try:
            use(path)
        except RearviewError as error:
            text = str(error)
            assert all(c.isprintable() or c == "\n" for c in text), repr(text)
            assert len(text) < 5000
            return text
    return None


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*at, key)
        yield from places(part, (*at, key))


def changed_value(text: str, draw: random.Random) -> bytes:
    data = json.loads(text)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        found = list(places(data))
        if not found:
            break
        # Deep places are many, and the shallow ones matter as much.
        depth = draw.choice(sorted({len(place) for place in found}))
        *path, last = draw.choice([place for place in found if len(place) == depth])
        inner = data
        for step in path:
            inner = inner[step]
        if draw.random() < 0.15:
            del inner[last]
        else:
            # A copy: a later change may reach into it.
            inner[last] = copy.deepcopy(draw.choice(HOSTILE))
    return json.dumps(data).encode()


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    body = bytearray(data)
    if draw.random() < 0.25:
        return bytes(body[: draw.randrange(len(body))])
    for _ in range(draw.choice([1, 2, 8, 64])):
        # The beginnings of these formats describe the rest.
        at = draw.randrange(min(len(body), draw.choice([16, 128, 1024, len(body)])))
        body[at] = draw.choice([0, 255, 0x22, 0x7B, 0x39, draw.randrange(256)])
    return bytes(body)


def changed_archive(data: bytes, path: Path, draw: random.Random) -> bytes:
    """The archive with a hostile value in the JSON that describes it, or without one of its arrays."""
    path.write_bytes(data)
    with np.load(path) as arrays:
        found: dict[str, Any] = dict(arrays)
    name = draw.choice(sorted(found))
    if "about" in found and draw.random() < 0.6:
        about = changed_value(found["about"].tobytes().decode(), draw)
        found["about"] = np.frombuffer(about, dtype=np.uint8)
    elif draw.random() < 0.3:
        del found[name]
    else:
        other = draw.choice(["c16", "i8", "?", "U4", "f2", "f8"])
        shape = tuple(draw.randrange(4) for _ in range(draw.randrange(4)))
        found[name] = np.ones(shape).astype(other)
    np.savez(path, **found)
    return path.read_bytes()


def mutated(path: Path, good: bytes, number: int, draw: random.Random) -> bytes:
    """The content of a file with something changed in it, as its kind suggests."""
    if path.suffix == ".json" and number % 4:
        return changed_value(good.decode(), draw)
    if path.suffix == ".npz" and number % 2:
        return changed_archive(good, path, draw)
    return changed_bytes(good, draw)


def _link(path: Path, target: str) -> None:
    path.symlink_to(target)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


Repair = Callable[[Path], None]


def no_repair(given: Path) -> None:
    """Leave the change as it is."""


# What may be found where a file is expected.
IN_PLACE: dict[str, Callable[[Path], None]] = {
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: _link(path, path.name),
    "a link to nothing": lambda path: _link(path, "nothing"),
    "an endless device": lambda path: _link(path, "/dev/zero"),
    "an empty file": lambda path: path.touch(),
    "a file of a tebibyte": _sparse,
}


def check_mutations(
    use: Callable[[Path], None], target: Path, given: Path, name: str, repair: Repair = no_repair
) -> None:
    """Change a file at random, many times: `use(given)` reads it or refuses it, and nothing else.

    Args:
        repair: what an attacker would do after a change, such as making checksums fit again.
    """
    draw, good = random.Random(f"{SEED}{name}"), target.read_bytes()
    assert holds(use, given) is None
    refused = 0
    for number in range(MUTATIONS):
        bad = mutated(target, good, number, draw)
        target.write_bytes(bad)
        repair(given)
        try:
            refused += holds(use, given) is not None
        except Exception as error:
            raise AssertionError(f"mutation {number} of {name}: {type(error).__name__}: {error}") from error
    assert refused, "no mutation did any harm: they prove nothing"


def check_in_place(use: Callable[[Path], None], target: Path, given: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    target.unlink()
    IN_PLACE[kind](target)
    said = holds(use, given)
    if kind in ("a pipe", "a folder", "an endless device"):
        assert said, f"{kind} was read"
