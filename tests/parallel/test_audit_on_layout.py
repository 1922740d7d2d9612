"""A model on several ranks is audited like any other: honest exchanges hold, wrong ones are found."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from rearview import audit, causal, documents, window
from rearview.errors import BadArgument
from rearview.models import GPT, GPTConfig
from rearview.parallel import SpreadModel, exchange
from tests.parallel.processes import Processes

LENGTH = 24
IDS = (torch.arange(2 * LENGTH).view(2, LENGTH) * 7) % 19
PACKED = documents([n // 9 for n in range(LENGTH)])


def gpt(layers: int = 2) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=19, context=LENGTH, layers=layers, heads=2, width=16)).eval()


def asked(group: ProcessGroup) -> dict[str, str]:
    """The verdicts of contracts that a model on a layout keeps and breaks."""
    plain, packed = SpreadModel(gpt(), group), SpreadModel(gpt(), group, causal() & PACKED, narrow=PACKED)
    return {
        # With the proof, which knows no rule for collectives.
        "causal": audit(SpreadModel(gpt(layers=1), group), IDS[:, :9], causal()).verdict.value,
        "causal, against a window": audit(plain, IDS, causal() & window(4), prove=False).verdict.value,
        "packed": audit(packed, IDS, causal() & PACKED, prove=False).verdict.value,
        # Packed documents that the model is not told of: the probe that found documents leaking in other libraries.
        "packed, without the mask": audit(plain, IDS, causal() & PACKED, prove=False).verdict.value,
    }


def test_a_model_on_two_ranks_is_asked_the_same_questions(processes: Processes):
    for found in processes.run(asked, 2):
        assert found == {
            "causal": "HELD",
            "causal, against a window": "LEAKS",
            "packed": "HELD",
            "packed, without the mask": "LEAKS",
        }


@contextmanager
def wrong_exchange() -> Iterator[None]:
    """The rows that travel are one row off: queries hear keys of other positions."""
    original = exchange.all_to_all

    def off_by_one(rows: torch.Tensor, *arguments: Any) -> torch.Tensor:
        return original(rows.roll(1, 0), *arguments)

    exchange.all_to_all = off_by_one
    try:
        yield
    finally:
        exchange.all_to_all = original


def found_wrong(group: ProcessGroup) -> list[str]:
    spread = SpreadModel(gpt(), group, causal() & PACKED, narrow=PACKED, how="dealt")
    honest = audit(spread, IDS, causal() & PACKED, prove=False)
    with wrong_exchange():
        report = audit(spread, IDS, causal() & PACKED, prove=False)
    try:
        audit(spread, IDS, causal() & PACKED, budget=9.0)
        refused = "nothing was refused"
    except BadArgument as error:
        refused = str(error)
    return [honest.verdict.value, report.verdict.value, *report.conditions, refused]


def test_a_wrong_exchange_is_found(processes: Processes):
    for said in processes.run(found_wrong, 2):
        assert said == [
            "HELD",
            "LEAKS",
            "the place of the leak was not searched for: the search repeats other ops on each rank, and the model runs "
            "on all of them at once",
            "budget: expected no time limit for a model on several ranks, whose clocks would stop them at different "
            "checks, got 9.0.",
        ]


def transformers_packed(group: ProcessGroup) -> dict[str, float]:
    """The share of positions whose logits change when another document changes, as in TRL's probe."""
    import transformers

    from rearview.integrations.transformers import register

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=19, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=register()).eval()
    positions = PACKED.positions.expand(2, -1)
    changed = IDS.clone()
    changed[:, :9] = (changed[:, :9] + 1) % 19
    shares = {}
    for name, narrow in (("told", PACKED), ("not told", None)):
        spread = SpreadModel(model, group, causal() & PACKED, narrow=narrow)
        given = {"position_ids": positions} if narrow is not None else {}
        with torch.no_grad():
            one, other = (spread(ids, use_cache=False, **given) for ids in (IDS, changed))
        moved = (one != other).any(-1)[:, 9:]
        shares[name] = float(moved.float().mean())
    with torch.no_grad():
        alone = model(IDS[:, 9:18], use_cache=False).logits
        spread = SpreadModel(model, group, causal() & PACKED, narrow=PACKED)
        packed = spread(IDS, use_cache=False, position_ids=positions)[:, 9:18]
    shares["difference from the document alone"] = float((alone - packed).abs().max())
    return shares


def test_packed_documents_do_not_leak_in_a_transformers_model(processes: Processes):
    pytest.importorskip("transformers")
    for found in processes.run(transformers_packed, 2):
        assert found["told"] == 0.0
        assert found["not told"] == 1.0
        assert found["difference from the document alone"] < 1e-5


def spread_gradients(group: ProcessGroup) -> float:
    """Gradients of the embeddings through split and join, summed over ranks, against one process."""
    model = gpt().double()
    model(IDS).square().sum().backward()
    expected = model.tokens.weight.grad
    assert expected is not None
    model.zero_grad()
    SpreadModel(model, group)(IDS).square().sum().backward()
    found = model.tokens.weight.grad
    assert found is not None
    dist.all_reduce(found, group=group)
    return float((found - expected).abs().max())


def test_gradients_flow_through_joined_rows(processes: Processes):
    assert max(processes.run(spread_gradients, 3)) < 1e-10
