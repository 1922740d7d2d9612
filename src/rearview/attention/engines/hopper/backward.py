"""The host side of the backward kernels: one that adds up in any order, or two that do not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.hopper.kernel import (
    Repetitions,
    can_be_repeated,
    counter,
    group_of,
    processors,
    readable,
)
from rearview.attention.engines.hopper.launcher import Tiled
from rearview.attention.engines.hopper.layout import answer_like, as_asked, expressible
from rearview.attention.engines.hopper.recording import Recording, Repetition
from rearview.attention.engines.hopper.schedule import Lists, schedule_of
from rearview.attention.engines.hopper.scores import Scores, Tensors
from rearview.attention.engines.hopper.tiling import GRANULE, KEY_TILE, Tiling, padded_dim

# Rows of the log-sum-exp for the backward kernels come in multiples of this.
PADDED_ROWS = 128
# Rows per program of the kernels before and after.
PREPARED_ROWS, FINISHED_ROWS = 32, 32
# From this many keys on, the tiles that most queries hear are computed first, whatever their head.
LONG = 8192


def backward(
    tensors: Tensors,
    call: Call,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None,
    *,
    contiguous: bool = False,
    known: Repetitions | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of query, key and value, with the strides of each; and of the sinks.

    One kernel adds up the gradient of the queries in whatever order its programs come. Two kernels take its place
    under `torch.use_deterministic_algorithms`, and for what the one cannot do. `known` is that of the forward pass.
    """
    given = (*tensors[:3], counter(tensors[0]), out, lse, d_out, *(() if d_lse is None else (d_lse,)))
    # The kind of the call says the rest.
    asked = (d_out.stride(), d_out.dtype, d_lse is None or d_lse.stride(), torch.are_deterministic_algorithms_enabled())
    if known is not None and known.backward is not None and known.backward[0] == asked:
        made = known.backward[1](given)
        if made is not None:
            d_query, d_key, d_value, _, delta, *_ = made
            return d_query, d_key, d_value, sink_gradients(tensors[4], lse, delta)
    passes = Backward(tensors, call, given, contiguous=contiguous)
    if passes.is_fused:
        passes.run_fused()
    else:
        passes.run_apart()
    if known is not None and can_be_repeated(tensors, call):
        repetition = passes.repetition()
        known.backward = None if repetition is None else (asked, repetition)
    return passes.answers()


