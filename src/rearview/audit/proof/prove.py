"""prove: run a program on who-heard-whom sets beside its real values.

>>> import torch
>>> def attend(x):
...     scores = x @ x.transpose(1, 2)
...     future = torch.ones(5, 5).triu(1).bool()
...     return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ x
>>> proof = prove(attend, torch.randn(1, 5, 4))
>>> proof.within(torch.ones(5, 5).tril().bool()), proof.conditions, proof.unknown_ops, proof.value_escapes
(True, (), (), ())
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rearview.audit.proof.result import ASSUMPTIONS, Escape, Proof, ProofFailed, UnknownOp
from rearview.audit.proof.sets import EXTRA, align, spread_axes
from rearview.audit.proof.trace import Trace, tensors
from rearview.errors import BadArgument, RearviewError


def prove(
    run: Callable[[Tensor], Any],
    x: Tensor,
    *,
    time_axis: int = 1,
    batch_axis: int | None = 0,
    out_time_axis: int = 1,
    out_batch_axis: int | None = None,
) -> Proof:
    """Who may hear whom in `run(x)`, for every input of this shape and all weights.

    Sources are the (batch item, time) positions of `x`. `run` returns a tensor, or several of the same batch and time.

    >>> import torch
    >>> proof = prove(lambda x: x[:, 1:] - x[:, :-1], torch.rand(2, 4))
    >>> proof.matrix().int().tolist()
    [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    >>> proof.isolated
    True
    """
    time_axis, batch_axis = axes_of(x, time_axis, batch_axis)
    given, x = x, x.detach().clone(memory_format=torch.contiguous_format)
    trace = Trace(x, time_axis=time_axis, batch_axis=batch_axis)
    if given.is_contiguous():
        # A closure may read it instead of the argument.
        trace.memory.new(given, trace.memory.read(x))
    try:
        with trace.running():
            out = run(x)
    except RearviewError:
        raise
    except Exception as error:
        raise ProofFailed(
            f"prove(run): the program stopped while it ran on sets, with {type(error).__name__}: {error}. "
            "If it runs by itself, an op in it cannot be followed."
        ) from error
    found = tensors(out)
    if not found:
        raise BadArgument("run", expected="a tensor, or several", came=type(out).__name__)
    if out_batch_axis is None:
        out_batch_axis = batch_axis
    hears = None
    for tensor in found:
        part = read_output(trace, tensor, out_time_axis, out_batch_axis)
        if hears is not None and part.shape != hears.shape:
            raise BadArgument(
                "run",
                expected="tensors with the same batch and time",
                came=f"{[list(t.shape) for t in found]}",
                advice="Return only what is to be audited.",
            )
        hears = part if hears is None else hears | part
    assert hears is not None
    if any(trace.memory.selected(tensor) for tensor in found):
        trace.escaped("an output whose length is a value")
    names = trace.places.buffers()
    buffers = sorted({names[key] for key in trace.buffers_read if key in names})
    read = (f"buffers read as constants: {', '.join(buffers)}",) if buffers else ()
    return Proof(
        traced=hears,
        conditions=tuple(trace.conditions.values()),
        unknown_ops=tuple(UnknownOp(place, count) for place, count in trace.unknown_ops.items()),
        value_escapes=tuple(Escape(place, count) for place, count in trace.escapes.items()),
        assumptions=(*ASSUMPTIONS, *trace.assumed, *read),
        steps=tuple(trace.steps),
    )


def axes_of(x: Tensor, time_axis: int, batch_axis: int | None) -> tuple[int, int | None]:
    if not isinstance(x, Tensor) or x.dim() < (1 if batch_axis is None else 2):
        came = f"a tensor {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise BadArgument("x", expected="a tensor [batch, time] or [batch, time, features]", came=came)
    ndim = x.dim()
    if not -ndim <= time_axis < ndim or (batch_axis is not None and not -ndim <= batch_axis < ndim):
        raise BadArgument(
            "time_axis, batch_axis", expected=f"axes of a tensor {list(x.shape)}", came=(time_axis, batch_axis)
        )
    time_axis, batch_axis = time_axis % ndim, None if batch_axis is None else batch_axis % ndim
    if time_axis == batch_axis:
        raise BadArgument("time_axis", expected="another axis than batch_axis", came=time_axis)
    if x.numel() == 0:
        raise BadArgument("x", expected="at least one position", came=f"a tensor {list(x.shape)}")
    return time_axis, batch_axis


def read_output(trace: Trace, out: Tensor, time_axis: int, batch_axis: int | None) -> Tensor:
    """[batch, T_out, batch, T]."""
    if out.dim() <= max(time_axis, batch_axis or 0) or (
        batch_axis is not None and out.shape[batch_axis] != trace.batch
    ):
        raise BadArgument(
            "run",
            expected=f"an output with {trace.batch} batch items in axis {batch_axis} and time in axis {time_axis}",
            came=f"a tensor {list(out.shape)}",
            advice="Pick the tensor to audit in `run`, or say which axes it has with out_time_axis and out_batch_axis.",
        )
    time_axis %= out.dim()
    t_out = out.shape[time_axis]
    if trace.memory.overwritten(out):
        trace.escaped("a write that no op made")
    sets = trace.memory.read(out)
    if sets is None:
        return torch.zeros(trace.batch, t_out, trace.batch, trace.time, dtype=torch.bool)
    keep = [time_axis] if batch_axis is None else [batch_axis % out.dim(), time_axis]
    sets = spread_axes(align(sets, out.dim())[..., :-EXTRA], keep, out.shape)
    others = [dim for dim in range(out.dim()) if dim not in keep]
    sets = sets.any(dim=others) if others else sets
    if batch_axis is not None and keep[0] > keep[1]:
        sets = sets.transpose(0, 1)
    return sets.reshape(trace.batch, t_out, trace.batch, trace.time).clone()
