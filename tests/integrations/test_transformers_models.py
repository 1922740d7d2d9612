"""Transformers models on Rearview's attention give the same results as on their own, with all kinds of masks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from rearview import causal, documents, prefix, window
from rearview.attention.call import Call
from rearview.attention.functional import run as run_call
from rearview.integrations.transformers import register, registered_functions
from rearview.integrations.transformers.mask_tensor import MaskTensor
from rearview.masks import Frame
from tests.integrations.transformers_models import (
    DECODERS,
    GROUPED,
    NARROW,
    OTHERS,
    TIME,
    TOKENS,
    TYPES,
    decoder,
    inputs_of_other,
    other,
    real,
    tokens,
)
from tests.integrations.transformers_releases import (
    CHUNKS_IN_A_STATIC_CACHE,
    IMAGES_HAVE_RANGES,
    MODERNBERT_SWITCHES,
    T5_USES_INTERFACE,
    WINDOWS_CUT_IMAGES,
    asks_for_masks,
    set_attention,
)

TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def registered():
    register()


@pytest.fixture(params=["auto", "blocks"])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The masks that attention was called with. At this size "auto" takes a dense mask; "blocks" reads the ranges."""
    seen: list[Any] = []

    def watched(call: Call) -> Any:
        seen.append(call.mask)
        return run_call(call, engine=request.param)

    monkeypatch.setattr(registered_functions, "run", watched)
    return seen


def run(model: Any, implementation: str, **given: Any) -> Tensor:
    set_attention(model, implementation)
    assert model.config._attn_implementation == implementation
    out = model(**given)
    return out.logits if "logits" in out else out.last_hidden_state


def assert_close(got: Tensor, expected: Tensor) -> None:
    # Numbers that differ from position to position, so that a wrong mask shows.
    assert expected.std(0).max() > 1e-2
    assert (got - expected).abs().max() <= TOLERANCE * expected.abs().max()


def packed() -> dict[str, Tensor]:
    return {"position_ids": torch.cat([torch.arange(9), torch.arange(TIME - 9)]).expand(2, -1)}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "alone": dict,
    "padded right": lambda: {"attention_mask": real("right")},
    "padded left": lambda: {"attention_mask": real("left")},
    "packed": lambda: packed() | {"use_cache": False},
}


# Their forward does not pass position_ids to the mask: sequences packed by these alone hear each other, on any
# implementation.
NOT_PACKED = ("GptOss", "OPT")


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_decoders(name: str, calls: list[Any]):
    model = decoder(name)
    for case, given in CASES.items():
        calls.clear()
        kept = given().get("attention_mask", torch.ones(2, TIME)).bool()
        expected = run(model, "eager", input_ids=tokens(), **given())[kept]
        assert not calls
        assert_close(run(model, "rearview", input_ids=tokens(), **given())[kept], expected)
        assert len(calls) == 2, case
        assert all(mask.has_ranges for mask in calls) == asks_for_masks(model), case
        if case == "packed":
            assert all(("documents" in repr(mask)) == (name not in NOT_PACKED) for mask in calls)


LATER = {"T5": T5_USES_INTERFACE, "ModernBert": MODERNBERT_SWITCHES}
ASKING = [name for name in OTHERS if LATER.get(name, True)]


@pytest.mark.parametrize("name", ASKING)
@torch.no_grad()
def test_encoders_and_both(name: str, calls: list[Any]):
    model, given = other(name), inputs_of_other(name)
    kept = real("right").bool() if name in ("Bert", "Roberta", "DistilBert", "ModernBert") else ...
    if name == "T5":
        # It does not scale its scores, and in float32 eager itself is off by more than the tolerance.
        model = copy.deepcopy(model).double()
    expected = run(model, "eager", **given)[kept]
    assert_close(run(model, "rearview", **given)[kept], expected)
    assert len(calls) >= 2


GENERATORS = ["Llama", "Mistral", "Gemma2", "Gemma3Text", "Llama4Text", "GptOss", "Cohere2"]


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", GENERATORS)
def test_generation_with_a_cache(name: str, cache: str | None):
    """Long enough that windows and chunks have dropped their first keys, from prompts of unequal length."""
    if (name, cache) == ("Llama4Text", "static") and not CHUNKS_IN_A_STATIC_CACHE:
        pytest.skip("this release cannot do it on any attention")
    model = decoder(name)

    def generated(implementation: str) -> Tensor:
        set_attention(model, implementation)
        given = {"input_ids": tokens(length=8), "attention_mask": real("left", 8)}
        return model.generate(
            **given, max_new_tokens=12, min_new_tokens=12, do_sample=False, cache_implementation=cache
        )

    own = model.config._attn_implementation
    assert generated("rearview").tolist() == generated(own).tolist()


@pytest.mark.parametrize("name", ["T5", "Bart"])
def test_generation_of_encoder_decoders(name: str):
    model = other(name)

    def generated(implementation: str) -> list[list[int]]:
        set_attention(model, implementation)
        given = {"input_ids": tokens(), "attention_mask": real("right")}
        return model.generate(**given, max_new_tokens=8, min_new_tokens=8, num_beams=3).tolist()

    assert generated("rearview") == generated("sdpa")


