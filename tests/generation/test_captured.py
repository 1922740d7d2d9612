"""Steps that are captured in a CUDA graph give the same tokens. Without a GPU, the step runs as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rearview import Mask, Unsupported, causal, observe, prefix, window
from rearview.generation import LookupDraft, decoding, generate
from rearview.generation.captured_gpt import can_capture, is_watched
from rearview.models import GPT, T5, GPTConfig, T5Config

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MASKS: dict[str, Mask] = {"causal": causal(), "sinks and window": (causal() & window(5)) | (causal() & prefix(1))}


def new_model(mask: Mask, **options) -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=65, context=16, layers=2, heads=4, width=32, mask=mask, **options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                # No two logits are nearly equal.
                parameter.mul_(4.0)
    return model.to(DEVICE)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "can_capture", lambda model: True)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("when_full", ["slide", "stop"])
def test_the_same_tokens(captured: None, mask: str, positions, when_full):
    model = new_model(MASKS[mask], positions=positions, kv_heads=2)
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [4]]
    tried: list[dict[str, Any]] = [{"temperature": 0, "stop_ids": [7, 3]}, {"seed": 3, "top_k": 9}]
    for options in tried:
        said = [
            generate(model, prompts, max_new_tokens=24, when_full=when_full, cuda_graph=graph, **options).finish()
            for graph in (True, False)
        ]
        assert said[0].tokens == said[1].tokens
        assert said[0].reasons == said[1].reasons


def test_what_is_captured():
    model = new_model(causal())
    assert can_capture(model) == (DEVICE == "cuda")
    assert not is_watched(model)
    with observe(model):
        assert is_watched(model)
    handle = model.blocks[0].register_forward_hook(lambda *arguments: None)
    assert is_watched(model)
    handle.remove()
    assert not is_watched(model)


@pytest.mark.parametrize("options", [{"use_cache": False}, {"draft": LookupDraft()}], ids=["no cache", "a draft"])
def test_a_graph_that_cannot_be_had_is_refused(captured: None, options: dict):
    with pytest.raises(Unsupported) as error:
        generate(new_model(causal()), [1, 2], max_new_tokens=3, temperature=0, cuda_graph=True, **options)
    assert str(error.value) == (
        "generation with a CUDA graph:\n"
        "  - the steps of a GPT with a cache and without a draft are captured, on an NVIDIA GPU, with masks that have "
        "ranges, while nothing watches its layers\n"
        "Omit cuda_graph: then a graph is used wherever it can be."
    )
    model = T5(T5Config(vocab_size=65, layers=1, heads=2, width=8))
    with pytest.raises(Unsupported, match="generation with a CUDA graph"):
        generate(model, [1, 2], max_new_tokens=3, cuda_graph=True)


@pytest.mark.skipif(DEVICE == "cuda", reason="here a graph can be captured")
def test_without_a_gpu_a_graph_is_refused_and_not_missed():
    model = new_model(causal())
    with pytest.raises(Unsupported, match="generation with a CUDA graph"):
        generate(model, [1, 2], max_new_tokens=3, cuda_graph=True)
    assert len(generate(model, [1, 2], max_new_tokens=3).finish().tokens[0]) == 3
