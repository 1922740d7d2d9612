"""Seen as a file: all of it comes back, and what is no such file is refused."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from rearview.errors import BadArgument, BadFile, Unsupported
from rearview.observe import Seen, observe
from tests.observe.models import gpt, t5, tokens


@pytest.fixture(scope="module")
def seen() -> Seen:
    model = t5()
    with observe(model, map_size=6, labels=["a", "b"], source_labels=["x", "ü", "\n"]) as found:
        model(tokens(9), tokens(5))
        model(tokens(9), tokens(5))
    return found


def test_everything_comes_back(seen, tmp_path):
    seen.save(tmp_path / "seen.npz")
    again = Seen.load(tmp_path / "seen.npz")
    assert repr(again) == repr(seen)
    assert again.describe() == seen.describe()
    assert (again.labels, again.source_labels, again.title) == (seen.labels, seen.source_labels, "T5")
    for mine, theirs in zip(seen.layers, again.layers, strict=True):
        assert (mine.name, mine.kind, mine.index, mine.heads) == (theirs.name, theirs.kind, theirs.index, theirs.heads)
        for field in dataclasses.fields(mine.statistics):
            one, other = getattr(mine.statistics, field.name), getattr(theirs.statistics, field.name)
            if isinstance(one, torch.Tensor):
                assert torch.equal(one, other)
                assert one.dtype == other.dtype
            elif field.name == "links":
                assert all(torch.equal(getattr(one, n), getattr(other, n)) for n in ("weight", "query", "key"))
            else:
                assert one == other
    assert again.diff(seen).layers[0].largest.max() == 0


def test_queries_and_keys_stay_behind(seen, tmp_path):
    seen.save(tmp_path / "seen.npz")
    again = Seen.load(tmp_path / "seen.npz")
    assert torch.equal(again.map(0, 1), seen.map(0, 1))
    with pytest.raises(Unsupported, match="not in the file") as caught:
        again.tile(0, 0)
    assert "Observe again" in str(caught.value)


def test_one_layer_of_many_keeps_its_number(tmp_path):
    model = gpt()
    with observe(model, layers=1, map_size=None) as seen:
        model(tokens())
    seen.save(tmp_path / "seen.npz")
    again = Seen.load(tmp_path / "seen.npz")
    assert again.layer(-1).index == 1
    assert torch.equal(again.received(1), seen.received(1))


def test_names_and_folders_are_checked(seen, tmp_path):
    with pytest.raises(BadArgument, match=r"path: expected a name that ends in .*npz"):
        seen.save(tmp_path / "seen.pt")
    with pytest.raises(BadArgument, match="path: expected a folder that exists"):
        seen.save(tmp_path / "missing" / "seen.npz")
    assert not list(tmp_path.iterdir())


def test_files_that_are_none(seen, tmp_path):
    path = tmp_path / "seen.npz"
    with pytest.raises(BadFile, match=r"no .npz file that can be read"):
        Seen.load(path)
    path.write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(BadFile, match=r"no .npz file that can be read"):
        Seen.load(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(BadFile, match=r"no .npz file that can be read"):
        Seen.load(path)
    np.savez(path, about=np.array([1, 2], dtype=np.uint8))
    with pytest.raises(BadFile, match=r"does not hold what Seen.save writes"):
        Seen.load(path)
    np.savez(path, about=np.array([{"a": 1}], dtype=object))
    with pytest.raises(BadFile, match=r"no .npz file that can be read"):
        Seen.load(path)


def changed(path, change) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    about = json.loads(bytes(arrays["about"]))
    change(about, arrays)
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    np.savez(path, **arrays)


def test_files_that_were_changed(seen, tmp_path):
    path = tmp_path / "seen.npz"
    seen.save(path)
    changed(path, lambda about, arrays: about.update(version=99))
    with pytest.raises(BadFile, match="expected 'rearview-seen' version 1, got 'rearview-seen' version 99"):
        Seen.load(path)
    seen.save(path)
    changed(path, lambda about, arrays: arrays.update({"0.entropy": arrays["0.entropy"][:, :, :-1]}))
    with pytest.raises(BadFile, match="entropy has the shape"):
        Seen.load(path)
    seen.save(path)
    changed(path, lambda about, arrays: arrays.pop("1.received"))
    with pytest.raises(BadFile, match="does not hold"):
        Seen.load(path)
