"""Continuous batching on `attend`: the tokens of transformers' own implementation, with requests that come and go."""

from typing import Any

import pytest
import torch

from rearview import observe
from rearview.errors import BadArgument, Unsupported
from rearview.integrations.transformers import continuous_batching, register
from rearview.integrations.transformers import paged_requests as ours
from rearview.integrations.transformers.function_slots import slots_of
from rearview.integrations.transformers.paged_requests import paged_attention, requests_mask
from rearview.integrations.transformers.watcher import attention_modules

hf = pytest.importorskip("transformers")

from transformers.generation.continuous_batching.utils import build_attention_mask  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
HALF_SLIDING = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
CONFIGS: dict[str, Any] = {
    "llama": lambda: hf.LlamaConfig(**SIZES),
    "gemma2": lambda: hf.Gemma2Config(**SIZES, **HALF_SLIDING, attn_logit_softcapping=1.5),
    "gemma3": lambda: hf.Gemma3TextConfig(**SIZES, **HALF_SLIDING),
    "gpt-oss": lambda: hf.GptOssConfig(**SIZES, **HALF_SLIDING, num_local_experts=2, num_experts_per_tok=1),
}
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [20], [30, 31, 32], [33, 34, 35, 36, 37, 38, 39, 40]]


def model_of(name: str, implementation: str | None = None) -> Any:
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=implementation).eval()
    # Larger weights than a model starts with: no near ties.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5.0)
        for module in model.modules():
            if hasattr(module, "sinks"):
                module.sinks.normal_()
    return model


def tokens_of(model: Any) -> list[list[int]]:
    # Seven tokens per step: prompts are read in chunks, beside steps of other requests.
    config = hf.generation.ContinuousBatchingConfig(num_blocks=64, page_size=8, max_batch_tokens=7)
    settings = hf.GenerationConfig(max_new_tokens=9, do_sample=False, eos_token_id=-1, pad_token_id=0)
    found = model.generate_batch(PROMPTS, generation_config=settings, continuous_batching_config=config)
    return [found[name].generated_tokens for name in sorted(found)]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_tokens_are_those_of_transformers(name: str, monkeypatch: pytest.MonkeyPatch):
    model = model_of(name, "eager")
    calls = []
    with continuous_batching(model):
        run = ours.run
        monkeypatch.setattr(ours, "run", lambda call: calls.append(call) or run(call))
        found = tokens_of(model)
    assert model.config._attn_implementation == "eager"
    assert calls
    assert all(call.mask.has_ranges for call in calls)
    # eager in transformers' own paged form
    assert found == tokens_of(model)
    assert [len(tokens) for tokens in found] == [9] * 4


def test_a_mask_of_requests_is_the_dense_mask_of_transformers():
    q_ends, k_ends = [0, 3, 4, 9], [0, 8, 13, 18]
    for window in (None, 2, 4, 100):
        dense = torch.full((1, 1, 9, 18), torch.finfo(torch.float32).min)
        build_attention_mask(dense, q_ends, k_ends, sliding_window=window or 1)
        mask = requests_mask(torch.tensor(q_ends), torch.tensor(k_ends), q_len=9, window=window)
        assert torch.equal(mask.to_bool(9, 18, q_start=0), dense[0, 0] == 0)


def test_rows_after_the_last_request_hear_nothing():
    mask = requests_mask(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 5]), q_len=5)
    assert mask.spans(5, 8, q_start=0).rows() == [[(0, 1)], [(0, 2)], [(2, 5)], [], []]


def test_other_calls_and_other_models_are_not_affected():
    model, other = model_of("llama", register()), model_of("llama", "sdpa")
    ids = torch.tensor([[5, 6, 7, 8]])
    expected, before = model(ids).logits, dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    with continuous_batching(model), torch.no_grad():
        assert model.config._attn_implementation == "sdpa"
        torch.testing.assert_close(model(ids).logits, expected)
        torch.testing.assert_close(other(ids).logits, expected)
        with observe(other) as seen:
            other(ids)
        assert seen.length == 4
    assert model.config._attn_implementation == "rearview"
    assert before == ALL_ATTENTION_FUNCTIONS._local_mapping


def test_contexts_may_end_in_any_order():
    model, other = model_of("llama"), model_of("llama")
    before, ids = dict(ALL_ATTENTION_FUNCTIONS._local_mapping), torch.tensor([[5, 6, 7, 8]])
    batching, watching = continuous_batching(model), observe(other)
    batching.__enter__()
    seen = watching.__enter__()
    batching.__exit__(None, None, None)
    with torch.no_grad():
        other(ids)
    watching.__exit__(None, None, None)
    assert seen.length == 4
    assert before == ALL_ATTENTION_FUNCTIONS._local_mapping
    assert all(type(slot.function).__name__ == "function" for slot in slots_of(type(attention_modules(model)[0][1])))


def test_what_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch):
    model = model_of("llama")
    with pytest.raises(BadArgument, match=r"^model: expected a model of transformers, got Linear"):
        continuous_batching(torch.nn.Linear(1, 1)).__enter__()  # type: ignore[arg-type]
    with observe(model), pytest.raises(Unsupported, match="the model is being watched, and observe"):
        continuous_batching(model).__enter__()
    own = hf.BloomForCausalLM(hf.BloomConfig(vocab_size=61, hidden_size=32, n_layer=1, n_head=4))
    with pytest.raises(Unsupported, match="the model has attention classes of its own"):
        continuous_batching(own).__enter__()
    x = torch.zeros(1, 2, 3, 8)
    with pytest.raises(Unsupported, match=r"ContinuousBatchingConfig\(max_blocks_per_request=0\)"):
        paged_attention(torch.nn.Identity(), x, x, x, cache=object(), block_table=torch.zeros(1, 1))
    with pytest.raises(Unsupported, match="in training mode"):
        paged_attention(torch.nn.Identity(), x, x, x, cache=object(), dropout=0.1)
    monkeypatch.delattr(hf.generation.continuous_batching.PagedAttentionCache, "update")
    with pytest.raises(Unsupported, match=r"passes its pages in another way than 5\.22"):
        continuous_batching(model).__enter__()
