"""prove: run a program on its values and, beside them, on the sets of positions that each value has heard.

>>> import torch
>>> def attend(x):
...     scores = x @ x.transpose(1, 2)
...     future = torch.ones(5, 5).triu(1).bool()
...     return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ x
>>> proof = prove(attend, torch.randn(1, 5, 4))
>>> proof.within(torch.ones(5, 5).tril().bool()), proof.conditions, proof.unknown_ops, proof.value_escapes
(True, (), (), ())
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from rearview.auditing.model.dispatch import flex_uncompiled
from rearview.auditing.model.state import GeneratorStates
from rearview.auditing.proof.faults import MOST_TRIED, OpList, catches
from rearview.auditing.proof.interpreter import Interpreter
from rearview.auditing.proof.kernels import plain_biases
from rearview.auditing.proof.op_call import tensors
from rearview.auditing.proof.readers import Substitutes
from rearview.auditing.proof.result import ASSUMPTIONS, Escape, OpLocation, Proof, ProofFailed, UnknownOp
from rearview.auditing.proof.sealed import SealedTensor, unsealed
from rearview.auditing.proof.sets import align, pairs, spread_axes
from rearview.auditing.proof.state import ProofState
from rearview.auditing.user_code import enters_program
from rearview.errors import BadArgument, RearviewError


@enters_program
def prove(
    run: Callable[[Tensor], object],
    x: Tensor,
    *,
    time_axis: int = 1,
    batch_axis: int | None = 0,
    out_time_axis: int = 1,
    out_batch_axis: int | None = None,
    origins: bool = True,
    tried: set[Hashable] | None = None,
) -> Proof:
    """Find out who may hear whom in `run(x)`, for every input of this shape and all weights.

    The program is run several times: as it is, on sets, and once or twice for each place at which it may catch an
    exception.

    Args:
        run: The program. It returns a tensor, or several with the same batch and time.
        x: The input, [batch, time, ...] by default. Its (batch item, time) positions are the sources.
        time_axis: The time axis of `x`.
        batch_axis: The batch axis of `x`; None where it has none.
        out_time_axis: The time axis of the output.
        out_batch_axis: The batch axis of the output; by default that of `x`.
        origins: Whether to keep what each op heard, for `Proof.origin`.
        tried: The places at which other proofs of the program have tried whether it catches exceptions. They are not
            tried again, and those of this proof are added.

    >>> import torch
    >>> proof = prove(lambda x: x[:, 1:] - x[:, :-1], torch.rand(2, 4))
    >>> proof.matrix().int().tolist()
    [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    >>> proof.isolated
    True
    """
    time_axis, batch_axis = axes_of(x, time_axis, batch_axis)
    given, x = x, x.detach().clone(memory_format=torch.contiguous_format)
    state = ProofState(x, time_axis=time_axis, batch_axis=batch_axis, origins=origins)
    if given.is_contiguous():
        # The program may read the given tensor from a closure instead of its argument.
        state.memory.new(given, state.memory.read(x))
    interpreter = Interpreter(state)
    try:
        unwatched = _unwatched(_listed, run, given)
        with interpreter.running():
            out = run(SealedTensor(x, interpreter))
        difference = _difference(unwatched, interpreter.ops, out)
        # The second time, because a program may fill a cache when it is called first.
        difference = difference and _difference(_unwatched(_listed, run, given), interpreter.ops, out)
        if difference:
            state.escaped(f"a program that {difference} when it is watched")
        for number, place, fault in state.fallible_ops.untried(set() if tried is None else tried, given.shape):
            if _unwatched(catches, run, given, number, fault):
                op = f"{place.op}, which may raise an exception that the program catches"
                state.escapes[OpLocation(op, place.module, place.line)] = 1
        if state.fallible_ops.are_left_out:
            state.assume(f"a `try` around more than {MOST_TRIED} ops handles their exceptions as those that were tried")
    except RearviewError:
        raise
    except Exception as error:
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "rearview":
            # A part of this package is broken, which says nothing about the program.
            raise
        # The program, or torch under it, may raise anything.
        raise ProofFailed(
            f"the program stopped with {type(error).__name__}: {error}. If it runs without the proof, the proof cannot "
            "follow one of its ops."
        ) from error
    found = unsealed(tensors(out))
    if not found:
        raise BadArgument("run", expected="a function that returns one or more tensors", got=type(out).__name__)
    if out_batch_axis is None:
        out_batch_axis = batch_axis
    hears = None
    for tensor in found:
        part = read_output(state, tensor, out_time_axis, out_batch_axis)
        if hears is not None and part.shape != hears.shape:
            raise BadArgument(
                "run",
                expected="outputs with the same batch and time",
                got=f"{[list(t.shape) for t in found]}",
                advice="Return only the outputs to prove something about.",
            )
        hears = part if hears is None else hears | part
    assert hears is not None
    if any(state.memory.selected(tensor) for tensor in found):
        state.escaped("an output whose length is a value")
    return Proof(
        traced=hears,
        conditions=tuple(state.conditions.values()),
        unknown_ops=tuple(UnknownOp(place, count) for place, count in state.unknown_ops.items()),
        value_escapes=tuple(
            Escape(place, count, tuple(sorted(state.escaped_times.get(place, ()))))
            for place, count in state.escapes.items()
        ),
        assumptions=(
            f"inputs have the shape {list(given.shape)}; the other arguments and the mode are those of the run",
            *ASSUMPTIONS,
            *state.assumptions,
            *_constants_read(state),
        ),
        relations=tuple(state.relations),
    )


def _constants_read(state: ProofState) -> list[str]:
    """The tensors from before the run that were read as constants: those of modules by name, others by their line."""
    names = state.modules.tensors()
    named = sorted({names[key] for key in state.constants_read if key in names})
    others = sorted({text for key, text in state.constants_read.items() if key not in names})
    found = (("buffers", named), ("other tensors", others))
    return [f"{kind} read as constants: {', '.join(texts)}" for kind, texts in found if texts]


def _listed(run: Callable[[Tensor], Any], x: Tensor) -> tuple[list[Any], Any]:
    """The ops that the program calls on tensors that are not sealed, and what it returns."""
    with OpList() as mode:
        out = run(x)
    return mode.ops, out


def _difference(unwatched: tuple[list[Any], Any], ops: list[Any], out: Any) -> str:
    """What the program did otherwise on tensors that are not sealed; empty where it did the same."""
    if unwatched[0] != ops:
        return "runs other ops"
    # Native code that reads the null pointer of a sealed tensor without an exception gets other numbers.
    pairs = zip(tensors(unwatched[1]), unsealed(tensors(out)), strict=False)
    return "" if all(_agree(one, other) for one, other in pairs) else "returns other values"


def _agree(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are the same up to rounding: ops that consist of others may round otherwise."""
    if one.shape != other.shape or not one.is_floating_point() or one.layout is not torch.strided:
        return one.shape == other.shape
    one, other = one.detach(), other.detach()
    scale = one.nan_to_num(0, 0, 0).abs().max() if one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-2, atol=1e-2 * float(scale), equal_nan=True)


