"""The host side of the backward kernels: one that adds up in any order, or two that do not."""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.hopper.kernel import counter, group_of, processors, readable
from rearview.attention.engines.hopper.launcher import Tiled, launch
from rearview.attention.engines.hopper.layout import answer_like, as_asked, expressible
from rearview.attention.engines.hopper.schedule import schedule_of
from rearview.attention.engines.hopper.scores import Scores, Tensors
from rearview.attention.engines.hopper.tiling import GRANULE, KEY_TILE, Tiling, padded_dim

# Rows of the log-sum-exp for the backward kernels come in multiples of this.
PADDED_ROWS = 128
# Rows per program of the kernels before and after.
PREPARED_ROWS, FINISHED_ROWS = 32, 32
# With wide heads and fewer keys per query than this, two kernels are as fast as one.
FEW_KEYS_APART = 768
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
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of query, key and value, with the strides of each; and of the sinks.

    One kernel adds up the gradient of the queries in whatever order its programs come. Two kernels take its place
    under `torch.use_deterministic_algorithms`, where they are as fast, and for what the one cannot do.
    """
    passes = Backward(tensors, call, out, lse, d_out, d_lse, contiguous=contiguous)
    if passes.is_fused:
        passes.run_fused()
    else:
        passes.run_apart()
    return passes.answers()


class Backward:
    """The tensors of one backward pass, and its kernels."""

    def __init__(
        self,
        tensors: Tensors,
        call: Call,
        out: Tensor,
        lse: Tensor,
        d_out: Tensor,
        d_lse: Tensor | None,
        *,
        contiguous: bool,
    ) -> None:
        self.schedule = schedule_of(call, tensors[0].device)
        self.query, self.key, self.value = readable(tensors, self.schedule)
        self.out, self.lse, self.d_out, self.d_lse = out, lse, expressible(d_out), d_lse
        self.sinks, self.call, self.contiguous = tensors[4], call, contiguous
        self.scores = Scores(tensors, call, counter(tensors[0]))
        self.dim, self.value_dim = self.query.shape[3], self.value.shape[3]
        self.tiling = Tiling.of(self.dim, self.value_dim)
        self.columns, self.value_columns = padded_dim(self.dim), padded_dim(self.value_dim)
        given = (self.query, self.key, self.value)
        self.d_query, self.d_key, self.d_value = (
            answer_like(each, each.shape[3], contiguous=contiguous) for each in given
        )
        batch, self.heads, q_len, _ = self.query.shape
        self.lines, self.q_len = batch * self.heads, q_len
        self.tiles = -(-self.key.shape[2] // KEY_TILE)
        self.processors = processors(self.query.device)

    @property
    def is_fused(self) -> bool:
        flags = self.scores.flags
        if torch.are_deterministic_algorithms_enabled() or not flags["PLAIN"] or flags["DROPOUT"]:
            return False
        if not self.columns == self.value_columns <= 128:
            return False
        return self.columns == 64 or self.schedule.mean_keys >= FEW_KEYS_APART

    def run_fused(self) -> None:
        from rearview.attention.engines.hopper.kernels.fused_gradients import fused_gradients
        from rearview.attention.engines.hopper.kernels.rows import finish_rows

        schedule, columns = self.schedule, self.columns
        parts = self.tiling.gradient_parts
        sums = self.lse.new_empty(self.lines, self.q_len, columns)
        self._prepare(sums)
        lists = schedule.key_lists(parts)
        rows = (1, 1, GRANULE, columns)
        key_heads = self.key.shape[1]
        work = self.query.shape[0] * key_heads * self.tiles
        arguments = (
            *(Tiled(each, rows) for each in (self.query, self.d_out, self.key, self.value)),
            Tiled(self.log_sums, (1, GRANULE)),
            Tiled(self.delta, (1, GRANULE)),
            Tiled(sums, (1, GRANULE, 64)),
            Tiled(self.d_key, rows),
            Tiled(self.d_value, rows),
            schedule.starts, schedule.ends, lists.entries, lists.counts, schedule.bits, counter(self.query),
            self.q_len, self.key.shape[2], self.heads, self.heads // key_heads, self.tiles, work, self._key_group(),
            schedule.by_item, schedule.by_head, lists.length, schedule.words, self.scores.numbers[0], self.call.scale,
        )  # fmt: skip
        constants = {"DIM": columns, "PARTS": parts, "RANGES": schedule.ranges}
        launch(fused_gradients, (min(work, self.processors),), arguments, constants)
        arguments = (sums, self.d_query, self.q_len, self.heads, *self.d_query.stride()[:3], self.call.scale)
        constants = {"DIM": self.dim, "COLUMNS": columns, "ROWS": FINISHED_ROWS}
        launch(finish_rows, (-(-self.q_len // FINISHED_ROWS), self.lines), arguments, constants)

    def run_apart(self) -> None:
        from rearview.attention.engines.hopper.kernels.key_gradients import key_gradients
        from rearview.attention.engines.hopper.kernels.query_gradients import query_gradients

        self._prepare(None)
        schedule, tiling, scores, call = self.schedule, self.tiling, self.scores, self.call
        batch, key_heads, k_len, _ = self.key.shape
        group_size = self.heads // key_heads
        rows, value_rows = (1, 1, GRANULE, self.columns), (1, 1, GRANULE, self.value_columns)
        lists = schedule.key_lists(1)
        work = batch * key_heads * self.tiles
        arguments = (
            Tiled(self.query, rows),
            Tiled(self.d_out, value_rows),
            Tiled(self.key, rows),
            Tiled(self.value, value_rows),
            Tiled(self.log_sums, (1, GRANULE)),
            Tiled(self.delta, (1, GRANULE)),
            Tiled(self.d_key, rows),
            Tiled(self.d_value, value_rows),
            schedule.starts, schedule.ends, lists.entries, lists.counts, schedule.bits, counter(self.query),
            scores.slopes, scores.bias,
            self.q_len, k_len, call.frame.q_start, self.heads, group_size, self.tiles, work, self._key_group(),
            schedule.by_item, schedule.by_head, lists.length, schedule.words,
            *scores.numbers[:2], call.scale, *scores.numbers[2:],
        )  # fmt: skip
        shared = {
            "KEY_DIM": self.columns, "VALUE_DIM": self.value_columns, "RANGES": schedule.ranges, **scores.flags
        }  # fmt: skip
        # The accumulators of both gradients may not fit into the registers: then there are two passes.
        for d_key, d_value in ((True, False), (False, True)) if tiling.apart else ((True, True),):
            constants = {
                "STAGES": tiling.key_stages, "AHEAD": tiling.ahead and scores.flags["PLAIN"],
                "DK": d_key, "DV": d_value, **shared,
            }  # fmt: skip
            launch(key_gradients, (min(work, self.processors),), arguments, constants)

        lists = schedule.query_lists(2, tiling.gradient_width)
        blocks = -(-self.q_len // (2 * GRANULE))
        work = self.lines * blocks
        arguments = (
            Tiled(self.query, rows),
            Tiled(self.d_out, value_rows),
            Tiled(self.key, (1, 1, tiling.gradient_width, self.columns)),
            Tiled(self.value, (1, 1, tiling.gradient_width, self.value_columns)),
            Tiled(self.d_query, rows),
            self.log_sums, self.delta, schedule.starts, schedule.ends, schedule.granules, lists.entries, lists.counts,
            schedule.bits, counter(self.query), scores.slopes, scores.bias,
            self.q_len, self.log_sums.shape[1], k_len, call.frame.q_start, self.heads, group_size, blocks, work,
            group_of(self.lines, group_size, self.key, self.value), schedule.n_granules,
            schedule.by_item, schedule.by_head, lists.length, schedule.words,
            *scores.numbers[:2], call.scale, *scores.numbers[2:],
        )  # fmt: skip
        constants = {"WIDTH": tiling.gradient_width, "STAGES": tiling.gradient_stages, **shared}
        launch(query_gradients, (min(work, self.processors),), arguments, constants)

    def answers(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        d_query, d_key, d_value = (
            as_asked(each, contiguous=self.contiguous) for each in (self.d_query, self.d_key, self.d_value)
        )
        return d_query, d_key, d_value, self._sink_gradients()

    def _prepare(self, sums: Tensor | None) -> None:
        """Per row, padded: the log-sum-exp in units of log 2, and the sum of out x d_out less the former's gradient."""
        from rearview.attention.engines.hopper.kernels.rows import prepare_rows

        padded = -(-self.q_len // PADDED_ROWS) * PADDED_ROWS
        self.log_sums, self.delta = self.lse.new_empty(2, self.lines, padded)
        d_lse = self.lse if self.d_lse is None else self.d_lse.contiguous()
        arguments = (
            self.out, self.d_out, self.lse, d_lse, self.log_sums, self.delta, self.delta if sums is None else sums,
            self.q_len, padded, self.heads, *self.out.stride()[:3], *self.d_out.stride()[:3],
        )  # fmt: skip
        constants = {
            "DIM": self.value_dim, "COLUMNS": self.value_columns, "ROWS": PREPARED_ROWS,
            "D_LSE": self.d_lse is not None, "SUMS": sums is not None,
        }  # fmt: skip
        launch(prepare_rows, (padded // PREPARED_ROWS, self.lines), arguments, constants)

    def _key_group(self) -> int:
        """How many key heads are in work together."""
        every = self.query.shape[0] * self.key.shape[1]
        # With two ranges a few tiles can be heard by all queries.
        if self.schedule.ranges == 2 and self.key.shape[2] >= LONG:
            return every
        return group_of(every, 1, self.query, self.d_out)

    def _sink_gradients(self) -> Tensor | None:
        if self.sinks is None:
            return None
        share = torch.exp(self.sinks.view(1, -1, 1) - self.lse).masked_fill(self.lse == -torch.inf, 0)
        delta = self.delta.view(*self.lse.shape[:2], -1)[..., : self.q_len]
        return -(share * delta).sum((0, 2)).to(self.sinks.dtype)
