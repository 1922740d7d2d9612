"""Files that nobody trusts: reading them gives a value or a `RearviewError`, soon and in little memory.

The corpus is built here: a model of each kind with its tokenizer, a trace, matrices and an observation; the files of
runs and reports are in test_hostile_runs.py. Known attacks are listed one by one. Beside them each file is mutated at
random: values of its JSON are replaced by hostile ones, bytes are changed, the end is cut. REARVIEW_FUZZ=N runs N
mutations per file instead of a few, and REARVIEW_FUZZ_SEED=S makes them other ones:

    REARVIEW_FUZZ=2000 REARVIEW_FUZZ_SEED=7 pytest tests/test_hostile_files.py tests/test_hostile_runs.py
"""

import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rearview import explain
from rearview.errors import BadFile
from rearview.explanation.input_file import explain_file
from rearview.models import BERT, GPT, T5, BERTConfig, GPTConfig, T5Config
from rearview.models.checkpoint import load
from rearview.models.checkpoint.tensors import INDEX, WHOLE
from rearview.observation import Observation, observe
from rearview.text import BPETokenizer, ByteTokenizer, load_tokenizer
from tests.hostile import ESCAPE, IN_PLACE, check_in_place, check_mutations, holds


@dataclass(frozen=True)
class Corpus:
    """Good files, and how each is read and then used."""

    root: Path

    def models(self) -> None:
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"vocab_size": 260, "layers": 1, "heads": 2, "width": 8}
        GPT(GPTConfig(context=16, **sizes)).save_pretrained(self.root / "gpt")
        GPT(GPTConfig(context=16, positions="rotary", kv_heads=1, **sizes)).save_pretrained(self.root / "own")
        BERT(BERTConfig(context=16, **sizes)).save_pretrained(self.root / "bert")
        T5(T5Config(**sizes)).save_pretrained(self.root / "t5")
        for name in ("gpt", "bert"):
            ByteTokenizer().save(self.root / name)
        for name in ("own", "t5"):
            BPETokenizer.train(["to be or not to be"], vocab_size=260).save(self.root / name)

    def matrices(self) -> None:
        eye = [[1.0, 0.0], [0.0, 1.0]]
        arguments = {"x": eye, "w_q": eye, "w_k": eye, "w_v": eye, "labels": ["I", "love"], "mask": "causal()"}
        (self.root / "matrices.json").write_text(json.dumps(arguments))
        trace = explain(query=torch.eye(2), key=torch.eye(2), value=torch.eye(2))
        (self.root / "trace.json").write_text(trace.to_json())
        identity = np.eye(2)
        np.savez(self.root / "matrices.npz", x=identity, w_q=identity, w_k=identity, w_v=identity)
        model = GPT(GPTConfig(vocab_size=9, context=8, layers=1, heads=2, width=8)).eval()
        with torch.no_grad(), observe(model) as seen:
            model(torch.tensor([[1, 2, 3]]))
        seen.save(self.root / "seen.npz")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    found = Corpus(tmp_path_factory.mktemp("corpus"))
    found.models()
    found.matrices()
    return found


def use_model(folder: Path) -> None:
    model = load(folder)
    tokens = torch.tensor([[1, 2, 3]]) % model.config.vocab_size
    with torch.no_grad():
        model(tokens, tokens) if isinstance(model, T5) else model(tokens)


