"""Rows that travel: sorted by a value, or chosen by one, computed row by row, and put back where they came from.

Token-choice experts work like this. Taken op by op, everyone would hear everyone: which row stands at place r depends
on all tokens. But if what is done to a row does not depend on its place, then after the way back row t depends on row
t alone, and on whatever decided its way. A `Route` is one such permutation or selection; a tensor that is `Z[route]`
has a `Routed` with the sets of Z. Ops that work row by row carry it on; the way back returns Z's sets. Any other op
falls back to its own rule; for a selection, whose very length is a value, that is an escape.

>>> import torch
>>> from rearview.audit.proof import prove
>>> def experts(x):
...     out = torch.zeros_like(x[0])
...     for e in range(2):
...         (chosen,) = torch.where((x[0].sum(-1) > 0) == e)
...         out.index_add_(0, chosen, x[0][chosen] * (e + 1))
...     return out[None]
>>> prove(experts, torch.randn(1, 3, 2)).matrix().int().tolist()
[[1, 0, 0], [0, 1, 0], [0, 0, 1]]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rearview.audit.proof.call import Call, Heard, raw
from rearview.audit.proof.rules import RULES
from rearview.audit.proof.rules.copies import clone
from rearview.audit.proof.rules.pointwise import (
    add,
    both,
    either,
    exponential,
    glu,
    masked_fill,
    multiply,
    pointwise,
    where,
)
from rearview.audit.proof.sets import WEIGHTS, align, everything, flag, heard, join, over, regroup, spread, unmark

if TYPE_CHECKING:
    from rearview.audit.proof.trace import Trace

ELEMENTWISE = (pointwise, multiply, add, both, either, where, masked_fill, exponential, clone, glu)


@dataclass(eq=False)
class Route:
    """`chosen[r]` is the row, of `rows`, that stands at place r in this run; `sets` [rows, c]: who decided its way."""

    rows: int
    chosen: Tensor
    sets: Tensor | None
    whole: bool
    """Every row is there once: a permutation. Otherwise a selection."""


@dataclass(eq=False)
class Routed:
    """A tensor that is Z[route] along its first axis."""

    route: Route
    sets: Tensor | None
    value: Tensor | None = None
    """Z itself, where it is constant."""
    role: str = "rows"
    """rows; single (the only one, without its axis); keys (what a permutation sorts by); inverse, counts, offsets."""


def follow(trace: Trace, call: Call, rule: Any) -> list[Any] | None:
    """One entry for each output: a Routed, or the exact sets after the way back. None if the op is like any other."""
    tagged = [item for item in call.inputs if item.tag is not None]
    if any(item.selected and item.tag is None for item in call.inputs):
        # It was written to in parts: nobody knows any more what its rows are, nor how many.
        trace.escaped(call.name)
        return None
    if not tagged:
        return start(trace, call) if call.name in STARTS else None
    route = tagged[0].tag.route
    found = None
    if all(item.tag.route is route for item in tagged):
        found = (
            ordered(call)
            or counted(call, route)
            or grouped(trace, call, route)
            or read(call, route)
            or put_back(trace, call, route)
            or single(call, route)
            or row_by_row(trace, call, rule, route)
        )
    if found is None and any(not item.tag.route.whole for item in tagged):
        trace.escaped(call.name)
    return found


def start(trace: Trace, call: Call) -> list[Any] | None:
    """Sorting a vector, or looking up where a mask is True."""
    item = call.args[0]
    if call.name in ("sort", "argsort"):
        if item.ndim != 1 or not heard(item.sets):
            return None
        values, order = call.out if call.name == "sort" else (None, call.out)
        sets = spread(item.sets, item.shape)
        route = Route(len(order), order.clone(), sets, whole=True)
        rising = call["descending"] is not True
        numbers = Routed(route, None, torch.arange(len(order), device=order.device))
        return ([Routed(route, sets, role="keys" if rising else "rows")] if values is not None else []) + [numbers]
    if call.name == "nonzero":
        if not heard(item.sets):
            return None
        return [Routed(selection(trace, item), None, coordinates(item.value))]
    mask = call.args[1][0] if len(call.args[1]) == 1 else None
    if mask is None or mask.value.dtype is not torch.bool or not heard(mask.sets):
        return None
    flat = (mask.value.numel(), *item.shape[mask.ndim :])
    sets = None if item.sets is None else spread_rows(regroup(item.sets, item.shape, flat), flat)
    value = item.value.reshape(flat) if sets is None else None
    return [Routed(selection(trace, mask), sets, value)]


STARTS = {"sort", "argsort", "nonzero", "index"}


def selection(trace: Trace, mask: Heard) -> Route:
    """The same mask, read twice without a write between, chooses the same rows."""
    kept = trace.memory.routes(mask.value)
    if "mask" not in kept:
        assert mask.sets is not None
        sets = spread(mask.sets, mask.shape).reshape(mask.value.numel(), -1)
        chosen = mask.value.reshape(-1).nonzero()[:, 0]
        kept["mask"] = Route(mask.value.numel(), chosen, sets, whole=False)
        trace.selections = True
    return kept["mask"]


def coordinates(mask: Tensor) -> Tensor:
    """[elements, axes]: where each element of the mask stands."""
    return torch.ones_like(mask, dtype=torch.bool).nonzero()


def spread_rows(sets: Tensor, shape: tuple[int, ...]) -> Tensor:
    return sets.expand(shape[0], *sets.shape[1:])


def before(item: Heard, *, decided: bool = False) -> Heard:
    """Z, for a tensor that is Z[route]; with `decided`, it has heard who decided the way."""
    tag = item.tag
    route = tag.route
    if tag.value is not None:
        return Heard(tag.value, with_way(None, route, tag.value.dim()) if decided else None)
    shape = (route.rows, *item.shape[1:])
    value = torch.zeros(shape, dtype=item.value.dtype, device=item.value.device)
    value[route.chosen] = item.value
    # Nothing is a constant in rows that may not even be there.
    sets = flag(align(tag.sets, len(shape)), WEIGHTS, True) if tag.sets is not None else None
    return Heard(value, with_way(sets, route, len(shape)) if decided else sets)


def with_way(sets: Tensor | None, route: Route, ndim: int) -> Tensor | None:
    if route.sets is None:
        return sets
    return join(ndim, sets, route.sets.reshape(route.rows, *[1] * (ndim - 1), -1))


def again(call: Call, rule: Any, out: Any, *, decided: bool = False) -> Any:
    """The rule once more, on the tensors as they were before they were routed."""

    def unrouted(value: Any) -> Any:
        if isinstance(value, Heard):
            return before(value, decided=decided) if value.tag is not None else value
        if isinstance(value, (list, tuple)):
            return type(value)(unrouted(item) for item in value)
        return value

    kwargs = {name: unrouted(value) for name, value in call.kwargs.items()}
    return rule(Call(call.trace, call.func, call.name, unrouted(call.args), kwargs, out))


def ordered(call: Call) -> list[Any] | None:
    """argsort of a permutation is its inverse; so is inverse[permutation] = 0, 1, 2, ..."""
    if call.name in ("sort", "argsort") and is_permutation(call.args[0]):
        inverse = Routed(call.args[0].tag.route, None, role="inverse")
        return [None, inverse] if call.name == "sort" else [inverse]
    if call.name == "index_put" and call.args[0].tag is None and len(call.args[1]) == 1:
        index: Heard | None = call.args[1][0]
        values = call["values"]
        if index is not None and is_permutation(index) and values.is_constant and not call["accumulate"]:
            count = torch.arange(index.tag.route.rows, device=values.value.device)
            if call.args[0].shape == count.shape and torch.equal(values.value.long(), count):
                return [Routed(index.tag.route, None, role="inverse")]
    return None


def is_permutation(item: Heard) -> bool:
    tag = item.tag
    if tag is None or not tag.route.whole or tag.value is None or tag.role != "rows" or tag.value.dim() != 1:
        return False
    return torch.equal(tag.value, torch.arange(tag.route.rows, device=tag.value.device))


def counted(call: Call, route: Route) -> list[Any] | None:
    """How many keys there are of each number, and the running sum of that: where each group of sorted rows ends."""
    tag = call.args[0].tag if isinstance(call.args[0], Heard) else None
    role = "" if tag is None else tag.role
    if role == "keys" and call.name == "histc" and call["min"] == 0 and call["max"] == call["bins"] - 1:
        return [Routed(route, None, role="counts")]
    if tag is not None and role == "keys" and call.name == "_to_copy":
        return [Routed(route, tag.sets, role="keys")]
    if role == "counts" and call.name == "cumsum":
        return [Routed(route, None, role="offsets")]
    if role in ("counts", "offsets") and call.name in ("_to_copy", "clone", "detach", "alias"):
        return [Routed(route, None, role=role)]
    return None


def grouped(trace: Trace, call: Call, route: Route) -> list[Any] | None:
    """Each group of rows times its own matrix: row by row, with a matrix that the key of the row chooses."""
    if call.name not in ("_grouped_mm", "grouped_mm", "grouped_mm_fallback"):
        return None
    rows, weight = call.args[:2]
    offsets = call["offs"]
    if rows.tag is None or rows.tag.role != "rows" or offsets is None or offsets.tag is None or weight.tag is not None:
        return None
    if offsets.tag.role != "offsets" or rows.ndim != 2 or weight.ndim != 3 or call["bias"] is not None:
        return None
    trace.assume("numbers of experts are below the number of experts")
    own = before(rows, decided=True)
    sets = None if own.sets is None else over(align(own.sets, 2), [1], keepdim=True)
    return [Routed(route, unmark(join(2, sets, everything(weight.sets))))]


def read(call: Call, route: Route) -> list[Any] | None:
    """x[route]: whatever is read by numbers of rows is routed; and [inverse] is the way back."""
    if call.name not in ("index", "index_select", "embedding"):
        return None
    if call.name == "index":
        source, indices = call.args[0], [i for i in call.args[1] if i is not None]
    elif call.name == "embedding":
        source, indices = call.args[0], [call["indices"]]
    else:
        source, indices = call.args[0], [call["index"]]
        if call["dim"] % max(source.ndim, 1) != 0:
            return None
    if source.tag is not None:
        index = indices[0]
        back = len(indices) == 1 and index.tag is not None and index.tag.role == "inverse"
        if back and source.tag.role == "rows" and (call.name != "index" or len(call.args[1]) == 1):
            return [unmark(before(source, decided=False).sets)]
        return None
    if any(i.tag is None or i.tag.role not in ("rows", "keys") or i.ndim != 1 for i in indices):
        return None
    if call.name == "index" and any(i is None for i in call.args[1][: len(indices)]):
        return None
    out = torch.zeros(route.rows, *call.out.shape[1:], dtype=call.out.dtype, device=call.out.device)
    sets = again(call, RULES[call.name], out)
    return [Routed(route, call.trace.unknown(out.dim()) if sets is None else sets)]


def put_back(trace: Trace, call: Call, route: Route) -> list[Any] | None:
    """out[numbers] += rows: each row arrives at the place that it came from, if it was chosen."""
    if call.name == "index_add":
        index, source = [call["index"]], call["source"]
        fits = call["dim"] == 0
    elif call.name == "index_put":
        index, source = list(call.args[1]), call["values"]
        fits = not any(i is None for i in index)
    else:
        return None
    goal = call.args[0]
    if not fits or goal.tag is not None:
        return None
    at = arrivals(trace, index, route)
    if at is None or (source.tag is not None and source.tag.role not in ("rows", "single")):
        return None
    width = len(at)
    if source.tag is None and source.ndim > goal.ndim - width and source.shape[0] != 1:
        # Not the same for every row, and not routed with them.
        return None
    # [rows, ...]: what arrives, and that it arrives at all
    shape = (route.rows, *goal.shape[width:])
    row = source.sets if source.tag is None else source.tag.sets
    if source.tag is not None and row is None:
        row = trace.unknown(len(shape))
    arriving = with_way(unmark(row), route, len(shape))
    sets = torch.zeros(*goal.shape, trace.columns, dtype=torch.int32, device=trace.device)
    if arriving is not None:
        sets = sets.index_put(tuple(at), spread(arriving, shape).int(), accumulate=True)
    return [unmark(join(goal.ndim, goal.sets, sets > 0))]


def single(call: Call, route: Route) -> list[Any] | None:
    """`out[chosen] = rows` drops the first axis of a single row before it writes it."""
    item = call.args[0]
    if call.name != "view" or item.tag is None or item.tag.role != "rows" or item.tag.sets is None:
        return None
    if len(route.chosen) != 1 or item.shape[:1] != (1,) or call.out.shape != item.shape[1:]:
        return None
    return [Routed(route, item.tag.sets, role="single")]


def arrivals(trace: Trace, index: list[Heard], route: Route) -> list[Tensor] | None:
    """For each axis that is indexed, the place of every row; None if these are not numbers of the route."""
    if len(index) == 1 and index[0].tag is None and index[0].value.dtype is torch.bool:
        same = trace.memory.routes(index[0].value).get("mask") is route
        return list(coordinates(index[0].value).unbind(1)) if same else None
    if any(i.tag is None or i.tag.role != "rows" or i.tag.value is None or i.ndim != 1 for i in index):
        return None
    return [i.tag.value for i in index]


def row_by_row(trace: Trace, call: Call, rule: Any, route: Route) -> list[Any] | None:
    """Does the op treat every row alike, and by itself? Then it may as well be done before the rows travel."""
    if rule is None or not acts_on_rows(call, rule):
        return None
    outs = [call.out] if isinstance(call.out, Tensor) else list(call.out)
    shaped = [torch.zeros(route.rows, *out.shape[1:], dtype=out.dtype, device=out.device) for out in outs]
    constant = all(item.sets is None if item.tag is None else item.tag.value is not None for item in call.inputs)
    if constant and trace.numbers_are_constants and not call.kwargs:
        # Numbers of rows, divided by something, say. The op may work in place: on a copy then.
        args = [i.tag.value.clone() if isinstance(i, Heard) and i.tag is not None else raw(i) for i in call.args]
        values = call.func(*args)
        return [Routed(route, None, value) for value in ([values] if isinstance(values, Tensor) else values)]
    found = again(call, rule, shaped[0] if isinstance(call.out, Tensor) else shaped)
    found = found if isinstance(found, list) else [found]
    unknown = [trace.unknown(out.dim()) for out in shaped]
    return [Routed(route, new if sets is None else sets) for sets, new in zip(found, unknown, strict=False)]


def acts_on_rows(call: Call, rule: Any) -> bool:
    outs = [call.out] if isinstance(call.out, Tensor) else list(call.out)
    tagged = [item for item in call.inputs if item.tag is not None]
    count = len(tagged[0].tag.route.chosen)
    if any(item.tag.role not in ("rows", "keys") or item.shape[:1] != (count,) for item in tagged):
        return False
    if not all(isinstance(out, Tensor) and out.dim() and out.shape[0] == count for out in outs):
        return False
    if rule in ELEMENTWISE and call.name != "copy":
        if call.name == "glu" and call["dim"] % tagged[0].ndim == 0:
            return False
        return all(aligned(item, outs[0].dim()) for item in call.inputs)
    first = call.args[0]
    if call.name in ("mm", "addmm", "linear"):
        rows = call.args[1] if call.name == "addmm" else first
        return rows.tag is not None and len(tagged) == 1 and aligned(first, 2)
    if call.name == "bmm":
        return len(tagged) == 2
    if call.name == "native_layer_norm" or call.name == "_fused_rms_norm":
        return first.tag is not None and len(tagged) == 1 and len(call["normalized_shape"]) < first.ndim
    if not isinstance(first, Heard) or first.tag is None or len(tagged) != 1 or len(call.inputs) != 1:
        return False
    if call.name in ("detach", "alias"):
        return True
    whole = first.tag.route.whole
    if call.name in ("view", "_unsafe_view", "reshape") and call.func._overloadname != "dtype":
        # Row-major: with as many rows, each row keeps its elements. A given number may be the length by accident.
        return whole or call["size"][0] == -1
    if call.name == "expand":
        return call.out.dim() == first.ndim and (whole or call["size"][0] == -1)
    if call.name == "unsqueeze":
        return call["dim"] % (first.ndim + 1) != 0
    if call.name in ("slice", "select", "split", "split_with_sizes", "unbind", "squeeze", "_softmax", "topk"):
        dim = call["dim"] if call["dim"] is not None or call.name == "squeeze" else -1 if call.name == "topk" else 0
        return dim is not None and 0 not in call.dims(dim, first.ndim)
    if call.name in ("sum", "mean", "amax", "max", "argmax", "any"):
        return call["dim"] not in (None, []) and 0 not in call.dims(call["dim"], first.ndim)
    return False


def aligned(item: Heard, ndim: int) -> bool:
    """Rows with rows, or the same for every row."""
    if item.tag is not None:
        return item.ndim == ndim
    return item.ndim < ndim or item.shape[0] == 1
