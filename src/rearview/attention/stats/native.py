"""The pass by the C++ kernel (native/src/statistics.hpp): one product and one exponential per pair, links included.

>>> FIELDS.size
136
"""

from __future__ import annotations

import struct
from dataclasses import replace

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines import native
from rearview.attention.engines.native import kernel
from rearview.attention.engines.native.function import is_plain
from rearview.attention.engines.native.ranges import Ranges, one_range, ranges_for
from rearview.attention.stats.bins import first_position, map_shape
from rearview.attention.stats.links import Links
from rearview.attention.stats.sums import FIRST, Sums, distance_edges

# The fields of `rv_statistics_call` after its `rv_call`: entropy, top, distance, first, received; histogram and
# its bins; map, rows_heard; bin_width, map_rows, map_columns, map_origin; weight, query, key of the links, their
# number.
FIELDS = struct.Struct("@5PPqPP4qPPPq")


def suits(call: Call) -> bool:
    """Whether the kernel is present, vectorized, and able to compute this call."""
    if not native.library.IS_FAST or torch.compiler.is_compiling() or native.refusals(call):
        return False
    some = 0 not in (call.batch, call.frame.q_len, call.frame.k_len)
    return some and is_plain(call.query, call.key, call.bias_tensor)


def compute_sums(call: Call, bin_width: int, links: int) -> Sums:
    """The sums of a call that `suits`: on a CPU, with a mask that has ranges."""
    query, frame = call.query, call.frame
    lead, dtype = query.shape[:2], call.work_dtype
    per_query, per_link = (*lead, frame.q_len), (*lead, min(links, frame.q_len * frame.k_len))
    rows, columns = map_shape(frame, bin_width) if bin_width else (0, 0)

    # On the device of the query, whatever the default device is.
    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return query.new_empty(shape, dtype=dtype)

    sums = Sums(
        lse=empty(*per_query),
        entropy=empty(*per_query),
        first=empty(*per_query, len(FIRST)),
        distance=empty(*per_query),
        received=empty(*lead, frame.k_len),
        histogram=empty(*lead, len(distance_edges(frame))),
        map=query.new_zeros((*lead, rows, columns), dtype=dtype) if bin_width else None,
        rows_heard=query.new_zeros((*lead, rows), dtype=dtype) if bin_width else None,
        links=Links(empty(*per_link), empty(*per_link, dtype=torch.int64), empty(*per_link, dtype=torch.int64)),
    )
    # The kernel finds the links by the largest weight of each row, and writes that too.
    top, found = empty(*per_query), sums.links
    fields = FIELDS.pack(
        *map(_address, (sums.entropy, top, sums.distance, sums.first, sums.received)),
        _address(sums.histogram), sums.histogram.shape[-1],
        _address(sums.map), _address(sums.rows_heard), bin_width, rows, columns, first_position(frame),
        _address(found.weight), _address(found.query), _address(found.key), per_link[-1],
    )  # fmt: skip
    terms = kernel.terms_of(replace(call, dropout=0.0, seed=None) if call.dropout else call, call.sinks)
    kernel.statistics(query, call.key, call.bias_tensor, sums.lse, _ranges(call), terms, fields)
    return sums


def _ranges(call: Call) -> Ranges:
    # For a single query, without building the ranges of the mask, which change at every step.
    if call.frame.q_len == 1 and (heard := call.simplified.one_range(call.frame)):
        return one_range(*heard)
    return ranges_for(call, call.key_heads)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