@pytest.mark.parametrize("name", ["GPT2", "Mistral", "Gemma2", "GptOss"])
def test_gradients(name: str, calls: list[Any]):
    model, labels = decoder(name), tokens()
    # Padded queries hear nothing here and something arbitrary in eager attention, so they have no loss.
    labels[1, :8] = -100

    def gradients(implementation: str) -> dict[str, Tensor]:
        set_attention(model, implementation)
        model.zero_grad()
        model(tokens(), attention_mask=real("left"), labels=labels).loss.backward()
        return {key: value.grad for key, value in model.named_parameters() if value.grad is not None}

    expected, got = gradients("eager"), gradients("rearview")
    assert got.keys() == expected.keys()
    largest = max(float(each.abs().max()) for each in expected.values())
    for key, gradient in got.items():
        torch.testing.assert_close(gradient, expected[key], rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.skipif(not T5_USES_INTERFACE, reason="T5 asks no attention function in this release")
def test_the_position_bias_of_t5_has_its_gradient(calls: list[Any]):
    model = other("T5").double()

    def gradient(implementation: str) -> Tensor:
        set_attention(model, implementation)
        model.zero_grad()
        model(**inputs_of_other("T5"), labels=tokens(length=9)).loss.backward()
        return model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad

    expected = gradient("eager")
    assert expected.abs().max() > 1e-6
    torch.testing.assert_close(gradient("rearview"), expected, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_sequences_that_gpt_oss_packs_by_their_ends(calls: list[Any]):
    """Its forward does not pass position_ids to the mask, but it passes the ends of the sequences to attention."""
    model = decoder("GptOss")
    set_attention(model, "rearview")
    ids, ends = tokens(1), torch.tensor([0, 9, 10, TIME], dtype=torch.int32)
    parts = list(zip(ends.tolist(), ends.tolist()[1:], strict=False))
    given = {
        "position_ids": torch.cat([torch.arange(last - first) for first, last in parts]).unsqueeze(0),
        **{"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 14, "max_length_k": 14},
    }
    got = model(ids, **given, use_cache=False).logits
    assert all(mask.has_ranges and "documents" in repr(mask) for mask in calls)
    apart = [model(ids[:, first:last], use_cache=False).logits for first, last in parts]
    assert_close(got[0], torch.cat(apart, dim=1)[0])


@torch.no_grad()
def test_the_prompt_of_paligemma_is_a_prefix(calls: list[Any]):
    """The image and the prompt hear each other, and the answer is causal: `causal() | prefix(n)`."""
    text: Any = GROUPED | TOKENS | {"head_dim": 8, "model_type": "gemma"}
    vision: Any = NARROW | {"image_size": 16, "patch_size": 8, "model_type": "siglip_vision_model"}
    vision |= {"projection_dim": 32, "vision_use_head": False}
    torch.manual_seed(0)
    config = hf.PaliGemmaConfig(text_config=text, vision_config=vision, image_token_index=60, projection_dim=32)
    model: Any = hf.PaliGemmaForConditionalGeneration(config).eval()
    ids = tokens(1).clamp(min=3, max=59)
    ids[0, :4] = 60
    prompt = {"input_ids": ids[:, :9], "pixel_values": torch.randn(1, 3, 16, 16)}
    given = prompt | {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": (torch.arange(TIME) >= 9).long().unsqueeze(0),
    }
    expected = run(model, "eager", **given)[0]
    assert_close(run(model, "rearview", **given)[0], expected)
    # The calls before these are those of the vision tower.
    assert all(mask.equals(causal() | prefix(9), TIME) for mask in calls[-2:])
    assert all(mask.has_ranges for mask in calls) == IMAGES_HAVE_RANGES

    def generated(implementation: str) -> list[list[int]]:
        set_attention(model, implementation)
        real = torch.ones_like(prompt["input_ids"])
        return model.generate(
            **prompt, attention_mask=real, max_new_tokens=8, min_new_tokens=8, do_sample=False
        ).tolist()

    assert generated("rearview") == generated("eager")


@torch.no_grad()
def test_images_are_heard_both_ways_by_themselves(calls: list[Any]):
    """Gemma 3: causal, but the tokens of an image hear each other; in sliding layers within a window that cuts them."""
    text: Any = GROUPED | TOKENS | {"head_dim": 8, "sliding_window": 3, "layer_types": TYPES}
    vision: Any = NARROW | {"image_size": 16, "patch_size": 8}
    torch.manual_seed(0)
    model = hf.Gemma3ForConditionalGeneration(
        hf.Gemma3Config(
            text_config=hf.Gemma3TextConfig(**text),
            vision_config=hf.SiglipVisionConfig(**vision),
            mm_tokens_per_image=4,
            image_token_index=60,
        )
    ).eval()
    ids = tokens(1).clamp(max=59)
    ids[0, 5:9] = 60
    given = {"input_ids": ids, "token_type_ids": (ids == 60).long(), "pixel_values": torch.randn(1, 3, 16, 16)}
    expected = run(model, "eager", **given)[0]
    got = run(model, "rearview", **given)[0]
    assert (got - expected).abs().max() <= TOLERANCE * expected.abs().max()
    seen = calls[-1].visible_in(Frame.of(TIME), torch.device("cpu"))[0, 0]
    assert all(mask.has_ranges for mask in calls) == IMAGES_HAVE_RANGES
    assert seen[5, 8]
    assert not seen[4, 5]
    if WINDOWS_CUT_IMAGES:
        # As docs/masks.md writes them. The calls before these are those of the vision tower.
        everywhere = causal() | documents(torch.where(ids == 60, 60, -1 - torch.arange(TIME)))
        for mask, kind in zip(calls[-2:], TYPES, strict=True):
            assert mask.equals(everywhere & window(3, ahead=TIME) if kind == "sliding_attention" else everywhere, TIME)


@torch.no_grad()
def test_a_4d_mask_of_the_user(calls: list[Any]):
    model = decoder("Llama")
    heard = (torch.rand(2, 1, TIME, TIME, generator=torch.Generator().manual_seed(3)) > 0.5) | torch.eye(TIME).bool()
    added = torch.where(heard, 0.0, torch.finfo(torch.float32).min)
    expected = run(model, "eager", input_ids=tokens(), attention_mask=added)
    assert_close(run(model, "rearview", input_ids=tokens(), attention_mask=added), expected)
    assert_close(run(model, "rearview", input_ids=tokens(), attention_mask=heard), expected)
    # Numbers that are neither 0 nor "blocked" are a bias.
    leaning = added + torch.linspace(0, 3, TIME)
    expected = run(model, "eager", input_ids=tokens(), attention_mask=leaning)
    assert_close(run(model, "rearview", input_ids=tokens(), attention_mask=leaning), expected)


@torch.no_grad()
def test_output_attentions():
    for name in ("Mistral", "GptOss", "Gemma2"):
        model = decoder(name)
        model.set_attn_implementation("eager")
        expected = model(tokens(), output_attentions=True).attentions
        model.set_attn_implementation("rearview")
        got = model(tokens(), output_attentions=True).attentions
        assert len(got) == 2
        for one, two in zip(got, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
        assert model(tokens()).attentions is None


def test_dropout_is_for_training_only():
    model = decoder("Llama")
    model.set_attn_implementation("rearview")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with torch.no_grad():
        settled = model(tokens()).logits
        assert torch.equal(model(tokens()).logits, settled)
        model.train()
        assert (model(tokens()).logits - settled).abs().max() > 1e-2
        assert (model(tokens()).logits - model(tokens()).logits).abs().max() > 1e-2


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant: bool):
    model = decoder("Mistral")
    model.set_attn_implementation("rearview")
    model.train()
    model(tokens(), attention_mask=real("left"), labels=tokens()).loss.backward()
    expected = model.model.embed_tokens.weight.grad.clone()
    model.zero_grad()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    model(tokens(), attention_mask=real("left"), labels=tokens()).loss.backward()
    assert torch.equal(model.model.embed_tokens.weight.grad, expected)


@torch.no_grad()
def test_a_compiled_model():
    model = decoder("Mistral")
    kept = real("left").bool()
    expected = run(model, "eager", input_ids=tokens(), attention_mask=real("left"))[kept]
    model.set_attn_implementation("rearview")
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(compiled(tokens(), attention_mask=real("left")).logits[kept], expected)


def test_a_model_that_computes_with_its_mask():
    """Attention that does not use the interface adds the mask to its scores, as numbers of eager attention."""
    scores = torch.zeros(1, 1, 2, 3)
    mask = MaskTensor.of(causal(), Frame.of(2, 3), batch=1)
    assert torch.softmax(scores + mask, -1)[0, 0, 0].tolist() == [0.5, 0.5, 0.0]


@pytest.mark.skipif(not hasattr(hf, "DeepseekV32Config"), reason="DeepSeek V3.2 is not in this release")
@torch.no_grad()
def test_keys_that_a_model_chooses(calls: list[Any]):
    """DeepSeek V3.2 chooses a few keys per query, and passes them to other implementations next to the mask."""
    torch.manual_seed(0)
    sizes: Any = DECODERS["DeepseekV3"] | TOKENS | {"index_topk": 5, "index_n_heads": 2, "index_head_dim": 8}
    model = hf.DeepseekV32ForCausalLM(hf.DeepseekV32Config(**sizes)).eval()
    for given in ({}, {"attention_mask": real("left")}):
        kept = given.get("attention_mask", torch.ones(2, TIME)).bool()
        expected = run(model, "eager", input_ids=tokens(), **given)[kept]
        got = run(model, "rearview", input_ids=tokens(), **given)[kept]
        assert (got - expected).abs().max() <= TOLERANCE * expected.abs().max()
    assert calls[0].to_bool(TIME)[0, 0, -1].sum() == 5
