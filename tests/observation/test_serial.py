"""An Observation as a file: everything is read back, and other files are refused."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from rearview.errors import BadArgument, BadFile, Unsupported
from rearview.observation import Observation, observe
from tests.observation.models import gpt, t5, tokens

ENTROPY, MAP = "layers[0].statistics.entropy", "layers[0].statistics.map"


@pytest.fixture(scope="module")
def seen() -> Observation:
    model = t5()
    with observe(model, map_size=6, labels=["a", "b"], source_labels=["x", "ü", "\n"]) as found:
        model(tokens(9), tokens(5))
        model(tokens(9), tokens(5))
    return found


def test_everything_is_read_back(seen, tmp_path):
    seen.save(tmp_path / "seen.npz")
    again = Observation.load(tmp_path / "seen.npz")
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


def test_queries_and_keys_are_not_saved(seen, tmp_path):
    seen.save(tmp_path / "seen.npz")
    again = Observation.load(tmp_path / "seen.npz")
    assert torch.equal(again.map(0, 1), seen.map(0, 1))
    with pytest.raises(Unsupported, match="not in the file") as caught:
        again.tile(0, 0)
    assert "Observe again" in str(caught.value)


def test_one_layer_of_many_keeps_its_number(tmp_path):
    model = gpt()
    with observe(model, layers=1, map_size=None) as seen:
        model(tokens())
    seen.save(tmp_path / "seen.npz")
    again = Observation.load(tmp_path / "seen.npz")
    assert again.layer(-1).index == 1
    assert torch.equal(again.received(1), seen.received(1))


def test_names_and_folders_are_checked(seen, tmp_path):
    target = tmp_path / "seen.pt"
    with pytest.raises(BadArgument) as caught:
        seen.save(target)
    assert str(caught.value) == f"path: expected a name that ends in .npz, got '.pt' ({target})."
    with pytest.raises(BadArgument, match="path: expected a folder that exists"):
        seen.save(tmp_path / "missing" / "seen.npz")
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused(seen, tmp_path):
    path = tmp_path / "seen.npz"
    not_one = "this is not a .npz file; numpy.savez(path, name=array, ...) writes one"

    def refused() -> str:
        with pytest.raises(BadFile) as caught:
            Observation.load(path)
        return str(caught.value).removeprefix(f"{path}: ")

    assert refused() == "there is no such file"
    path.write_bytes(b"PK\x03\x04 and nothing more")
    assert refused() == not_one
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert refused() == not_one
    np.savez(path, x=np.zeros(3))
    assert refused() == "about: expected this array, got nothing"
    np.savez(path, about=np.array([1, 2], dtype=np.uint8))
    assert refused().startswith("line 1, column 1: this is not JSON: Expecting value")
    np.savez(path, about=np.array([{"a": 1}], dtype=object))
    assert refused() == "about: expected an array of numbers or strings, got Python objects"


def changed(path, change) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    about = json.loads(bytes(arrays["about"]))
    change(about, arrays)
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda about, arrays: about.update(version=99),
            "version: expected 2, the version that this release reads, got 99",
        ),
        (
            lambda about, arrays: arrays.update({ENTROPY: arrays[ENTROPY][:, :, :-1]}),
            f"{ENTROPY}: expected the shape [2, 4, 9], got [2, 4, 8]",
        ),
        (
            lambda about, arrays: arrays.update({MAP: arrays[MAP][0]}),
            f"{MAP}: expected the shape [2, 4, rows, columns], got [4, 5, 5]",
        ),
        (
            lambda about, arrays: arrays.pop("layers[1].statistics.received"),
            'layers[1].statistics.received: expected the name of an array of this file, got "layers[1].statistics.',
        ),
        (
            lambda about, arrays: about["layers"][0]["statistics"].update(frame=None),
            "layers[0].statistics.frame: expected an object, got null",
        ),
        (lambda about, arrays: about.pop("title"), "title: expected this field, got nothing"),
    ],
)
def test_damaged_files_are_refused(seen, tmp_path, change, message: str):
    path = tmp_path / "seen.npz"
    seen.save(path)
    changed(path, change)
    with pytest.raises(BadFile) as caught:
        Observation.load(path)
    assert str(caught.value).startswith(f"{path}: {message}")
