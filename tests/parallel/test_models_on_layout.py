"""Models on a layout give the logits and the gradients of one process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributed import ProcessGroup

from rearview import MaskedSelfAttention, alibi, attend, causal, documents, observe, prefix, tree, window
from rearview.errors import RearviewError
from rearview.generation import generate
from rearview.models import BERT, GPT, BERTConfig, GPTConfig
from rearview.parallel import shard
from tests.parallel.processes import Processes, gradient_difference

LENGTH = 53
IDS = (torch.arange(2 * LENGTH).view(2, LENGTH) * 7) % 19
PACKED = torch.stack([torch.arange(LENGTH) // 11, torch.arange(LENGTH) // 17])


def gpt(**options) -> GPT:
    torch.manual_seed(3)
    config = GPTConfig(vocab_size=19, context=LENGTH, layers=2, heads=4, kv_heads=2, width=16, **options)
    return GPT(config).double()


def compared(group: ProcessGroup, model: torch.nn.Module, masks, **options) -> float:
    """The largest difference of logits, loss gradients and joined logits from one process."""
    labels = torch.cat([IDS[:, 1:], torch.full((2, 1), -100)], 1)
    whole = model(IDS, **options)
    F.cross_entropy(whole.flatten(0, 1), labels.flatten(), reduction="sum").backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    layout = shard(masks, LENGTH, group)
    with layout.on():
        logits = model(layout.split(IDS), **options)
        loss = F.cross_entropy(logits.flatten(0, 1), layout.labels(IDS).flatten(), reduction="sum")
    # Outside of the block: gradient checkpointing must still know the layout.
    loss.backward()
    logits_differ = float((layout.join(logits) - whole).abs().max().detach())
    return max(logits_differ, gradient_difference(group, model, expected))


def run_models(group: ProcessGroup) -> dict[str, float]:
    packed = documents(PACKED)
    hybrid = (causal() & window(9), causal())
    checkpointed = gpt(positions="rotary").train()
    checkpointed.gradient_checkpointing = True
    paths = tree(torch.where(torch.arange(LENGTH) == 30, 7, torch.arange(LENGTH) - 1))
    bert = BERT(BERTConfig(vocab_size=19, context=LENGTH, layers=2, heads=4, width=16)).double()
    return {
        "learned positions": compared(group, gpt(), causal()),
        "rotary positions": compared(group, gpt(positions="rotary"), causal()),
        "packed documents": compared(group, gpt(), causal() & packed, mask=packed),
        "a mask per layer": compared(group, gpt(mask=hybrid), hybrid),
        "paths": compared(group, gpt(mask=causal() & (window(5) | prefix(1))), causal(), paths=paths),
        "gradient checkpointing": compared(group, checkpointed, causal()),
        "BERT": compared(group, bert, packed, mask=packed),
    }


@pytest.mark.parametrize("size", [2, 3])
def test_models_give_what_one_process_gives(processes: Processes, size: int):
    for found in processes.run(run_models, size):
        assert {name: difference for name, difference in found.items() if not difference < 1e-10} == {}


def run_autocast(group: ProcessGroup) -> tuple[str, float, float]:
    """The dtype of the logits, and the largest differences of logits and gradients from one process."""
    model = gpt(positions="rotary").float()
    layout = shard(causal(), LENGTH, group)

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16)

    with autocast():
        whole = model(IDS)
    whole.float().square().sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    scale = max(float(each.abs().max()) for each in expected.values())
    model.zero_grad()
    with layout.on(), autocast():
        logits = model(layout.split(IDS))
    logits.float().square().sum().backward()
    worst = float((layout.join(logits.float()) - whole.float()).abs().max().detach())
    return str(logits.dtype), worst, gradient_difference(group, model, expected) / scale


def test_autocast_gives_what_one_process_gives(processes: Processes):
    """Up to the rounding of bfloat16, whose sums over other keys add in another order."""
    for dtype, logits, gradients in processes.run(run_autocast, 2):
        assert dtype == "torch.bfloat16"
        assert logits < 1e-2
        assert gradients < 2e-2


def run_layer(group: ProcessGroup) -> float:
    """The layer, with ALiBi and fewer key heads, against one process."""
    torch.manual_seed(1)
    layer = MaskedSelfAttention(16, 4, num_kv_heads=2, mask=causal() & window(9), score_bias=alibi(4)).double()
    x = torch.randn(2, LENGTH, 16, dtype=torch.float64)
    layout = shard(layer.mask & documents(PACKED), LENGTH, group)
    with layout.on():
        rows = layer(layout.split(x), mask=documents(PACKED))
    return float((layout.join(rows) - layer(x, mask=documents(PACKED))).abs().max().detach())


def test_the_layer_gives_what_one_process_gives(processes: Processes):
    assert max(processes.run(run_layer, 3)) < 1e-12


def run_refusals(group: ProcessGroup) -> dict[str, str]:
    """What is refused before anything is exchanged, so that no rank waits for another."""
    model, layout, found = gpt().eval(), shard(causal(), LENGTH, group), {}
    rows = layout.split(IDS)

    def watched() -> None:
        with observe(model):
            model(rows)

    attempts = {
        "generation": lambda: generate(model, rows[:1], max_new_tokens=2),
        "a cache": lambda: model(rows, cache=model.new_cache(2)),
        "a whole sequence": lambda: model(IDS),
        "observation": watched,
    }
    with layout.on():
        for name, attempt in attempts.items():
            try:
                attempt()
                found[name] = "nothing was refused"
            except RearviewError as error:
                found[name] = str(error)
        x = torch.zeros(1, 1, layout.tokens[torch.distributed.get_rank(group)], 4)
        attend(x, x, x)
    return found


def test_decoding_and_observation_are_refused(processes: Processes):
    found = processes.run(run_refusals, 2)[0]
    holds = "\n  - this rank holds 27 of 53 positions\n"
    outside = "Generate outside of layout.on(...), with the whole sequence on one device."
    assert found == {
        "generation": f"generation cannot be used on a layout:{holds}{outside}",
        "a cache": f"a cache cannot be used on a layout:{holds}{outside}",
        "a whole sequence": "tokens: expected the 27 rows of this rank, of 53, got [2, 53]. "
        "Cut the whole sequence with layout.split(tokens).",
        "observation": f"observation cannot be used on a layout:{holds}Observe the model on one device.",
    }
