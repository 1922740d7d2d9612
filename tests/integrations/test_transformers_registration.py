"""Registering with transformers: the attention function and the mask function, always both."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import AttentionInterface, AttentionMaskInterface

from rearview import MaskedSelfAttention
from rearview.errors import Unsupported
from rearview.integrations.transformers import NAME, register
from rearview.integrations.transformers.registered_functions import rearview_attention, rearview_mask
from rearview.observation import observe
from tests.integrations.transformers_models import decoder, real, tokens


def test_without_a_mask_function_a_model_gets_no_mask():
    """This is what transformers does with a name that is registered for attention alone: no mask, and no warning."""
    got: list[Any] = []

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        got.append(attention_mask)
        return rearview_attention(module, query, key, value, attention_mask, scaling=options["scaling"])

    AttentionInterface.register("half_registered", attention)
    try:
        model = decoder("Mistral")
        with torch.no_grad():
            expected = model(tokens(), attention_mask=real("left")).logits
            model.set_attn_implementation("half_registered")
            lost = model(tokens(), attention_mask=real("left")).logits
    finally:
        del AttentionInterface._global_mapping["half_registered"]
    assert got == [None, None]
    # The window and the padding are gone; that is a different model.
    assert (lost - expected)[real("left").bool()].abs().max() > 0.1


def test_both_are_registered_and_repeating_it_is_harmless():
    assert register() == register() == NAME == "rearview"
    assert AttentionInterface()[NAME] is rearview_attention
    assert AttentionMaskInterface()[NAME] is rearview_mask


def test_setting_the_implementation_at_creation_or_later_is_the_same():
    later = decoder("Mistral")
    later.set_attn_implementation(register())
    made = type(later)._from_config(later.config, attn_implementation="rearview").eval()
    assert made.config._attn_implementation == "rearview"
    made.load_state_dict(later.state_dict())
    assert torch.equal(made(tokens()).logits, later(tokens()).logits)


def test_half_precision():
    model = decoder("Mistral").to(torch.bfloat16)
    kept = real("left").bool()
    with torch.no_grad():
        expected = model(tokens(), attention_mask=real("left")).logits[kept]
        model.set_attn_implementation(register())
        got = model(tokens(), attention_mask=real("left")).logits[kept]
    assert got.dtype == torch.bfloat16
    assert (got - expected).abs().max() <= 0.05 * expected.abs().max()


def test_transformers_is_not_installed():
    script = """
import sys
sys.modules["transformers"] = None
from rearview.errors import MissingExtra
from rearview.integrations.transformers import register
try:
    register()
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == (
        "register() needs the package 'transformers', which is not installed. "
        "Install it with: pip install transformers (the extra 'transformers' of rearview includes it)\n"
    ), done.stderr


def test_transformers_is_too_old(monkeypatch: pytest.MonkeyPatch):
    model = decoder("Llama")
    # Loading a model may replace the module.
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.6")
    with pytest.raises(
        Unsupported, match=r"^register\(\) with transformers 4.57.6:\n.*\n.*pip install 'transformers>=5"
    ):
        register()
    with pytest.raises(Unsupported, match=r"^observe\(LlamaForCausalLM\) with transformers 4.57.6"), observe(model):
        pass
    # A model that does not use transformers is not affected.
    layer = MaskedSelfAttention(8, 2)
    with observe(layer) as seen:
        layer(torch.randn(1, 3, 8))
    assert seen.length == 3


OLD: dict[str, dict[str, Any]] = {
    "GPTJ": {"n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 4},
    "GPTNeo": {"hidden_size": 32, "num_layers": 1, "num_heads": 4, "attention_types": [[["global"], 1]]},
    "Bloom": {"hidden_size": 32, "n_layer": 1, "n_head": 4},
}


@pytest.mark.parametrize("name", OLD)
def test_models_without_the_interface_keep_their_own(name: str, caplog: pytest.LogCaptureFixture):
    """Old models choose a class by name. transformers warns when asked to switch, and the model stays as it is."""
    tokens_of = {"vocab_size": 61, "bos_token_id": 1, "eos_token_id": 2}
    model = hf.AutoModelForCausalLM.from_config(getattr(hf, f"{name}Config")(**OLD[name], **tokens_of))
    own, logger = model.config._attn_implementation, hf.logging.get_logger("transformers")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level("WARNING", logger="transformers"):
            model.set_attn_implementation(register())
    finally:
        logger.removeHandler(caplog.handler)
    assert model.config._attn_implementation == own
    assert "does not support setting its attention implementation" in caplog.text
