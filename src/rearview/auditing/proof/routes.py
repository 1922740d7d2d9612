"""Routes: rows that are sorted or selected by a value, computed row by row, and put back where they came from.

Token-choice experts work like this. Op by op, every row would hear every other: which row stands at place r depends on
all tokens. But if what is done to a row does not depend on its place, then row t, once put back, depends on row t alone
and on what decided its route. A `Route` is such a permutation or selection; a tensor that is `Z[route]` has a `Routed`
with the sets of Z. Ops that work row by row keep it, and putting the rows back returns the sets of Z. Any other op
falls back to its own rule; for a selection, whose length depends on a value, that is an escape.

>>> import torch
>>> from rearview.auditing.proof import prove
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

from rearview.auditing.proof.op_call import Heard, OpCall, raw
from rearview.auditing.proof.row_ops import acts_on_rows
from rearview.auditing.proof.rules import RULES
from rearview.auditing.proof.sets import WEIGHTS, align, everything, flag, heard, join, over, regroup, spread, unmark

if TYPE_CHECKING:
    from rearview.auditing.proof.state import ProofState


@dataclass(eq=False)
class Route:
    """`chosen[r]` is the row, of `rows`, at place r in this run; `sets` [rows, c] is what decided the route of each."""

    rows: int
    chosen: Tensor
    sets: Tensor | None
    whole: bool
    """Whether every row occurs once, as in a permutation; otherwise it is a selection."""


@dataclass(eq=False)
class Routed:
    """A tensor that is Z[route] along its first axis."""

    route: Route
    sets: Tensor | None
    value: Tensor | None = None
    """Z itself, where it is constant."""
    role: str = "rows"
    """rows; single (one row without its axis); keys (what a permutation sorts by); inverse, counts, offsets."""


def follow(state: ProofState, call: OpCall, rule: Any) -> list[Any] | None:
    """One entry per output: a Routed, or the exact sets of rows that were put back. None where no route is involved."""
    tagged = [item for item in call.inputs if item.tag is not None]
    if any(item.selected and item.tag is None for item in call.inputs):
        # It was written to in parts, so neither its rows nor their number are known.
        state.escaped(call.name)
        return None
    if not tagged:
        return start(state, call) if call.name in STARTS else None
    route = tagged[0].tag.route
    found = None
    if all(item.tag.route is route for item in tagged):
        found = (
            ordered(call)
            or counted(call, route)
            or grouped(state, call, route)
            or read(call, route)
            or put_back(state, call, route)
            or single(call, route)
            or row_by_row(state, call, rule, route)
        )
    if found is None and any(not item.tag.route.whole for item in tagged):
        state.escaped(call.name)
    return found


def start(state: ProofState, call: OpCall) -> list[Any] | None:
    """Begin a route: sort a vector, or look up where a mask is True."""
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
        return [Routed(selection(state, item), None, coordinates(item.value))]
    mask = call.args[1][0] if len(call.args[1]) == 1 else None
    if mask is None or mask.value.dtype is not torch.bool or not heard(mask.sets):
        return None
    flat = (mask.value.numel(), *item.shape[mask.ndim :])
    sets = None if item.sets is None else spread_rows(regroup(item.sets, item.shape, flat), flat)
    value = item.value.reshape(flat) if sets is None else None
    return [Routed(selection(state, mask), sets, value)]


STARTS = {"sort", "argsort", "nonzero", "index"}


def selection(state: ProofState, mask: Heard) -> Route:
    """The route of a mask. The same mask, read twice without a write in between, selects the same rows."""
    kept = state.memory.routes(mask.value)
    if "mask" not in kept:
        assert mask.sets is not None
        sets = spread(mask.sets, mask.shape).reshape(mask.value.numel(), -1)
        chosen = mask.value.reshape(-1).nonzero()[:, 0]
        kept["mask"] = Route(mask.value.numel(), chosen, sets, whole=False)
    return kept["mask"]


def coordinates(mask: Tensor) -> Tensor:
    """[elements, axes]: the position of each element of the mask."""
    return torch.ones_like(mask, dtype=torch.bool).nonzero()


def spread_rows(sets: Tensor, shape: tuple[int, ...]) -> Tensor:
    return sets.expand(shape[0], *sets.shape[1:])


def before(item: Heard, *, decided: bool = False) -> Heard:
    """Z, for a tensor that is Z[route]; with `decided`, it has also heard what decided the route."""
    tag = item.tag
    route = tag.route
    if tag.value is not None:
        return Heard(tag.value, with_decision(None, route, tag.value.dim()) if decided else None)
    shape = (route.rows, *item.shape[1:])
    value = torch.zeros(shape, dtype=item.value.dtype, device=item.value.device)
    value[route.chosen] = item.value
    # Rows that may not be selected hold no constants.
    sets = flag(align(tag.sets, len(shape)), WEIGHTS, True) if tag.sets is not None else None
    return Heard(value, with_decision(sets, route, len(shape)) if decided else sets)


def with_decision(sets: Tensor | None, route: Route, ndim: int) -> Tensor | None:
    if route.sets is None:
        return sets
    return join(ndim, sets, route.sets.reshape(route.rows, *[1] * (ndim - 1), -1))


def apply_unrouted(call: OpCall, rule: Any, out: Any, *, decided: bool = False) -> Any:
    """Apply the rule to the tensors from before the route."""

    def unrouted(value: Any) -> Any:
        if isinstance(value, Heard):
            return before(value, decided=decided) if value.tag is not None else value
        if isinstance(value, (list, tuple)):
            return type(value)(unrouted(item) for item in value)
        return value

    kwargs = {name: unrouted(value) for name, value in call.kwargs.items()}
    return rule(OpCall(call.state, call.func, call.name, unrouted(call.args), kwargs, out))


def ordered(call: OpCall) -> list[Any] | None:
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


def counted(call: OpCall, route: Route) -> list[Any] | None:
    """The number of keys per group, and its running sum: where each group of sorted rows ends."""
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


def grouped(state: ProofState, call: OpCall, route: Route) -> list[Any] | None:
    """Multiply each group of rows by its own matrix: row by row, with a matrix that the key of the row selects."""
    if call.name not in ("_grouped_mm", "grouped_mm", "grouped_mm_fallback"):
        return None
    rows, weight = call.args[:2]
    offsets = call["offs"]
    if rows.tag is None or rows.tag.role != "rows" or offsets is None or offsets.tag is None or weight.tag is not None:
        return None
    if offsets.tag.role != "offsets" or rows.ndim != 2 or weight.ndim != 3 or call["bias"] is not None:
        return None
    state.assume("indices of experts are less than the number of experts")
    own = before(rows, decided=True)
    sets = None if own.sets is None else over(align(own.sets, 2), [1], keepdim=True)
    return [Routed(route, unmark(join(2, sets, everything(weight.sets))))]


def read(call: OpCall, route: Route) -> list[Any] | None:
    """x[route] is routed, and [inverse] puts the rows back."""
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
    sets = apply_unrouted(call, RULES[call.name], out)
    return [Routed(route, call.state.unknown(out.dim()) if sets is None else sets)]


def put_back(state: ProofState, call: OpCall, route: Route) -> list[Any] | None:
    """out[numbers] += rows: each selected row arrives at the place that it came from."""
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
    at = arrivals(state, index, route)
    if at is None or (source.tag is not None and source.tag.role not in ("rows", "single")):
        return None
    width = len(at)
    if source.tag is None and source.ndim > goal.ndim - width and source.shape[0] != 1:
        # It differs between rows, and is not routed with them.
        return None
    # [rows, ...]: what arrives, and what decided that it arrives
    shape = (route.rows, *goal.shape[width:])
    row = source.sets if source.tag is None else source.tag.sets
    if source.tag is not None and row is None:
        row = state.unknown(len(shape))
    arriving = with_decision(unmark(row), route, len(shape))
    sets = torch.zeros(*goal.shape, state.columns, dtype=torch.int32, device=state.device)
    if arriving is not None:
        sets = sets.index_put(tuple(at), spread(arriving, shape).int(), accumulate=True)
    overwrites = call.name == "index_put" and not call["accumulate"] and len(index) == 1 and is_permutation(index[0])
    if overwrites and goal.shape[0] == route.rows:
        # Whatever was in any of its rows is gone.
        return [unmark(sets > 0)]
    return [unmark(join(goal.ndim, goal.sets, sets > 0))]


def single(call: OpCall, route: Route) -> list[Any] | None:
    """`out[chosen] = rows` drops the first axis of a single row before the write."""
    item = call.args[0]
    if call.name != "view" or item.tag is None or item.tag.role != "rows" or item.tag.sets is None:
        return None
    if len(route.chosen) != 1 or item.shape[:1] != (1,) or call.out.shape != item.shape[1:]:
        return None
    return [Routed(route, item.tag.sets, role="single")]


def arrivals(state: ProofState, index: list[Heard], route: Route) -> list[Tensor] | None:
    """The place of every row along each indexed axis; None where the indices are not those of the route."""
    if len(index) == 1 and index[0].tag is None and index[0].value.dtype is torch.bool:
        same = state.memory.routes(index[0].value).get("mask") is route
        return list(coordinates(index[0].value).unbind(1)) if same else None
    if any(i.tag is None or i.tag.role != "rows" or i.tag.value is None or i.ndim != 1 for i in index):
        return None
    return [i.tag.value for i in index]


def row_by_row(state: ProofState, call: OpCall, rule: Any, route: Route) -> list[Any] | None:
    """Apply an op that treats every row alike, and alone, as if before the route."""
    if rule is None or not acts_on_rows(call, rule):
        return None
    outs = [call.out] if isinstance(call.out, Tensor) else list(call.out)
    shaped = [torch.zeros(route.rows, *out.shape[1:], dtype=out.dtype, device=out.device) for out in outs]
    constant = all(item.sets is None if item.tag is None else item.tag.value is not None for item in call.inputs)
    if constant and state.numbers_are_constants and not call.kwargs:
        # For example numbers of rows, divided by something. The op may work in place, so it gets a copy.
        args = [i.tag.value.clone() if isinstance(i, Heard) and i.tag is not None else raw(i) for i in call.args]
        values = call.func(*args)
        return [Routed(route, None, value) for value in ([values] if isinstance(values, Tensor) else values)]
    found = apply_unrouted(call, rule, shaped[0] if isinstance(call.out, Tensor) else shaped)
    found = found if isinstance(found, list) else [found]
    unknown = [state.unknown(out.dim()) for out in shaped]
    return [Routed(route, new if sets is None else sets) for sets, new in zip(found, unknown, strict=False)]
