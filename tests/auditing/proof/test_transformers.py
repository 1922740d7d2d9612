"""Small models of transformers: proven as they are, in each of the families of ops that they use."""

import pytest
import torch

from rearview.auditing.proof import prove
from tests.auditing.proof.search import CAUSAL

transformers = pytest.importorskip("transformers")
T = 11
SMALL = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}


def build(name: str, backend: str = "sdpa", **options):
    if name == "gpt2":
        options |= {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 31}
    else:
        options = SMALL | options
    config = transformers.AutoConfig.for_model(name, pad_token_id=0, **options)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=backend).eval()


MODELS = {
    "gpt2": {},
    "llama": {},
    "mistral": {"sliding_window": 4},
    "mixtral": {"num_local_experts": 4},
    "mamba": {"state_size": 4},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_causal_language_models_are_proven(name: str):
    model = build(name, "eager" if name == "mamba" else "sdpa", **MODELS[name])
    proof = prove(lambda x: model(x).logits, torch.randint(1, 31, (2, T)))
    # Two layers with windows of 4 reach back over 7 positions.
    reach = CAUSAL[T] & ~CAUSAL[T].tril(-7) if name == "mistral" else CAUSAL[T]
    assert torch.equal(proof.matrix(), reach)
    assert proof.isolated
    assert not proof.conditions
    assert not proof.unknown_ops


@pytest.mark.filterwarnings("ignore")
def test_eager_attention_is_proven_on_a_condition():
    model = build("llama", "eager")
    proof = prove(lambda x: model(x).logits, torch.randint(1, 31, (1, T)))
    assert proof.within(CAUSAL[T])
    assert "layers.0.self_attn" in str(proof.conditions[0])


@pytest.mark.filterwarnings("ignore")
def test_an_encoder_is_not():
    config = transformers.BertConfig(
        **{key: SMALL[key] for key in SMALL if key not in ("num_key_value_heads", "head_dim")}
    )
    model = transformers.BertModel(config).eval()
    proof = prove(lambda x: model(x).last_hidden_state, torch.randint(1, 31, (1, T)))
    assert proof.matrix().all()
    assert "attention" in str(proof.origin(0, T - 1))