def use_tokenizer(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    for specials in (False, True):
        ids = tokenizer.encode("to be <end>", specials=specials)
        tokenizer.decode(ids)
        for id in ids:
            tokenizer.token_bytes(id)


def use_trace(path: Path) -> None:
    trace = explain_file(path)
    str(trace.show())
    trace.to_json()


def use_observation(path: Path) -> None:
    seen = Observation.load(path)
    str(seen.show())


# The known attacks.

CONFIGS: dict[str, dict[str, Any]] = {
    "a size of null": {"n_embd": None, "hidden_size": None, "d_model": None, "width": None},
    "a size of text": {"n_embd": "8", "hidden_size": "8", "d_model": "8", "width": "8"},
    "an epsilon of text": {"layer_norm_epsilon": "small", "layer_norm_eps": "small", "norm_eps": "small"},
    "an epsilon below 0": {"layer_norm_epsilon": -1, "layer_norm_eps": -1, "norm_eps": -1},
    "a list as activation": {
        "activation_function": ["gelu"],
        "hidden_act": ["gelu"],
        "feed_forward_proj": ["relu"],
        "activation": ["gelu"],
    },
    "an escape code as activation": {
        "activation_function": ESCAPE,
        "hidden_act": ESCAPE,
        "feed_forward_proj": ESCAPE,
        "activation": ESCAPE,
    },
    "10**12 layers": {"n_layer": 10**12, "num_hidden_layers": 10**12, "num_layers": 10**12, "layers": 10**12},
    "10**9 layers": {"n_layer": 10**9, "num_hidden_layers": 10**9, "num_layers": 10**9, "layers": 10**9},
    "a width of 2**30": {"n_embd": 2**30, "hidden_size": 2**30, "d_model": 2**30, "width": 2**30},
}


@pytest.mark.parametrize("kind", ["gpt", "own", "bert", "t5"])
@pytest.mark.parametrize("attack", CONFIGS)
def test_hostile_configs_are_refused(corpus: Corpus, kind: str, attack: str, tmp_path: Path):
    folder = shutil.copytree(corpus.root / kind, tmp_path / "model")
    assert holds(use_model, folder) is None
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **CONFIGS[attack]}))
    assert holds(use_model, folder)


@pytest.mark.parametrize("name", ["config.json", "rearview_tokenizer.json", "tokenizer.json", INDEX])
def test_json_that_is_nested_deeply_is_refused(corpus: Corpus, name: str, tmp_path: Path):
    kind, use = ("own" if name == "tokenizer.json" else "gpt"), use_tokenizer if "token" in name else use_model
    folder = shutil.copytree(corpus.root / kind, tmp_path / "model")
    (folder / name).write_text("[" * 100_000)
    if name == INDEX:
        (folder / WHOLE).unlink()
    assert "nested too deeply" in (holds(use, folder) or "")


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint8])
def test_weights_that_are_not_floats_are_refused(corpus: Corpus, dtype: torch.dtype, tmp_path: Path):
    folder = shutil.copytree(corpus.root / "gpt", tmp_path / "model")
    tensors = load_file(folder / WHOLE)
    name = "transformer.h.0.ln_1.weight"
    save_file({**tensors, name: tensors[name].to(dtype)}, folder / WHOLE)
    expected = f"the tensor {name}: expected one of float32, bfloat16, float16, float64, got {dtype}"
    assert expected.replace("got torch.", "got ") in (holds(use_model, folder) or "")


def test_weights_of_several_dtypes_are_read_in_the_widest(corpus: Corpus, tmp_path: Path):
    folder = shutil.copytree(corpus.root / "gpt", tmp_path / "model")
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(folder / WHOLE).items()}
    save_file({**tensors, "transformer.ln_f.weight": tensors["transformer.ln_f.weight"].float()}, folder / WHOLE)
    assert holds(use_model, folder) is None
    assert {parameter.dtype for parameter in load(folder).parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "weights", [5, None, [], {}, {"a": 5}, {"a": None}, {"a": ["b"]}, {"a": f"{ESCAPE}.safetensors"}, {"a": ".."}]
)
def test_hostile_indices_of_shards_are_refused(corpus: Corpus, weights: Any, tmp_path: Path):
    folder = shutil.copytree(corpus.root / "gpt", tmp_path / "model")
    (folder / WHOLE).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": weights}))
    assert holds(use_model, folder)


def test_an_escape_code_in_a_safetensors_header_is_written_out(corpus: Corpus, tmp_path: Path):
    folder = shutil.copytree(corpus.root / "gpt", tmp_path / "model")
    header = json.dumps({ESCAPE: {"dtype": ESCAPE, "shape": [1], "data_offsets": [0, 4]}}, ensure_ascii=False).encode()
    (folder / WHOLE).write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert "is damaged or not a safetensors file" in (holds(use_model, folder) or "")


