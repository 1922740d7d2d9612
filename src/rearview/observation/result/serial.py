"""An Observation as a .npz file, and back: the arrays, and the other values as JSON in an array of bytes named "about".

>>> import tempfile, torch
>>> from pathlib import Path
>>> from rearview import MaskedSelfAttention
>>> from rearview.observation import Observation, observe
>>> layer = MaskedSelfAttention(8, 2)
>>> with observe(layer) as seen:
...     out = layer(torch.randn(1, 3, 8))
>>> with tempfile.TemporaryDirectory() as folder:
...     seen.save(Path(folder) / "seen.npz")
...     again = Observation.load(Path(folder) / "seen.npz")
>>> torch.equal(again.map(0, 1), seen.map(0, 1))
True
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from rearview.attention.stats import Statistics
from rearview.codec import Reader, parse_json, plain, read_archive, write_archive
from rearview.files import target_of, write_whole
from rearview.observation.result.layer import Layer
from rearview.observation.result.observation import Observation

FORMAT, VERSION = "rearview-observation", 2
# The largest file that is read, packed or unpacked.
LARGEST_FILE = 2**32


@dataclass(frozen=True)
class _StoredLayer:
    """What a file keeps of a Layer: all but its queries and keys."""

    name: str
    kind: str
    index: int
    heads: tuple[int, ...]
    statistics: Statistics


@dataclass(frozen=True)
class _Stored:
    """What a file keeps of an Observation."""

    layers: tuple[_StoredLayer, ...]
    labels: tuple[str, ...] | None
    source_labels: tuple[str, ...] | None
    title: str
    runs: int
    model_layers: int | None


def save(seen: Observation, path: str | os.PathLike[str]) -> None:
    """See `Observation.save`."""
    import numpy

    target = target_of(path, [".npz"])
    layers = tuple(
        _StoredLayer(each.name, each.kind, each.index, tuple(each.heads), each.statistics) for each in seen.layers
    )
    labels, source_labels = (
        None if names is None else tuple(names) for names in (seen._names.labels, seen.source_labels)
    )
    stored = _Stored(layers, labels, source_labels, seen.title, seen.runs, seen.model_layers)
    arrays: dict[str, numpy.ndarray] = {}
    about = {"format": FORMAT, "version": VERSION, **plain(stored, arrays)}
    arrays["about"] = numpy.frombuffer(json.dumps(about).encode(), dtype=numpy.uint8)
    write_whole(target, write_archive(arrays))


def load(path: str | os.PathLike[str]) -> Observation:
    """See `Observation.load`."""
    arrays = read_archive(Path(path), most=LARGEST_FILE)
    reader = Reader(path, arrays)
    if "about" not in arrays:
        reader.refuse("about", "this array", "nothing")
    data = reader.header(parse_json(arrays["about"].tobytes(), path), FORMAT, VERSION)
    stored = reader.read(_Stored, data)
    for n, layer in enumerate(stored.layers):
        _check_shapes(reader, f"layers[{n}].statistics", layer.statistics, len(layer.heads))
    layers = [Layer(each.name, each.kind, each.index, each.heads, each.statistics) for each in stored.layers]
    return Observation(
        layers,
        labels=stored.labels,
        source_labels=stored.source_labels,
        title=stored.title,
        runs=stored.runs,
        model_layers=stored.model_layers,
    )


def _check_shapes(reader: Reader, place: str, found: Statistics, heads: int) -> None:
    """Refuse a damaged file here, not when something is drawn from it."""
    batch, frame = found.lse.shape[0] if found.lse.ndim else 0, found.frame
    # A name stands for any size, which is the same in all shapes. B and H are 1 where all items or heads share a value.
    shapes = {
        "lse": (batch, heads, frame.q_len),
        "entropy": (batch, heads, frame.q_len),
        "distance": (batch, heads, frame.q_len),
        "received": (batch, heads, frame.k_len),
        "expected": ("B", "H", frame.k_len),
        "first": (batch, heads, frame.q_len, 3),
        "histogram": (batch, heads, "bins"),
        "map": (batch, heads, "rows", "columns"),
        "rows_heard": (batch, heads, "rows"),
        "expected_map": ("B", "H", "rows", "columns"),
        "links.weight": (batch, heads, "links"),
        "links.query": (batch, heads, "links"),
        "links.key": (batch, heads, "links"),
    }
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        tensor = attrgetter(name)(found)
        if tensor is None:
            continue
        got = list(tensor.shape)
        fits = len(got) == len(shape) and all(
            size == (sizes.setdefault(want, size) if isinstance(want, str) else want)
            for want, size in zip(shape, got, strict=True)
        )
        if not fits or sizes.get("B", 1) not in (1, batch) or sizes.get("H", 1) not in (1, heads):
            reader.refuse(f"{place}.{name}", f"the shape [{', '.join(map(str, shape))}]", got)
