"""Models of transformers and our own: tiny, random, clean as released, and broken the way releases were broken."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rearview import causal, full, window
from rearview.auditing import Verdict, audit
from rearview.models import GPT, GPTConfig

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
X = torch.randint(5, 100, (2, 20), generator=torch.Generator().manual_seed(0))


def tiny(name: str, *, attention: str | None = None, **changes: Any) -> Any:
    sizes = {**SIZES, **changes}
    if name == "GPT2":
        sizes = {"vocab_size": 101, "n_embd": 32, "n_layer": 2, "n_head": 4}
    config = getattr(transformers, f"{name}Config")(**sizes)
    kind = transformers.AutoModelForCausalLM if name != "Bert" else transformers.BertForMaskedLM
    options = {} if attention is None else {"attn_implementation": attention}
    return kind.from_config(config, **options) if name != "Bert" else kind(config)


@pytest.mark.parametrize(
    ("name", "attention"),
    [(name, attention) for name in ("GPT2", "Llama", "Mistral") for attention in ("eager", "sdpa")]
    + [("Gemma2", "eager")],
)
def test_causal_models_are_not_accused(name: str, attention: str):
    changes = {"sliding_window": 8} if name == "Mistral" else {"head_dim": 8} if name == "Gemma2" else {}
    report = audit(tiny(name, attention=attention, **changes), X)
    assert report.ok, str(report)
    assert report.sizes == {"batch": 2, "time": 20, "vocab": 101}


def test_experts_are_not_accused():
    model = tiny("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
    assert audit(model, X).ok


def test_a_state_space_model_is_not_accused():
    config = transformers.MambaConfig(vocab_size=101, hidden_size=32, num_hidden_layers=2, state_size=4)
    assert audit(transformers.MambaForCausalLM(config), X).ok


def test_an_encoder_hears_everyone():
    model = tiny("Bert")
    report = audit(model, X)
    assert report.verdict is Verdict.LEAKS
    assert report.place is not None
    assert report.place.module_class == "BertSelfAttention"
    assert report.place.also == ("bert.encoder.layer.1.attention.self",)
    assert "attn_mask is None and is_causal is False" in report.place.hint
    assert audit(model, X, full()).verdict is Verdict.INCONCLUSIVE


def test_a_full_audit_of_a_clean_model():
    report = audit(tiny("Llama"), X, mode="full", prove=False)
    assert report.ok, str(report)
    passed = {check.name for check in report.checks if check.status == "passed"}
    wanted = {"padding", "packed documents", "cached decoding", "backends", "precision", "label alignment"}
    assert wanted | {"window per layer", "longer input"} <= passed


def test_inputs_as_a_dict_with_padding():
    mask = torch.ones_like(X)
    mask[0, :4] = 0
    inputs = {"input_ids": X, "attention_mask": mask, "labels": X}
    assert audit(tiny("Llama"), inputs).ok


def test_the_mask_builder_that_returns_nothing(monkeypatch: pytest.MonkeyPatch):
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda **arguments: None)
    report = audit(tiny("Llama", attention="eager"), X)
    assert report.verdict is Verdict.LEAKS
    assert report.place is not None
    assert report.place.confirmed
    assert report.place.module == "model.layers.0.self_attn"
    assert report.place.also == ("model.layers.1.self_attn",)
    assert "softmax" in report.place.source
    assert "no mask reaches" in report.place.hint


def test_one_layer_that_is_not_causal():
    model = tiny("Llama", attention="sdpa")
    model.model.layers[1].self_attn.is_causal = False
    report = audit(model, X)
    assert report.verdict is Verdict.LEAKS
    assert report.place is not None
    assert (report.place.module, report.place.also) == ("model.layers.1.self_attn", ())


def test_a_norm_over_time():
    class TimeNorm(nn.Module):
        def __init__(self, weight: nn.Parameter):
            super().__init__()
            self.weight = weight

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * x * torch.rsqrt(x.pow(2).mean((1, 2), keepdim=True) + 1e-6)

    model = tiny("Llama")
    layer = model.model.layers[1]
    layer.post_attention_layernorm = TimeNorm(layer.post_attention_layernorm.weight)
    report = audit(model, X)
    assert report.place is not None
    assert (report.place.module_class, report.place.op) == ("TimeNorm", "aten.mean.dim")
    assert "normalization over time: " in report.place.hint


def test_a_window_under_its_own_contract():
    model = tiny("Mistral", sliding_window=4, num_hidden_layers=1)
    assert audit(model, X, causal() & window(4)).ok
    report = audit(model, X, causal() & window(3))
    assert report.verdict is Verdict.LEAKS
    assert report.place is not None
    assert "window is too wide: it reaches back 4" in report.place.hint


def test_our_own_gpt():
    model = GPT(GPTConfig(vocab_size=101, context=128, layers=2, heads=4, width=32))
    report = audit(model, X, mode="full", prove=False)
    assert report.ok, str(report)
    assert report.check("cached decoding").status == "passed"
    leaking = audit(GPT(GPTConfig(vocab_size=101, context=64, layers=1, heads=4, width=32, mask=full())), X)
    assert leaking.place is not None
    assert leaking.place.module == "blocks.0.attention"
