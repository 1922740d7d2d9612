"""Models of transformers on a layout, with attn_implementation="rearview": logits and gradients of one process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed import ProcessGroup

from rearview import causal, documents, window
from rearview.errors import RearviewError
from rearview.parallel import shard
from tests.parallel.processes import Processes, gradient_difference

transformers = pytest.importorskip("transformers")

LENGTH = 41
IDS = (torch.arange(2 * LENGTH).view(2, LENGTH) * 5) % 32
PACKED = torch.stack([torch.arange(LENGTH) // 13, torch.arange(LENGTH) // 17])
SIZES = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32}


def model_of(name: str) -> Any:
    from rearview.integrations.transformers import register

    base = {"vocab_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 64, **SIZES}
    configs: dict[str, Callable] = {
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=32, n_embd=16, n_layer=2, n_head=4, n_positions=64,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        ),
        "llama": lambda: transformers.LlamaConfig(**base),
        "mistral": lambda: transformers.MistralConfig(**base, sliding_window=7),
        "gemma3": lambda: transformers.Gemma3TextConfig(
            **base, head_dim=8, sliding_window=6, layer_types=["sliding_attention", "full_attention"]
        ),
        "gpt_oss": lambda: transformers.GptOssConfig(
            **base, head_dim=8, sliding_window=6, num_local_experts=2, num_experts_per_tok=1,
            layer_types=["sliding_attention", "full_attention"],
        ),
    }  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(configs[name](), attn_implementation=register())
    # Its mixture of experts multiplies no float64.
    return model.float() if name == "gpt_oss" else model.double()


def difference(group: ProcessGroup, model: Any, masks: Any, *, packed: bool) -> float:
    """The largest difference of logits and summed gradients from one process."""
    ids = documents(PACKED)
    positions = ids.positions if packed else torch.arange(LENGTH).expand(2, -1)
    labels = torch.cat([IDS[:, 1:], torch.full((2, 1), -100)], 1)
    whole = model(IDS, position_ids=positions, use_cache=False).logits
    F.cross_entropy(whole.flatten(0, 1), labels.flatten(), reduction="sum").backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    layout = shard(masks, LENGTH, group)
    with layout.on(mask=ids if packed else None):
        logits = model(layout.split(IDS), position_ids=layout.split(positions), use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), layout.labels(IDS).flatten(), reduction="sum")
    loss.backward()
    logits_differ = float((layout.join(logits) - whole).abs().max().detach())
    return max(logits_differ, gradient_difference(group, model, expected))


def run_models(group: ProcessGroup) -> dict[str, float]:
    warnings.simplefilter("ignore")
    hybrid = [causal() & window(6), causal()]
    checkpointed = model_of("llama").train()
    checkpointed.gradient_checkpointing_enable()
    return {
        "gpt2": difference(group, model_of("gpt2"), causal(), packed=False),
        "llama": difference(group, model_of("llama"), causal(), packed=False),
        "llama, packed": difference(group, model_of("llama"), causal() & documents(PACKED), packed=True),
        "mistral": difference(group, model_of("mistral"), causal() & window(7), packed=False),
        "gemma3": difference(group, model_of("gemma3"), hybrid, packed=False),
        "gpt_oss": difference(group, model_of("gpt_oss"), hybrid, packed=False),
        "gradient checkpointing": difference(group, checkpointed, causal(), packed=False),
    }


def test_models_give_what_one_process_gives(processes: Processes):
    for found in processes.run(run_models, 2):
        # These two compute in float32, in their experts and norms.
        assert found.pop("gpt_oss") < 2e-5
        assert found.pop("gemma3") < 1e-6
        assert {name: worst for name, worst in found.items() if not worst < 1e-9} == {}


def run_mistakes(group: ProcessGroup) -> dict[str, str]:
    warnings.simplefilter("ignore")
    model, found = model_of("llama").eval(), {}
    layout = shard(causal(), LENGTH, group, how="head-tail")
    rows, positions = layout.split(IDS), layout.positions.unsqueeze(0)
    packed = layout.split(documents(PACKED).positions)
    padded = layout.split((torch.arange(LENGTH) < 40).expand(2, -1))

    def refused(name: str, **options) -> None:
        with torch.no_grad(), layout.on():
            try:
                model(rows, use_cache=False, **options)
                found[name] = "nothing was refused"
            except RearviewError as error:
                found[name] = str(error)

    refused("packed", position_ids=packed)
    # Only one rank holds the padding, and the other would wait for it.
    if not bool(padded.all()):
        refused("padding", position_ids=positions, attention_mask=padded)
    # The first rank's positions begin at 0 too, but have a gap; the others begin elsewhere.
    refused("positions")
    refused("weights", position_ids=positions, output_attentions=True)
    return found


def test_what_a_model_says_about_its_rows_alone_is_refused(processes: Processes):
    first, second = processes.run(run_mistakes, 2)
    say = "Say it for the whole sequence: layout.on(mesh, mask=documents(ids)) or mask=padding(lengths)."
    assert first["packed"] == (
        "the mask of this model on a layout:\n"
        f"  - position_ids begin a packed document at position 39, which hears the one before it\n{say}"
    )
    assert second["packed"] == first["packed"].replace("39", "13")
    (padding,) = {each["padding"] for each in (first, second) if "padding" in each}
    reason = "attention_mask marks padding in the rows of this rank alone"
    assert padding == f"the mask of this model on a layout:\n  - {reason}\n{say}"
    for found in (first, second):
        assert found["positions"] == (
            "the attention of LlamaAttention cannot be done exactly on a layout:\n"
            "  - position_ids begin at 0 on every rank; pass position_ids=layout.positions.unsqueeze(0)"
        )
    assert first["weights"] == (
        "weights of attention cannot be used on a layout:\n  - this rank holds 21 of 41 positions"
    )
