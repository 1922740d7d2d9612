"""The host side of the forward kernel, and what it shares with that of the backward kernels.

The arguments of a kernel are, in this order: tensors by TMA, other tensors, sizes, terms of the scores.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.hopper.launcher import Tiled, launch
from rearview.attention.engines.hopper.layout import answer_like, as_asked, expressible
from rearview.attention.engines.hopper.schedule import Schedule, schedule_of
from rearview.attention.engines.hopper.scores import Scores, Tensors
from rearview.attention.engines.hopper.tiling import GRANULE, Tiling, padded_dim

# Keys and values of the heads that are in work together should stay in the L2 cache.
CACHED_BYTES = 32 << 20
# Queries that hear fewer keys than this on average get lower blocks.
FEW_KEYS = 2048


def forward(tensors: Tensors, call: Call, *, contiguous: bool = False) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp. `tensors` are query, key, value, bias and sinks; those of the call are not read.

    The output has the strides of the query, those of [batch, time, heads, dim] for instance, unless it must be
    contiguous.
    """
    from rearview.attention.engines.hopper.kernels.forward import attention_forward

    schedule = schedule_of(call, tensors[0].device)
    query, key, value = readable(tensors, schedule)
    batch, heads, q_len, dim = query.shape
    value_dim = value.shape[3]
    out = answer_like(query, value_dim, contiguous=contiguous or dim != value_dim)
    lse = query.new_empty((batch, heads, q_len), dtype=torch.float32)
    tiling = Tiling.of(dim, value_dim, short=schedule.mean_keys < FEW_KEYS)
    columns, value_columns = padded_dim(dim), padded_dim(value_dim)
    blocks = -(-q_len // (GRANULE * tiling.consumers))
    lists = schedule.query_lists(tiling.consumers, tiling.width)
    work = batch * heads * blocks
    scores = Scores(tensors, call, counter(query))
    arguments = (
        Tiled(query, (1, 1, GRANULE, columns)),
        Tiled(key, (1, 1, tiling.width, columns)),
        Tiled(value, (1, 1, tiling.width, value_columns)),
        Tiled(out, (1, 1, GRANULE, value_columns)),
        lse, schedule.starts, schedule.ends, schedule.granules, lists.entries, lists.counts, schedule.bits,
        counter(query), scores.slopes, scores.sinks, scores.bias,
        q_len, key.shape[2], call.frame.q_start, heads, heads // key.shape[1], blocks, work,
        group_of(batch * heads, heads // key.shape[1], key, value), schedule.n_granules,
        schedule.by_item, schedule.by_head, lists.length, schedule.words,
        *scores.numbers,
    )  # fmt: skip
    constants = {
        "HEIGHT": GRANULE, "WIDTH": tiling.width, "KEY_DIM": columns, "VALUE_DIM": value_columns,
        "STAGES": tiling.stages, "CONSUMERS": tiling.consumers, "REGISTERS": tiling.registers,
        "RANGES": schedule.ranges, "SINKS": tensors[4] is not None, **scores.flags,
    }  # fmt: skip
    launch(attention_forward, (min(work, processors(query.device)),), arguments, constants)
    return as_asked(out, contiguous=contiguous), lse


def readable(tensors: Tensors, schedule: Schedule) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as TMA can read them, with zeros at keys that no query hears: 0 x NaN is NaN."""
    query, key, value = tensors[:3]
    if schedule.unheard is None:
        return expressible(query), expressible(key), expressible(value)
    unheard, key_heads = schedule.unheard, key.shape[1]
    if unheard.shape[1] > 1:
        unheard = unheard.unflatten(1, (key_heads, -1)).all(2)
    unheard = unheard.unsqueeze(-1)
    return expressible(query), expressible(key.masked_fill(unheard, 0)), expressible(value.masked_fill(unheard, 0))


def group_of(heads: int, per_key_head: int, key: Tensor, value: Tensor) -> int:
    """How many heads are in work together: a divisor of their number whose keys and values fit the cache."""
    bytes_per_head = key.shape[2] * (key.shape[3] + value.shape[3]) * key.element_size()
    wanted = max(1, CACHED_BYTES // bytes_per_head) * per_key_head
    return max(each for each in range(1, min(wanted, heads) + 1) if heads % each == 0)


_counters: dict[tuple[torch.device, int], Tensor] = {}


def counter(tensor: Tensor) -> Tensor:
    """A zero that the kernels count with and set back to 0. Streams count apart; so does each launch in a graph."""
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(1, dtype=torch.int32, device=tensor.device)
    key = (tensor.device, torch.cuda.current_stream(tensor.device).cuda_stream)
    if key not in _counters:
        _counters[key] = torch.zeros(1, dtype=torch.int32, device=tensor.device)
    return _counters[key]


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
