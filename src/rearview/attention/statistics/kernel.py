"""The pass of the CPU kernel (native/src/statistics.hpp): one product and one exponential a pair, links on the way.

>>> FIELDS.size
144
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.engines import native
from rearview.attention.engines.native import call
from rearview.attention.engines.native.function import is_plain
from rearview.attention.engines.native.ranges import Ranges, one_range, ranges_of
from rearview.attention.request import Request
from rearview.attention.statistics.bins import first_position, map_shape
from rearview.attention.statistics.links import Links
from rearview.attention.statistics.result import FIRST
from rearview.attention.statistics.sums import Sums, distance_edges
from rearview.masks.step import heard_by_one

# What `rv_statistics_call` has behind its `rv_call`: sinks; entropy, top, distance, first, received; histogram and its
# bins; map, rows_heard; bin_width, map_rows, map_columns, map_origin; weight, query, key of the links, and how many.
FIELDS = struct.Struct("@P5PPqPP4qPPPq")


def suits(request: Request) -> bool:
    """Is the kernel here and faster, and can it do this? The portable one is there to be right."""
    if not native.library.IS_FAST or torch.compiler.is_compiling() or native.refusals(request):
        return False
    bias = request.bias if isinstance(request.bias, Tensor) else None
    some = 0 not in (request.batch, request.frame.q_len, request.frame.k_len)
    return some and is_plain(request.query, request.key, bias)


def sums_by_kernel(request: Request, sinks: Tensor | None, bin_width: int, links: int) -> tuple[Sums, Links]:
    """For masks of ranges, on a CPU. The strongest links are found on the way."""
    query, frame = request.query, request.frame
    lead, dtype = query.shape[:2], request.work_dtype
    a_query, a_link = (*lead, frame.q_len), (*lead, min(links, frame.q_len * frame.k_len))
    rows, columns = map_shape(frame, bin_width) if bin_width else (0, 0)

    # Made like the query, and so on its device whatever the default is.
    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return query.new_empty(shape, dtype=dtype)

    sums = Sums(
        lse=empty(*a_query),
        entropy=empty(*a_query),
        top=empty(*a_query),
        first=empty(*a_query, len(FIRST)),
        distance=empty(*a_query),
        received=empty(*lead, frame.k_len),
        histogram=empty(*lead, len(distance_edges(frame))),
        map=query.new_zeros((*lead, rows, columns), dtype=dtype) if bin_width else None,
        rows_heard=query.new_zeros((*lead, rows), dtype=dtype) if bin_width else None,
    )
    found = Links(empty(*a_link), empty(*a_link, dtype=torch.int64), empty(*a_link, dtype=torch.int64))
    fields = FIELDS.pack(
        _address(sinks),
        *map(_address, (sums.entropy, sums.top, sums.distance, sums.first, sums.received)),
        _address(sums.histogram), sums.histogram.shape[-1],
        _address(sums.map), _address(sums.rows_heard), bin_width, rows, columns, first_position(frame),
        _address(found.weight), _address(found.query), _address(found.key), a_link[-1],
    )  # fmt: skip
    bias = request.bias if isinstance(request.bias, Tensor) else None
    call.statistics(query, request.key, bias, sums.lse, _options(request), fields)
    return sums, found


def _options(request: Request) -> call.Options:
    slopes = request.bias.slopes.to("cpu", torch.float32).contiguous() if isinstance(request.bias, Alibi) else None
    softcap = request.softcap or 0.0
    return call.Options(_ranges(request), request.frame.q_start, slopes, request.scale, softcap, dropout=0.0, seed=0)


def _ranges(request: Request) -> Ranges:
    frame = request.frame
    if request.hears_everything:
        return one_range(0, frame.k_len)
    # A step without the mask's ranges, which would be made anew for each.
    if frame.q_len == 1 and (heard := heard_by_one(request.simplified, frame)):
        return one_range(*heard)
    spans = request.spans
    assert spans is not None, "a mask without ranges does not suit"
    return ranges_of(spans, request.key_heads)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
