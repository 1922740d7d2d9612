"""The host side of the forward kernel, and what it shares with that of the backward kernels.

The arguments of a kernel are, in this order: tensors by TMA, other tensors, sizes, terms of the scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.hopper.launcher import Tiled
from rearview.attention.engines.hopper.layout import answer_like, as_asked, expressible
from rearview.attention.engines.hopper.recording import Recording, Repetition
from rearview.attention.engines.hopper.schedule import Schedule, schedule_of
from rearview.attention.engines.hopper.scores import Scores, Tensors
from rearview.attention.engines.hopper.tiling import GRANULE, Reach, Tiling, padded_dim

# Keys and values of the heads that are in work together should stay in the L2 cache.
CACHED_BYTES = 32 << 20
# Queries that hear fewer keys than this on average get lower blocks; and narrower tiles below the next numbers, of
# which the second is for two ranges per row and wide heads.
FEW_KEYS = 3072
FEWEST_KEYS, FEWEST_KEYS_WIDE = 256, 768


@dataclass(eq=False)
class Repetitions:
    """What the calls of one kind have found out: how their passes are repeated."""

    forward: Repetition | None = None
    # And which gradients it was recorded for.
    backward: tuple[tuple[Any, ...], Repetition] | None = None


def forward(
    tensors: Tensors, call: Call, *, contiguous: bool = False, known: Repetitions | None = None
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp. `tensors` are query, key, value, bias and sinks; those of the call are not read.

    The output has the strides of the query, those of [batch, time, heads, dim] for instance, unless it must be
    contiguous. `known` is for calls that differ in nothing but the values of their tensors.
    """
    if known is not None and known.forward is not None:
        query, key, value, _, sinks = tensors
        given = (query, key, value, counter(query))
        made = known.forward(given if sinks is None else (*given, sinks))
        if made is not None:
            return made[0], made[1]
    return first_forward(tensors, call, contiguous=contiguous, known=known)


def first_forward(
    tensors: Tensors, call: Call, *, contiguous: bool, known: Repetitions | None
) -> tuple[Tensor, Tensor]:
    """The same for the first call of a kind, and for calls that cannot be repeated."""
    from rearview.attention.engines.hopper.kernels.forward import attention_forward

    schedule = schedule_of(call, tensors[0].device)
    query, key, value = readable(tensors, schedule)
    batch, heads, q_len, dim = query.shape
    value_dim = value.shape[3]
    tiling = Tiling.of(dim, value_dim, reach=reach_of(schedule, call, max(dim, value_dim)))
    columns, value_columns = padded_dim(dim), padded_dim(value_dim)
    blocks = -(-q_len // (GRANULE * tiling.consumers))
    lists = schedule.query_lists(tiling.consumers, tiling.width)
    work = batch * heads * blocks
    nothing = counter(query)
    scores = Scores(tensors, call, nothing)
    # Sinks that are missing are `nothing`.
    given = (*tensors[:3], nothing, *(() if tensors[4] is None else (scores.sinks,)))
    recording = Recording(given, (*schedule.tensors(lists), scores.slopes))
    out = recording.made(answer_like(query, value_dim, contiguous=contiguous or dim != value_dim))
    lse = recording.made(query.new_empty((batch, heads, q_len), dtype=torch.float32))
    arguments = (
        Tiled(query, (1, 1, GRANULE, columns)),
        Tiled(key, (1, 1, tiling.width, columns)),
        Tiled(value, (1, 1, tiling.width, value_columns)),
        Tiled(out, (1, 1, GRANULE, value_columns)),
        lse, schedule.starts, schedule.ends, schedule.granules, lists.entries, lists.counts, schedule.bits,
        nothing, scores.slopes, scores.sinks, scores.bias,
        q_len, key.shape[2], call.frame.q_start, heads, heads // key.shape[1], blocks, work,
        group_of(batch * heads, heads // key.shape[1], key, value), schedule.n_granules,
        schedule.by_item, schedule.by_head, lists.length, schedule.words,
        *scores.numbers,
    )  # fmt: skip
    constants = {
        "HEIGHT": GRANULE, "WIDTH": tiling.width, "KEY_DIM": columns, "VALUE_DIM": value_columns,
        "STAGES": tiling.stages, "CONSUMERS": tiling.consumers, "QUERIES": tiling.blocks,
        "FOLD": tiling.folds, "REGISTERS": tiling.registers, "RANGES": schedule.ranges,
        "SINKS": tensors[4] is not None, **scores.flags,
    }  # fmt: skip
    recording.launch(attention_forward, (min(work, processors(query.device)),), arguments, constants)
    answer = as_asked(out, contiguous=contiguous)
    if known is not None and answer is out and can_be_repeated(tensors, call):
        known.forward = recording.repetition()
    return answer, lse


def can_be_repeated(tensors: Tensors, call: Call) -> bool:
    """Whether a call says nothing new to the kernels each time: a seed, a bias, sinks that must be converted."""
    sinks = tensors[4]
    return not call.dropout and tensors[3] is None and (sinks is None or sinks.dtype == torch.float32)


def reach_of(schedule: Schedule, call: Call, dim: int) -> Reach:
    """How far the queries of a schedule hear, in the terms of `Tiling.of`."""
    # Sums over other tiles have other bits, and a mean depends on the other queries.
    if call.batch_invariant:
        return "middle"
    if schedule.mean_keys >= FEW_KEYS:
        return "far"
    fewest = FEWEST_KEYS_WIDE if schedule.ranges == 2 and dim > 64 else FEWEST_KEYS
    return "near" if schedule.mean_keys < fewest else "middle"


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


_counters: dict[tuple[int | None, int], Tensor] = {}


def counter(tensor: Tensor) -> Tensor:
    """A zero that the kernels count with and set back to 0. Streams count apart; so does each launch in a graph."""
    device = tensor.device
    # The stream by its address: an object of torch for it takes as long as a launch.
    if torch._C._cuda_isCurrentStreamCapturing():
        return torch.zeros(1, dtype=torch.int32, device=device)
    key = (device.index, torch._C._cuda_getCurrentRawStream(device.index))
    known = _counters.get(key)
    if known is None:
        known = _counters[key] = torch.zeros(1, dtype=torch.int32, device=device)
    return known


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