class Backward:
    """The tensors of one backward pass, and its kernels."""

    def __init__(self, tensors: Tensors, call: Call, given: Sequence[Tensor], *, contiguous: bool) -> None:
        self.schedule = schedule_of(call, tensors[0].device)
        self.query, self.key, self.value = readable(tensors, self.schedule)
        self.nothing, self.out, self.lse, d_out, *d_lse = given[3:]
        self.d_out, self.d_lse = expressible(d_out), d_lse[0].contiguous() if d_lse else None
        self.sinks, self.call, self.contiguous = tensors[4], call, contiguous
        self.scores = Scores(tensors, call, self.nothing)
        self.recording = Recording(given, (*self.schedule.tensors(), self.scores.slopes))
        self.dim, self.value_dim = self.query.shape[3], self.value.shape[3]
        self.tiling = Tiling.of(self.dim, self.value_dim)
        self.columns, self.value_columns = padded_dim(self.dim), padded_dim(self.value_dim)
        inputs = (self.query, self.key, self.value)
        self.d_query, self.d_key, self.d_value = (
            self.recording.made(answer_like(each, each.shape[3], contiguous=contiguous)) for each in inputs
        )
        batch, self.heads, q_len, _ = self.query.shape
        self.lines, self.q_len = batch * self.heads, q_len
        self.tiles = -(-self.key.shape[2] // KEY_TILE)
        self.processors = processors(self.query.device)
        padded = -(-q_len // PADDED_ROWS) * PADDED_ROWS
        # Per row: the log-sum-exp in units of log 2; and the sum of out x d_out, less the gradient of the former.
        self.log_sums, self.delta = (self.recording.made(self.lse.new_empty(self.lines, padded)) for _ in range(2))

    @property
    def is_fused(self) -> bool:
        flags = self.scores.flags
        if torch.are_deterministic_algorithms_enabled() or not flags["PLAIN"] or flags["DROPOUT"]:
            return False
        return self.columns == self.value_columns <= 128

    def repetition(self) -> Repetition | None:
        answers = (self.d_query, self.d_key, self.d_value)
        whole = all(as_asked(each, contiguous=self.contiguous) is each for each in answers)
        return self.recording.repetition() if whole else None

    def run_fused(self) -> None:
        from rearview.attention.engines.hopper.kernels.fused_gradients import fused_gradients
        from rearview.attention.engines.hopper.kernels.rows import finish_rows

        schedule, columns = self.schedule, self.columns
        parts = self.tiling.gradient_parts
        sums = self.recording.made(self.lse.new_empty(self.lines, self.q_len, columns))
        self._prepare(sums)
        lists = self._kept(schedule.key_lists(parts))
        rows = (1, 1, GRANULE, columns)
        key_heads = self.key.shape[1]
        work = self.query.shape[0] * key_heads * self.tiles
        arguments = (
            *(Tiled(each, rows) for each in (self.query, self.d_out, self.key, self.value)),
            Tiled(self.log_sums, (1, GRANULE)),
            Tiled(self.delta, (1, GRANULE)),
            self._edges(),
            Tiled(sums, (1, GRANULE, 64)),
            Tiled(self.d_key, rows),
            Tiled(self.d_value, rows),
            lists.entries, lists.counts, schedule.bits, self.nothing,
            self.q_len, self.key.shape[2], self.heads, self.heads // key_heads, self.tiles, work, self._key_group(),
            schedule.by_item, schedule.by_head, lists.length, schedule.words, schedule.edge_lines,
            self.scores.numbers[0], self.call.scale,
        )  # fmt: skip
        constants = {"DIM": columns, "PARTS": parts, "TILES": self.tiling.fused_tiles, "RANGES": schedule.ranges}
        self.recording.launch(fused_gradients, (min(work, self.processors),), arguments, constants)
        arguments = (sums, self.d_query, self.q_len, self.heads, *self.d_query.stride()[:3], self.call.scale)
        constants = {"DIM": self.dim, "COLUMNS": columns, "ROWS": FINISHED_ROWS}
        self.recording.launch(finish_rows, (-(-self.q_len // FINISHED_ROWS), self.lines), arguments, constants)

    def run_apart(self) -> None:
        from rearview.attention.engines.hopper.kernels.key_gradients import key_gradients
        from rearview.attention.engines.hopper.kernels.query_gradients import query_gradients

        self._prepare(None)
        schedule, tiling, scores, call = self.schedule, self.tiling, self.scores, self.call
        batch, key_heads, k_len, _ = self.key.shape
        group_size = self.heads // key_heads
        rows, value_rows = (1, 1, GRANULE, self.columns), (1, 1, GRANULE, self.value_columns)
        lists = self._kept(schedule.key_lists(1))
        work = batch * key_heads * self.tiles
        arguments = (
            Tiled(self.query, rows),
            Tiled(self.d_out, value_rows),
            Tiled(self.key, rows),
            Tiled(self.value, value_rows),
            Tiled(self.log_sums, (1, GRANULE)),
            Tiled(self.delta, (1, GRANULE)),
            self._edges(),
            Tiled(self.d_key, rows),
            Tiled(self.d_value, value_rows),
            lists.entries, lists.counts, schedule.bits, self.nothing, scores.slopes, scores.bias,
            self.q_len, k_len, call.frame.q_start, self.heads, group_size, self.tiles, work, self._key_group(),
            schedule.by_item, schedule.by_head, lists.length, schedule.words, schedule.edge_lines,
            *scores.numbers[:2], call.scale, *scores.numbers[2:],
        )  # fmt: skip
        shared = {
            "KEY_DIM": self.columns, "VALUE_DIM": self.value_columns, "RANGES": schedule.ranges, **scores.flags
        }  # fmt: skip
        # The accumulators of both gradients may not fit into the registers: then there are two passes.
        for d_key, d_value in ((True, False), (False, True)) if tiling.apart else ((True, True),):
            constants = {
                "STAGES": tiling.key_stages, "TILES": tiling.key_tiles, "AHEAD": tiling.ahead and scores.flags["PLAIN"],
                "DK": d_key, "DV": d_value, **shared,
            }  # fmt: skip
            self.recording.launch(key_gradients, (min(work, self.processors),), arguments, constants)

        lists = self._kept(schedule.query_lists(2, tiling.gradient_width))
        blocks = -(-self.q_len // (2 * GRANULE))
        work = self.lines * blocks
        arguments = (
            Tiled(self.query, rows),
            Tiled(self.d_out, value_rows),
            Tiled(self.key, (1, 1, tiling.gradient_width, self.columns)),
            Tiled(self.value, (1, 1, tiling.gradient_width, self.value_columns)),
            Tiled(self.d_query, rows),
            self.log_sums, self.delta, schedule.starts, schedule.ends, schedule.granules, lists.entries, lists.counts,
            schedule.bits, self.nothing, scores.slopes, scores.bias,
            self.q_len, self.log_sums.shape[1], k_len, call.frame.q_start, self.heads, group_size, blocks, work,
            group_of(self.lines, group_size, self.key, self.value), schedule.n_granules,
            schedule.by_item, schedule.by_head, lists.length, schedule.words,
            *scores.numbers[:2], call.scale, *scores.numbers[2:],
        )  # fmt: skip
        constants = {
            "WIDTH": tiling.gradient_width, "STAGES": tiling.gradient_stages, "QUERIES": tiling.gradient_blocks,
            **shared,
        }  # fmt: skip
        self.recording.launch(query_gradients, (min(work, self.processors),), arguments, constants)

    def answers(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        d_query, d_key, d_value = (
            as_asked(each, contiguous=self.contiguous) for each in (self.d_query, self.d_key, self.d_value)
        )
        return d_query, d_key, d_value, sink_gradients(self.sinks, self.lse, self.delta)

    def _prepare(self, sums: Tensor | None) -> None:
        from rearview.attention.engines.hopper.kernels.rows import prepare_rows

        padded = self.delta.shape[1]
        d_lse = self.lse if self.d_lse is None else self.d_lse
        arguments = (
            self.out, self.d_out, self.lse, d_lse, self.log_sums, self.delta, self.delta if sums is None else sums,
            self.q_len, padded, self.heads, *self.out.stride()[:3], *self.d_out.stride()[:3],
        )  # fmt: skip
        constants = {
            "DIM": self.value_dim, "COLUMNS": self.value_columns, "ROWS": PREPARED_ROWS,
            "D_LSE": self.d_lse is not None, "SUMS": sums is not None,
        }  # fmt: skip
        self.recording.launch(prepare_rows, (padded // PREPARED_ROWS, self.lines), arguments, constants)

    def _edges(self) -> Tiled:
        """The ranges of each row by TMA; what is read as bits has none, and any numbers stand for them."""
        return Tiled(self.schedule.edges if self.schedule.ranges else self.delta, (1, GRANULE))

    def _key_group(self) -> int:
        """How many key heads are in work together."""
        every = self.query.shape[0] * self.key.shape[1]
        # With two ranges a few tiles can be heard by all queries.
        if self.schedule.ranges == 2 and self.key.shape[2] >= LONG:
            return every
        return group_of(every, 1, self.query, self.d_out)

    def _kept(self, lists: Lists) -> Lists:
        self.recording.keep(lists.entries, lists.counts)
        return lists


def sink_gradients(sinks: Tensor | None, lse: Tensor, delta: Tensor) -> Tensor | None:
    if sinks is None:
        return None
    share = torch.exp(sinks.view(1, -1, 1) - lse).masked_fill(lse == -torch.inf, 0)
    delta = delta.view(*lse.shape[:2], -1)[..., : lse.shape[2]]
    return -(share * delta).sum((0, 2)).to(sinks.dtype)
