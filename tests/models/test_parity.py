"""The same logits as transformers, from the same files, in both directions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    T5ForConditionalGeneration,
)
from transformers import T5Config as HubT5Config

from rearview import padding
from rearview.models import BERT, GPT, T5, BERTConfig, GPTConfig, T5Config
from rearview.models.checkpoint import load, save

VOCAB = 67


def seeded(module: torch.nn.Module) -> torch.nn.Module:
    """Weights that are large enough for every part to matter; norms and biases differ from their initial values."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter.ndim == 1) * 0.5)
    return module.eval()


def gpt2(**options: Any) -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=VOCAB, n_positions=48, n_layer=3, n_head=4, n_embd=32, **options)
    return seeded(GPT2LMHeadModel(config))  # type: ignore[return-value]


def bert(**options: Any) -> BertForMaskedLM:
    config = BertConfig(
        vocab_size=VOCAB,
        max_position_embeddings=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        hidden_size=32,
        intermediate_size=80,
        **options,
    )
    return seeded(BertForMaskedLM(config))  # type: ignore[return-value]


def t5(**options: Any) -> T5ForConditionalGeneration:
    sizes = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 12, "d_ff": 80, "num_layers": 2, "num_decoder_layers": 3}
    config = HubT5Config(**sizes, num_heads=4, relative_attention_max_distance=20, **options)
    return seeded(T5ForConditionalGeneration(config))  # type: ignore[return-value]