@pytest.mark.parametrize("id", [4 * 10**9, 2**24, -1, "1", None, 1.5])
@pytest.mark.parametrize("place", ["vocab", "added"])
def test_ids_that_no_vocabulary_has_are_refused(id: Any, place: str, tmp_path: Path):
    vocab = {"a": id} if place == "vocab" else {"a": 0}
    added = [{"id": id, "content": "<x>", "special": True}] if place == "added" else []
    tokenizer = {"added_tokens": added, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "a"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "expected ids from 0 to 16,777,215, got" in (holds(use_tokenizer, tmp_path) or "")


def test_escape_codes_in_merges_are_written_out(tmp_path: Path):
    tokenizer = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [f"{ESCAPE} b"]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "is not a tokenizer that the tokenizers library can read" in (holds(use_tokenizer, tmp_path) or "")


def test_half_a_character_names_no_special_token(corpus: Corpus, tmp_path: Path):
    folder = shutil.copytree(corpus.root / "own", tmp_path / "model")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "\ud800"}))
    assert holds(use_tokenizer, folder) is None
    assert load_tokenizer(folder).end_id is None


def test_an_archive_with_a_shape_of_10_to_the_30_is_refused(corpus: Corpus, tmp_path: Path):
    path = tmp_path / "matrices.npz"
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**30}, 1), }}"
    header = header.ljust(117) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(64))
    for use in (use_trace, use_observation):
        assert "x: this cannot be read" in (holds(use, path) or "")


def test_an_archive_that_does_not_unpack_is_refused(corpus: Corpus, tmp_path: Path):
    path = tmp_path / "matrices.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random((9, 9)))
    data = bytearray(path.read_bytes())
    data[80:120] = bytes([255] * 40)
    path.write_bytes(data)
    for use in (use_trace, use_observation):
        assert holds(use, path)


def test_weights_of_any_size_are_drawn(corpus: Corpus, tmp_path: Path):
    path = Path(shutil.copy(corpus.root / "trace.json", tmp_path))
    body = json.loads(path.read_text())
    (stage,) = (stage for stage in body["stages"] if stage["key"] == "weights")
    stage["matrix"] = json.loads(json.dumps(stage["matrix"]).replace("1.0", "1e308"))
    path.write_text(json.dumps(body))
    assert "1e+308" in path.read_text()
    assert holds(use_trace, path) is None


def test_many_fields_take_time_in_proportion(tmp_path: Path):
    path = tmp_path / "matrices.json"
    path.write_text("{" + ", ".join(f'"{n}": 0' for n in range(200_000)) + "}")
    assert 'there is no field "0"' in (holds(use_trace, path) or "")


# Mutations.

READERS: dict[str, Callable[[Path], None]] = {
    "gpt/config.json": use_model,
    "own/config.json": use_model,
    "bert/config.json": use_model,
    "t5/config.json": use_model,
    "gpt/model.safetensors": use_model,
    "gpt/rearview_tokenizer.json": use_tokenizer,
    "own/tokenizer.json": use_tokenizer,
    "own/tokenizer_config.json": use_tokenizer,
    "matrices.json": use_trace,
    "trace.json": use_trace,
    "matrices.npz": use_trace,
    "seen.npz": use_observation,
}


def copied(corpus: Corpus, name: str, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of a file of the corpus, and what its reader is given: the folder of a model, or the file."""
    source = corpus.root / name
    if "/" not in name:
        return (copy := Path(shutil.copy(source, tmp_path))), copy
    folder = Path(shutil.copytree(source.parent, tmp_path / "model"))
    return folder / source.name, folder


@pytest.mark.parametrize("name", READERS)
def test_mutated_files_are_read_or_refused(corpus: Corpus, name: str, tmp_path: Path):
    check_mutations(READERS[name], *copied(corpus, name, tmp_path), name)


@pytest.mark.parametrize("kind", IN_PLACE)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_refused(corpus: Corpus, name: str, kind: str, tmp_path: Path):
    check_in_place(READERS[name], *copied(corpus, name, tmp_path), kind)


def test_an_error_does_not_command_the_terminal():
    error = BadFile(f"{ESCAPE}.json", f"has {ESCAPE} inside‮\nand a second line")
    assert str(error) == (
        "\\x1b]0;owned\\x07\\x1b[2J.json: has \\x1b]0;owned\\x07\\x1b[2J inside\\u202e\nand a second line"
    )
