"""Checkpoints: those of Rearview and of transformers, with weights and from their configuration alone."""

import json
from pathlib import Path

import pytest
import torch

from rearview import causal, window
from rearview.auditing import audit
from rearview.auditing.loading import load
from rearview.errors import BadArgument, BadFile, Unsupported
from rearview.models import GPT, GPTConfig

transformers = pytest.importorskip("transformers")


def config_in(folder: Path, **data: object) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(data))
    return str(folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=40,
        max_position_embeddings=24,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_checkpoint_of_transformers_is_loaded_with_its_weights(llama: Path):
    loaded = load(str(llama))
    assert type(loaded.model).__name__ == "LlamaForCausalLM"
    assert not loaded.model.training
    assert list(loaded.inputs["input_ids"].shape) == [2, 24], "no longer than it has positions for"
    assert loaded.notes == ()
    assert audit(loaded.model, loaded.inputs).ok
    with pytest.raises(
        BadArgument, match="--length: expected at most 24, the number of positions of the model, got 25"
    ):
        load(str(llama), length=25)


def test_a_checkpoint_of_rearview_is_loaded_too(tmp_path: Path):
    config = GPTConfig(vocab_size=65, context=16, layers=1, heads=2, width=8, mask=causal() & window(4))
    model = GPT(config)
    model.save_pretrained(tmp_path / "step-000010")
    loaded = load(str(tmp_path))
    assert isinstance(loaded.model, GPT), "the newest of a run"
    assert torch.equal(loaded.model(loaded.inputs), model.eval()(loaded.inputs))
    with pytest.raises(Unsupported, match="is a checkpoint of Rearview, which is small enough to audit as it is"):
        load(str(tmp_path), config_only=True)


def test_a_configuration_is_enough(tmp_path: Path):
    transformers.Gemma3TextConfig(sliding_window=8).save_pretrained(tmp_path)
    loaded = load(str(tmp_path), config_only=True)
    kinds = [layer.self_attn.is_sliding for layer in loaded.model.model.layers]
    assert sorted(kinds) == [False, True], "one layer of each kind"
    assert loaded.model.config.sliding_window == 8
    assert sum(p.numel() for p in loaded.model.parameters()) < 200_000
    random, shrunk = loaded.notes
    assert random == "weights are random"
    assert shrunk.startswith("shrunk, in width and depth only: ")
    assert "num_hidden_layers 26 -> 2" in shrunk
    assert "window" not in shrunk
    assert audit(loaded.model, loaded.inputs).ok


def test_windows_that_are_not_crossed_are_told(tmp_path: Path):
    transformers.Gemma3TextConfig(sliding_window=512).save_pretrained(tmp_path)
    notes = load(str(tmp_path), config_only=True).notes
    assert notes[-1] == "32 positions do not exceed sliding_window 512: give --length to audit beyond"


def test_a_pickle_is_not_loaded(tmp_path: Path):
    folder = config_in(tmp_path / "model", model_type="llama")
    with pytest.raises(BadFile, match=r"has no safetensors file\. --config-only needs no weights"):
        load(folder)
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(BadFile, match=r"pytorch_model\.bin: the weights are only in this file, which is a pickle"):
        load(folder)


def test_what_is_no_checkpoint_is_said(tmp_path: Path):
    with pytest.raises(BadArgument, match=r"expected a folder with config\.json and safetensors"):
        load(str(tmp_path))
    with pytest.raises(BadFile, match=r"config\.json: has no model_type"):
        load(config_in(tmp_path / "a", hidden_size=3), config_only=True)
    (tmp_path / "a" / "config.json").write_text("{")
    with pytest.raises(BadFile, match="this is not JSON"):
        load(str(tmp_path / "a"), config_only=True)
    with pytest.raises(BadArgument, match=r"--config-only: expected a folder with config\.json, got the function a:b"):
        load("a:b", config_only=True)


def test_code_of_others_is_not_run(tmp_path: Path):
    folder = config_in(tmp_path / "model", model_type="theirs", auto_map={"AutoModel": "code.Model"})
    (tmp_path / "model" / "code.py").write_text("raise SystemExit('this ran')\n")
    with pytest.raises(Unsupported, match="the folder has code of its own, which is not run"):
        load(folder, config_only=True)


def test_a_model_that_is_no_language_model_is_refused(tmp_path: Path):
    transformers.ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match="transformers has no version of it that predicts the next token"):
        load(str(tmp_path), config_only=True)