V1_0 = {"feed_forward_proj": "relu"}
V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def tokens(batch: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Within 1e-5 of the largest logit."""
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_inner": 72},
        {"activation_function": "gelu"},
        {"tie_word_embeddings": False},
        {"layer_norm_epsilon": 1e-2},
    ],
    ids=str,
)
def test_gpt2(tmp_path: Path, options: dict[str, Any]):
    theirs = gpt2(**options)
    theirs.save_pretrained(tmp_path)
    ours = GPT.from_pretrained(tmp_path)
    x = tokens(2, 48)
    assert_same(ours(x), theirs(x).logits)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_gpt2_padded(tmp_path: Path, side: str):
    theirs = gpt2()
    theirs.save_pretrained(tmp_path)
    ours = GPT.from_pretrained(tmp_path)
    x, lengths = tokens(3, 20), torch.tensor([20, 13, 1])
    place = torch.arange(20)
    real = place < lengths.unsqueeze(1) if side == "right" else place >= 20 - lengths.unsqueeze(1)
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    expected = theirs(x, attention_mask=real.long(), position_ids=positions).logits
    assert_same(ours(x, mask=padding(real), positions=positions)[real], expected[real])
    # The tokens at padded positions have no effect.
    other = torch.where(real, x, (x + 1) % VOCAB)
    assert torch.equal(
        ours(other, mask=padding(real), positions=positions)[real],
        ours(x, mask=padding(real), positions=positions)[real],
    )


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"hidden_act": "gelu_new"}, {"layer_norm_eps": 1e-3}], ids=str)
def test_bert(tmp_path: Path, options: dict[str, Any]):
    theirs = bert(**options)
    theirs.save_pretrained(tmp_path)
    ours = BERT.from_pretrained(tmp_path)
    x, segments = tokens(2, 31), tokens(2, 31, seed=2) % 2
    assert_same(ours(x), theirs(x).logits)
    assert_same(ours(x, segments=segments), theirs(x, token_type_ids=segments).logits)


@torch.no_grad()
def test_bert_padded(tmp_path: Path):
    theirs = bert()
    theirs.save_pretrained(tmp_path)
    ours = BERT.from_pretrained(tmp_path)
    x, lengths = tokens(3, 20), torch.tensor([20, 13, 1])
    real = torch.arange(20) < lengths.unsqueeze(1)
    expected = theirs(x, attention_mask=real.long()).logits
    assert_same(ours(x, mask=padding(lengths))[real], expected[real])


@torch.no_grad()
@pytest.mark.parametrize("options", [V1_0, V1_1, {"feed_forward_proj": "gated-silu"}], ids=str)
def test_t5(tmp_path: Path, options: dict[str, Any]):
    theirs = t5(**options)
    theirs.save_pretrained(tmp_path)
    ours = T5.from_pretrained(tmp_path)
    # Longer than the furthest distance, so that the last bucket is used.
    x, y = tokens(2, 41), tokens(2, 37, seed=2)
    assert_same(ours(x, y), theirs(input_ids=x, decoder_input_ids=y).logits)


@torch.no_grad()
@pytest.mark.parametrize("options", [V1_0, V1_1], ids=["v1.0", "v1.1"])
def test_t5_padded(tmp_path: Path, options: dict[str, Any]):
    theirs = t5(**options)
    theirs.save_pretrained(tmp_path)
    ours = T5.from_pretrained(tmp_path)
    x, y, lengths = tokens(3, 20), tokens(3, 9, seed=2), torch.tensor([20, 13, 1])
    real = torch.arange(20) < lengths.unsqueeze(1)
    expected = theirs(input_ids=x, attention_mask=real.long(), decoder_input_ids=y).logits
    assert_same(ours(x, y, mask=padding(lengths)), expected)


@torch.no_grad()
def test_t5_with_an_untied_head(tmp_path: Path):
    """v1.1 as published: the file has a head of its own, and the config says that it is not tied."""
    ours = seeded(T5(T5Config(vocab_size=VOCAB, layers=2, heads=4, width=32, hidden=80)))
    assert isinstance(ours, T5)
    assert not torch.equal(ours.head.weight, ours.tokens.weight)
    ours.save_pretrained(tmp_path)
    x, y = tokens(2, 11), tokens(2, 7, seed=2)
    assert torch.equal(T5.from_pretrained(tmp_path)(x, y), ours(x, y))
    theirs = T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert_same(ours(x, y), theirs(input_ids=x, decoder_input_ids=y).logits)


CONFIGS = [
    GPTConfig(vocab_size=VOCAB, context=48, layers=2, width=32),
    GPTConfig(vocab_size=VOCAB, context=48, layers=2, width=32, tied=False, activation="gelu", hidden=40),
    BERTConfig(vocab_size=VOCAB, context=48, layers=2, width=32),
    T5Config(vocab_size=VOCAB, layers=2, width=32),
    T5Config(vocab_size=VOCAB, layers=2, width=32, gated=False, activation="relu", tied=True, scaled=True),
]


@torch.no_grad()
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_transformers_reads_saved_models(tmp_path: Path, config: Any):
    kinds = {GPTConfig: (GPT, GPT2LMHeadModel), BERTConfig: (BERT, BertForMaskedLM)}
    own, hub = kinds.get(type(config), (T5, T5ForConditionalGeneration))
    ours: Any = seeded(own(config))
    ours.save_pretrained(tmp_path)
    theirs, info = hub.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    x, y = tokens(2, 11), tokens(2, 7, seed=2)
    theirs = theirs.eval()
    if own is T5:
        assert_same(ours(x, y), theirs(input_ids=x, decoder_input_ids=y).logits)
    else:
        assert_same(ours(x), theirs(x).logits)


@torch.no_grad()
def test_shards_are_read_and_written(tmp_path: Path):
    theirs = gpt2()
    theirs.save_pretrained(tmp_path / "hub", max_shard_size="20KB")
    assert len(list((tmp_path / "hub").glob("*.safetensors"))) > 2
    ours = load(tmp_path / "hub")
    x = tokens(2, 17)
    assert_same(ours(x), theirs(x).logits)
    save(ours, tmp_path / "own", max_shard_bytes=20_000)
    assert len(list((tmp_path / "own").glob("*.safetensors"))) > 2
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "own").eval()
    assert_same(ours(x), again(x).logits)
    # After saving again as one file, the index of the old shards is not read.
    seeded(ours)
    save(ours, tmp_path / "own")
    assert torch.equal(load(tmp_path / "own")(x), ours(x))


@torch.no_grad()
def test_half_precision_is_kept(tmp_path: Path):
    gpt2().bfloat16().save_pretrained(tmp_path)
    ours = GPT.from_pretrained(tmp_path)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.bfloat16}
    assert GPT.from_pretrained(tmp_path, dtype=torch.float32).norm.weight.dtype == torch.float32
