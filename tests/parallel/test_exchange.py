"""What travels: exactly the planned rows, no key that nobody hears, and gradients in a fixed order."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from rearview import (
    KeyValueCache,
    MaskedSelfAttention,
    alibi,
    attend,
    causal,
    dilated,
    documents,
    full,
    padding,
    per_head,
    plan,
    prefix,
    statistics,
    weights,
    window,
)
from rearview.errors import RearviewError
from rearview.parallel import layout_shard, shard
from rearview.parallel.exchange import exchanged_keys
from rearview.parallel.exchange_plan import ExchangePlan
from rearview.parallel.rank_group import RankGroup
from tests.parallel.processes import Processes

LENGTH, HEADS, KEY_HEADS, DIM = 43, 4, 2, 8


def rows(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradient_of(x: torch.Tensor) -> torch.Tensor:
    assert x.grad is not None
    return x.grad


def counted_bytes(group: ProcessGroup) -> dict[str, tuple[list[int], list[int]]]:
    """The bytes that this rank sends in forward and backward passes, counted at the collective, and as planned."""
    sent: list[int] = []
    original = dist.all_to_all_single

    def counting(output: torch.Tensor, given: torch.Tensor, to_receive: list[int], to_send: list[int], **options):
        assert to_send[dist.get_rank(group)] == to_receive[dist.get_rank(group)] == 0
        assert given.shape[0] == sum(to_send)
        assert output.shape[0] == sum(to_receive)
        sent.append(given.numel() * given.element_size())
        return original(output, given, to_receive, to_send, **options)

    found = {}
    dist.all_to_all_single = counting
    try:
        packed = torch.stack([torch.arange(LENGTH) // 9, torch.arange(LENGTH) // 14])
        cases = {
            "causal": (causal(), torch.float64, 1),
            "window": (causal() & window(5), torch.bfloat16, 1),
            "documents per item": (causal() & documents(packed), torch.float32, 2),
            "per head": (per_head([causal(), window(3), causal(), window(2)]), torch.float32, 1),
        }
        for name, (mask, dtype, items) in cases.items():
            layout, me = shard(mask, LENGTH, group), dist.get_rank(group)
            query = layout.split(rows(0, 2, HEADS, LENGTH, DIM, dtype=dtype), dim=2).requires_grad_()
            key = layout.split(rows(1, 2, KEY_HEADS, LENGTH, DIM, dtype=dtype), dim=2).requires_grad_()
            sent.clear()
            with layout.on():
                attend(query, key, key, mask=mask).sum().backward()
            # Keys and values of the key heads only; a key that items share travels for all of them.
            per_key = 2 * KEY_HEADS * DIM * dtype.itemsize * (2 // items)
            out = sum(move.end - move.start for move in layout.transfers if move.sender == me)
            back = sum(move.end - move.start for move in layout.transfers if move.receiver == me)
            assert back == layout.keys_received[me]
            found[name] = (list(sent), [out * per_key, back * per_key])
    finally:
        dist.all_to_all_single = original
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_the_bytes_that_travel_are_those_of_the_plan(processes: Processes, size: int):
    everything = processes.run(counted_bytes, size)
    for found in everything:
        for name, (sent, planned) in found.items():
            assert sent == planned, name
    assert sum(sum(planned) for found in everything for _, planned in found.values()) > 0


def unheard_keys(group: ProcessGroup) -> dict[str, bool]:
    """Whether outputs and gradients stay finite and right with NaN in keys that nobody hears."""
    heard = torch.arange(LENGTH) % 5 != 2
    mask = causal() & padding(torch.stack([heard, torch.arange(LENGTH) < 30]))
    layout = shard(mask, LENGTH, group)
    query, key, value = (rows(n, 2, 2, LENGTH, DIM) for n in range(3))
    clean = attend(query, key, value, mask=mask, engine="reference")
    dirty = ~torch.stack([heard, torch.arange(LENGTH) < 30]).view(2, 1, LENGTH, 1)
    key, value = key.masked_fill(dirty, torch.nan), value.masked_fill(dirty, torch.nan)
    arrived: list[torch.Tensor] = []
    original = dist.all_to_all_single

    def watching(output: torch.Tensor, given: torch.Tensor, *splits, **options):
        arrived.append(given.contiguous().view(torch.float64).clone())
        return original(output, given, *splits, **options)

    mine = [layout.split(x, dim=2).requires_grad_() for x in (query, key, value)]
    dist.all_to_all_single = watching
    try:
        with layout.on():
            out = attend(*mine, mask=mask)
            out.sum().backward()
    finally:
        dist.all_to_all_single = original
    return {
        "output": torch.allclose(out, layout.split(clean, dim=2), atol=1e-12, rtol=0),
        "sent": len(arrived) == 2 and all(bool(each.isfinite().all()) for each in arrived),
        "gradients": all(each.grad is not None and bool(each.grad.isfinite().all()) for each in mine),
    }


def test_nan_in_keys_that_nobody_hears_is_neither_seen_nor_sent(processes: Processes):
    for found in processes.run(unheard_keys, 3):
        assert found == {"output": True, "sent": True, "gradients": True}


def ranks_without_work(group: ProcessGroup) -> list[list[int]]:
    """Fewer positions than ranks, ranks that nobody sends keys to, rows that hear nothing: the shapes that came out."""
    shapes = []
    for length, mask in [(2, causal()), (1, full()), (5, prefix(0)), (9, ~causal()), (7, causal() & window(1))]:
        layout = shard(mask, length, group)
        query = rows(0, 1, 2, length, 4).requires_grad_()
        expected, expected_lse = attend(query, query, query, mask=mask, return_lse=True)
        expected.square().sum().backward()
        assert query.grad is not None
        mine = layout.split(query.detach(), dim=2).requires_grad_()
        with layout.on():
            out, lse = attend(mine, mine, mine, mask=mask, return_lse=True)
            out.square().sum().backward()
        assert mine.grad is not None
        torch.testing.assert_close(out, layout.split(expected, dim=2))
        torch.testing.assert_close(lse, layout.split(expected_lse, dim=2))
        torch.testing.assert_close(mine.grad, layout.split(query.grad, dim=2))
        shapes.append(list(out.shape))
    return shapes


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_without_rows_without_keys_and_with_empty_rows(processes: Processes, size: int):
    lengths = [[shape[2] for shape in shapes] for shapes in processes.run(ranks_without_work, size)]
    assert [sum(column) for column in zip(*lengths, strict=True)] == [2, 1, 5, 9, 7]
    assert size == 2 or min(map(min, lengths)) == 0


def every_option(group: ProcessGroup) -> dict[str, float]:
    """The largest differences from one process for each option of `attend`."""
    query, key, value = (
        rows(0, 2, HEADS, LENGTH, DIM),
        rows(1, 2, KEY_HEADS, LENGTH, DIM),
        rows(2, 2, KEY_HEADS, LENGTH, 6),
    )
    packed = documents(torch.stack([torch.arange(LENGTH) // 9, torch.arange(LENGTH) // 14]))
    bias = rows(3, 1, HEADS, LENGTH, LENGTH)
    options = {
        "scale": {"scale": 0.3},
        "softcap": {"softcap": 2.0},
        "sinks": {"sinks": rows(4, HEADS)},
        "alibi": {"bias": alibi(HEADS)},
        "bias": {"bias": bias},
        "bias per key": {"bias": bias[:, :, :1]},
        "bias per query": {"bias": bias[..., :1]},
        "bias per item": {"bias": torch.cat([bias, 2 * bias])},
    }
    found = {}
    for mask in (causal() & window(9), causal() & packed):
        layout = shard(mask, LENGTH, group)
        for name, given in options.items():
            learned = {n: x.clone().requires_grad_() for n, x in given.items() if isinstance(x, torch.Tensor)}
            whole = [x.clone().requires_grad_() for x in (query, key, value)]
            expected, expected_lse = attend(*whole, mask=mask, return_lse=True, **{**given, **learned})
            (expected.square().sum() + expected_lse.sum()).backward()
            mine = [layout.split(x, dim=2).requires_grad_() for x in (query, key, value)]
            local = {}
            for n, x in given.items():
                if isinstance(x, torch.Tensor):
                    has_rows = x.ndim == 4 and x.shape[2] > 1
                    local[n] = (layout.split(x, dim=2) if has_rows else x.clone()).requires_grad_()
            with layout.on():
                out, lse = attend(*mine, mask=mask, return_lse=True, **{**given, **local})
                (out.square().sum() + lse.sum()).backward()
            pairs = [(out, expected), (lse, expected_lse)]
            pairs += [(gradient_of(each), gradient_of(other)) for each, other in zip(mine, whole, strict=True)]
            worst = max(float((a - layout.split(b, dim=2)).abs().max()) for a, b in pairs)
            for n, x in learned.items():
                gradient, expected_gradient = gradient_of(local[n]), gradient_of(x)
                if gradient.shape == x.shape:
                    dist.all_reduce(gradient, group=group)
                else:
                    expected_gradient = layout.split(expected_gradient, dim=2)
                worst = max(worst, float((gradient - expected_gradient).abs().max()))
            found[name] = max(found.get(name, 0.0), worst)
    return found


def test_every_option_gives_what_one_process_gives(processes: Processes):
    for found in processes.run(every_option, 3):
        assert {name: worst for name, worst in found.items() if not worst < 1e-11} == {}


def half_precision(group: ProcessGroup) -> list[float]:
    """The gradients of this rank's keys in bfloat16, where every rank hears all keys: 256 from itself, 1 from others.

    In bfloat16, 256 + 1 is 256 again; in float32 the sum is 259, which rounds to 260.
    """
    layout = shard(full(), LENGTH, group)
    ranks = RankGroup.of(group)
    plan = ExchangePlan.of(full().spans(LENGTH), layout.pieces, ranks.rank, needs=layout.needs_of(full()))
    key = torch.ones(1, 1, layout.tokens[ranks.rank], 4, dtype=torch.bfloat16, requires_grad=True)
    keys, values = exchanged_keys(key, key, plan, ranks)
    weight = torch.ones(LENGTH, dtype=torch.bfloat16)
    weight[layout.positions] = 256
    (keys * weight.view(1, 1, -1, 1)).sum().backward()
    assert values.shape == keys.shape == (1, 1, LENGTH, 4)
    return gradient_of(key).unique().tolist()


def test_gradients_in_half_precision_are_summed_in_float32(processes: Processes):
    assert processes.run(half_precision, 4) == [[260.0]] * 4


def refusals(group: ProcessGroup) -> dict[str, str]:
    layout = shard(causal(), LENGTH, group)
    x = layout.split(rows(0, 1, 2, LENGTH, DIM), dim=2)
    whole = rows(0, 1, 2, LENGTH, DIM)
    found = {}

    def refused(name: str, *tensors: torch.Tensor, **options) -> None:
        try:
            attend(*(tensors or (x, x, x)), **options)
            found[name] = "nothing was refused"
        except RearviewError as error:
            found[name] = str(error)

    with layout.on():
        refused("dropout", dropout=0.1)
        refused("q_start", q_start=3)
        refused("batch_invariant", batch_invariant=True)
        refused("whole tensors", whole, whole, whole)
        refused("one step", x[:, :, :1], x, x)
        refused("bias", bias=torch.zeros(x.shape[2], x.shape[2]))
        layout_shard.LARGEST_BIAS = 100
        refused("alibi", bias=alibi(2))
        layout_shard.LARGEST_BIAS = 2**30
        refused("no ranges", mask=causal() & dilated(2))
        refused("short mask", mask=documents([0] * (LENGTH - 1)))
        for name, function in (("weights", weights), ("statistics", statistics)):
            try:
                function(x, x)
            except RearviewError as error:
                found[name] = str(error)
        try:
            layer = MaskedSelfAttention(8, 2)
            layer(torch.zeros(1, x.shape[2], 8), cache=KeyValueCache(batch=1, heads=2, max_len=64, key_dim=4))
        except RearviewError as error:
            found["cache"] = str(error)
        found["keys"] = str(layout.needs_of(causal()).selected(layout.needs_of(causal()).group == 0).sizes.sum().item())
        found["plan"] = plan(x, x, x, mask=causal()).call
        attend(x, x, x)
    return found


def test_what_is_refused_says_why(processes: Processes):
    found = processes.run(refusals, 2)[0]
    what = "attention on a layout cannot do this exactly:\n  - "
    holds = "\n  - this rank holds 21 of 43 positions"
    mismatch = (
        "expected the 21 rows of this rank, of 43, as queries and as keys, got {} queries and {} keys; decoding with a "
        "cache and cross attention are not done on a layout"
    )
    assert found == {
        "dropout": f"{what}dropout=0.1 would drop other weights than on one process",
        "q_start": f"{what}q_start=3 has no meaning: the layout says at which positions the rows are",
        "batch_invariant": f"{what}batch_invariant=True cannot be kept: sums start at other keys on every rank",
        "whole tensors": what + mismatch.format(43, 43),
        "one step": what + mismatch.format(1, 21),
        "bias": "bias: expected a float tensor that broadcasts to [1, 2, 21, 43], or alibi(...), got [21, 21].",
        "alibi": f"alibi on a layout, for 2 heads x 21 queries x {found['keys']} keys:\n"
        "  - the distances between positions would take a tensor of 0.0 GiB per layer\n"
        "Use more ranks or rotary positions.",
        "keys": found["keys"],
        "no ranges": "causal() & dilated(2) cannot be spread over ranks:\n"
        "  - a layout needs the keys of each query as ranges: the keys that a query hears are not a few ranges\n"
        "Write the mask with window, documents, prefix, chunks, tree or ranges(starts, ends), or run it on one device.",
        "short mask": "documents(ids): expected an id for each of the 43 positions, got 42 ids. Give one id per "
        "position of the whole sequence, the cached positions included.",
        "weights": f"weights and statistics of attention cannot be used on a layout:{holds}\n"
        "Compute them before or after the layout is active.",
        "statistics": f"weights and statistics of attention cannot be used on a layout:{holds}\n"
        "Compute them before or after the layout is active.",
        "cache": f"a cache cannot be used on a layout:{holds}\n"
        "Generate outside of layout.on(...), with the whole sequence on one device.",
        "plan": found["plan"],
    }
    assert found["plan"].startswith("1 x 2 heads x 21 queries over ")
