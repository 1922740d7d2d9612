"""Seen as a .npz file, and back: plain arrays and a list of names, nothing that could run.

>>> import tempfile, torch
>>> from pathlib import Path
>>> from rearview import MaskedSelfAttention
>>> from rearview.observe import Seen, observe
>>> layer = MaskedSelfAttention(8, 2)
>>> with observe(layer) as seen:
...     out = layer(torch.randn(1, 3, 8))
>>> with tempfile.TemporaryDirectory() as folder:
...     seen.save(Path(folder) / "seen.npz")
...     again = Seen.load(Path(folder) / "seen.npz")
>>> torch.equal(again.map(0, 1), seen.map(0, 1))
True
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rearview.attention.statistics import Links, Statistics
from rearview.errors import BadFile, MissingExtra, RearviewError
from rearview.masks import Frame
from rearview.masks.write import target_of, write_whole
from rearview.observe.layer import Layer
from rearview.observe.seen import Seen

FORMAT, VERSION = "rearview-seen", 1


def save(seen: Seen, path: str | os.PathLike[str]) -> None:
    """See `Seen.save`."""
    np = _numpy()
    target = target_of(path, [".npz", ".npz"])
    arrays: dict[str, Any] = {}
    layers = [_packed(layer, f"{n}.", arrays) for n, layer in enumerate(seen.layers)]
    about = {
        "format": FORMAT,
        "version": VERSION,
        "title": seen.title,
        "runs": seen.runs,
        "model_layers": seen.model_layers,
        "labels": None if seen._names.labels is None else list(seen._names.labels),
        "source_labels": seen.source_labels,
        "layers": layers,
    }
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_whole(target, buffer.getvalue())


def _packed(layer: Layer, prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """The plain fields; tensors go into `arrays`."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(layer.statistics):
        value = getattr(layer.statistics, field.name)
        if isinstance(value, Tensor):
            arrays[prefix + field.name] = value.detach().cpu().numpy()
        elif isinstance(value, Links):
            for name in ("weight", "query", "key"):
                arrays[f"{prefix}links.{name}"] = getattr(value, name).detach().cpu().numpy()
        elif isinstance(value, Frame):
            plain[field.name] = [value.q_len, value.k_len, value.q_start]
        elif value is not None:
            plain[field.name] = value
    own = {"name": layer.name, "kind": layer.kind, "index": layer.index, "heads": list(layer.heads)}
    return {**own, "statistics": plain}


def load(path: str | os.PathLike[str]) -> Seen:
    """See `Seen.load`."""
    np = _numpy()
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise BadFile(path, f"it is no .npz file that can be read: {error}") from error
    try:
        about = json.loads(bytes(arrays["about"]).decode())
        if (about["format"], about["version"]) != (FORMAT, VERSION):
            came = f"{about['format']!r} version {about['version']!r}"
            raise BadFile(path, f"expected {FORMAT!r} version {VERSION}, got {came}")
        layers = [_unpacked(plain, f"{n}.", arrays) for n, plain in enumerate(about["layers"])]
        return Seen(
            layers,
            labels=about["labels"],
            source_labels=about["source_labels"],
            title=about["title"],
            runs=about["runs"],
            model_layers=about["model_layers"],
        )
    except RearviewError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadFile(path, f"it does not hold what Seen.save writes: {type(error).__name__}: {error}") from error


def _unpacked(plain: dict[str, Any], prefix: str, arrays: dict[str, Any]) -> Layer:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(Statistics):
        if prefix + field.name in arrays:
            fields[field.name] = torch.from_numpy(arrays[prefix + field.name])
        elif field.name == "links":
            fields["links"] = Links(
                *(torch.from_numpy(arrays[f"{prefix}links.{n}"]) for n in ("weight", "query", "key"))
            )
        elif field.name == "frame":
            fields["frame"] = Frame(*plain["statistics"]["frame"])
        else:
            value = plain["statistics"].get(field.name)
            fields[field.name] = tuple(value) if isinstance(value, list) else value
    found = Statistics(**fields)
    heads = tuple(plain["heads"])
    _check_shapes(found, len(heads))
    return Layer(plain["name"], plain["kind"], plain["index"], heads, found)


def _check_shapes(found: Statistics, heads: int) -> None:
    """A file that was cut or mixed up is refused here, not when something is drawn."""
    batch, frame = found.lse.shape[0], found.frame
    shapes = {
        "lse": (batch, heads, frame.q_len),
        "entropy": (batch, heads, frame.q_len),
        "distance": (batch, heads, frame.q_len),
        "received": (batch, heads, frame.k_len),
        "first": (batch, heads, frame.q_len, 3),
    }
    for name, shape in shapes.items():
        if tuple(getattr(found, name).shape) != shape:
            raise ValueError(f"{name} has the shape {list(getattr(found, name).shape)}, not {list(shape)}")


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise MissingExtra("numpy", extra="pictures", needed_for="A .npz file") from error
    return numpy