def _unwatched(do: Callable[..., Any], run: Callable[[Tensor], Any], x: Tensor, *rest: object) -> Any:
    """Run the program as the proof does, but not on sets, and leave the input and the random generators alone."""
    generators = GeneratorStates()
    try:
        with torch.no_grad(), flex_uncompiled(), plain_biases(), Substitutes():
            return do(run, x.detach().clone(memory_format=torch.contiguous_format), *rest)
    finally:
        generators.restore()


def axes_of(x: Tensor, time_axis: int, batch_axis: int | None) -> tuple[int, int | None]:
    if not isinstance(x, Tensor) or x.dim() < (1 if batch_axis is None else 2):
        got = f"a tensor {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise BadArgument("x", expected="a tensor [batch, time] or [batch, time, features]", got=got)
    ndim = x.dim()
    if not -ndim <= time_axis < ndim or (batch_axis is not None and not -ndim <= batch_axis < ndim):
        raise BadArgument(
            "time_axis, batch_axis", expected=f"axes of a tensor {list(x.shape)}", got=(time_axis, batch_axis)
        )
    time_axis, batch_axis = time_axis % ndim, None if batch_axis is None else batch_axis % ndim
    if time_axis == batch_axis:
        raise BadArgument("time_axis", expected="an axis other than batch_axis", got=time_axis)
    if x.numel() == 0:
        raise BadArgument("x", expected="at least one position", got=f"a tensor {list(x.shape)}")
    return time_axis, batch_axis


def read_output(state: ProofState, out: Tensor, time_axis: int, batch_axis: int | None) -> Tensor:
    """[batch, T_out, batch, T]."""
    if out.dim() <= max(time_axis, batch_axis or 0) or (
        batch_axis is not None and out.shape[batch_axis] != state.batch
    ):
        raise BadArgument(
            "run",
            expected=f"an output with {state.batch} items in axis {batch_axis} and time in axis {time_axis}",
            got=f"a tensor {list(out.shape)}",
            advice="Return one tensor from `run`, or name its axes with out_time_axis and out_batch_axis.",
        )
    time_axis %= out.dim()
    t_out = out.shape[time_axis]
    sets = state.memory.read(out)
    if sets is None:
        return torch.zeros(state.batch, t_out, state.batch, state.time, dtype=torch.bool)
    keep = [time_axis] if batch_axis is None else [batch_axis % out.dim(), time_axis]
    sets = spread_axes(align(sets, out.dim()), keep, out.shape)
    others = [dim for dim in range(out.dim()) if dim not in keep]
    sets = sets.any(dim=others) if others else sets
    if batch_axis is not None and keep[0] > keep[1]:
        sets = sets.transpose(0, 1)
    return pairs(sets, batch=state.batch, time=state.time).reshape(state.batch, t_out, state.batch, state.time)
