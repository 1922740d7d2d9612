"""`masks_of`: which mask each attention of a model applies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from transformers import AttentionInterface

from rearview.errors import RearviewError, Unsupported
from rearview.integrations.transformers import masks_of
from rearview.integrations.transformers.registered_functions import rearview_attention
from rearview.observation import observe
from tests.integrations.transformers_models import decoder, inputs_of_other, other, real, tokens
from tests.integrations.transformers_releases import T5_USES_INTERFACE


def test_each_layer_has_its_own():
    model = decoder("Gemma3Text")
    found = masks_of(model, input_ids=tokens(), attention_mask=real("left"))
    assert {name: repr(mask) for name, mask in found.items()} == {
        "model.layers.0.self_attn": "causal() & window(6) & padding(<2 x 24 keys>)",
        "model.layers.1.self_attn": "causal() & padding(<2 x 24 keys>)",
    }


def test_encoder_decoder_and_cross():
    found = masks_of(other("Bart"), **inputs_of_other("Bart"))
    assert [repr(mask) for mask in found.values()] == [
        "padding(<2 x 24 keys>)",
        *("causal()", "padding(<2 x 24 keys>)") * 2,
    ]
    assert [name.rpartition(".")[2] for name in found] == ["self_attn", *("self_attn", "encoder_attn") * 2]


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_keeps_its_attention(fails: bool):
    model = decoder("Mistral")
    before = model(tokens()).logits
    if fails:
        with pytest.raises(IndexError):
            masks_of(model, input_ids=tokens() + 1000)
    else:
        masks_of(model, input_ids=tokens())
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(tokens()).logits, before)
    assert AttentionInterface()["rearview"] is rearview_attention


def test_models_of_parts_keep_the_attention_of_each():
    model = other("Whisper")
    model.model.encoder.config._attn_implementation = "eager"
    before = [part.config._attn_implementation for part in model.modules() if hasattr(part, "config")]
    masks_of(model, **inputs_of_other("Whisper"))
    assert [part.config._attn_implementation for part in model.modules() if hasattr(part, "config")] == before


def test_a_model_inside_another_module():
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = decoder("Mistral")

        def forward(self, ids: Any) -> Any:
            return self.inner(ids)

    wrapper = Wrapper()
    found = masks_of(wrapper, ids=tokens())
    assert {name: repr(mask) for name, mask in found.items()} == {
        f"inner.model.layers.{n}.self_attn": "causal() & window(6)" for n in range(2)
    }
    assert wrapper.inner.config._attn_implementation == "sdpa"


def test_not_while_it_is_watched():
    model = decoder("Mistral")
    with (
        observe(model),
        pytest.raises(
            RearviewError,
            match=r"^masks_of: this model is being watched\. Call masks_of before or after `with observe\(\.\.\.\)`\.$",
        ),
    ):
        masks_of(model, input_ids=tokens())
    assert len(masks_of(model, input_ids=tokens())) == 2


@pytest.mark.skipif(not T5_USES_INTERFACE, reason="T5 asks no attention function in this release")
def test_parts_with_a_configuration_of_their_own():
    found = masks_of(other("T5"), **inputs_of_other("T5"))
    assert len(found) == 6


@pytest.mark.parametrize("kind", ["mamba", "plain"])
def test_without_attention_there_is_no_mask(kind: str):
    class Plain(nn.Module):
        def forward(self, input_ids: Any) -> Any:
            return input_ids

    config = hf.MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4)
    model = hf.MambaModel(config) if kind == "mamba" else Plain()
    with pytest.raises(Unsupported, match="none of its layers uses the attention interface of transformers"):
        masks_of(model, input_ids=tokens())
