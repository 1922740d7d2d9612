"""Element by element: an output hears what the elements that it was made from heard. Constants can silence others.

>>> import torch
>>> from rearview.audit.proof import prove
>>> prove(lambda x: x * 2 + torch.tril(torch.ones(3, 3))[:, :1], torch.rand(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [0, 1, 0], [0, 0, 1]]
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from rearview.audit.proof.call import STAND_IN, Call, Heard
from rearview.audit.proof.rules.registry import rule
from rearview.audit.proof.sets import LOW, WEIGHTS, align, flag, forget, join, unmark


@rule(
    *("floor_divide", "hardswish", "log_sigmoid_forward", "_prelu_kernel", "complex", "polar", "real", "imag"),
    *("fake_quantize_per_tensor_affine", "special_ndtr", "special_expit", "softshrink", "logit", "float_power"),
)
def pointwise(call: Call) -> Any:
    """The rule of every op that has no other and works element by element."""
    inputs = call.inputs
    if not isinstance(call.out, Tensor):
        return [unmark(join(out.dim(), *(item.sets for item in inputs))) for out in call.out]
    ndim = call.out.dim()
    sets = join(ndim, *(item.sets for item in inputs))
    if sets is None or not call.out.is_floating_point():
        return unmark(sets)
    return mark_low(call, sets, still_low(call, inputs))


CHOOSES = {"maximum", "minimum", "max", "min", "clamp", "clamp_min", "clamp_max"}
KEEPS_LOW = CHOOSES | {"add", "sub", "mul", "div", "true_divide", "_to_copy", "clone", "nan_to_num"}


def mark_low(call: Call, sets: Tensor, low: Tensor | None) -> Tensor:
    """With the mark of a finite mask at these elements, as long as they are very low."""
    return unmark(sets) if low is None else flag(sets, LOW, low & (call.out <= STAND_IN))


def still_low(call: Call, inputs: list[Heard]) -> Tensor | None:
    """Which elements are "a score plus a large negative number", whatever the input: never by the choice of a value."""
    if call.name not in KEEPS_LOW:
        return None
    lows = [item.low() for item in inputs]
    found = [low for low in lows if low is not None]
    if not found:
        return None
    if call.name in CHOOSES:
        return reduce(torch.logical_and, found) if len(found) == len(lows) else None
    # A factor that is not constant may be 0 for another input: a padding mask made from tokens.
    others = [item for item, low in zip(inputs, lows, strict=True) if low is None]
    if call.name in ("mul", "div", "true_divide") and not all(item.is_constant for item in others):
        return None
    return reduce(torch.logical_or, found)


def silence(sets: Tensor | None, where: Tensor | None, *, ndim: int) -> Tensor | None:
    return sets if sets is None or where is None else forget(align(sets, ndim), where)


@rule("mul", "div", "true_divide")
def multiply(call: Call) -> Tensor | None:
    """A constant 0 makes the product 0 whatever the other factor is (as long as that is finite)."""
    sets = pointwise(call)
    factors = call.args[:2] if call.name == "mul" else call.args[:1]
    for factor in factors:
        zero = None
        if isinstance(factor, Heard):
            zero = factor.equal_to(0)
        elif not isinstance(factor, bool) and factor == 0 and call.trace.numbers_are_constants:
            zero = torch.ones((), dtype=torch.bool, device=call.out.device)
        if zero is not None:
            sets = silence(sets, zero & (call.out == 0), ndim=call.out.dim())
    return sets


@rule("add", "sub", "rsub")
def add(call: Call) -> Tensor | None:
    return absorb(call, pointwise(call), call.args[:2] if call.name == "add" else call.args[:1])


def absorb(call: Call, sets: Tensor | None, terms: Sequence[Any]) -> Tensor | None:
    """A constant -inf stays -inf whatever is added to it."""
    if call.out.is_floating_point():
        for term in terms:
            if isinstance(term, Heard) and (gone := term.equal_to(float("-inf"))) is not None:
                sets = silence(sets, gone & (call.out == float("-inf")), ndim=call.out.dim())
    return sets


@rule("bitwise_and", "logical_and", "__and__")
def both(call: Call) -> Tensor | None:
    return decided(call, False)


@rule("bitwise_or", "logical_or", "__or__")
def either(call: Call) -> Tensor | None:
    return decided(call, True)


def decided(call: Call, by: bool) -> Tensor | None:
    sets = pointwise(call)
    if call.out.dtype is torch.bool:
        for term in call.args[:2]:
            if isinstance(term, Heard) and term.value.dtype is torch.bool:
                sets = silence(sets, term.equal_to(by), ndim=call.out.dim())
    return sets


def part(value: Any, ndim: int, call: Call) -> Tensor:
    """Sets to choose from, with all columns even where there are none."""
    sets = value.sets if isinstance(value, Heard) else None
    if sets is None:
        return torch.zeros(*[1] * ndim, call.trace.columns, dtype=torch.bool, device=call.out.device)
    return align(sets, ndim)


def choose(call: Call, condition: Heard, a: Any, b: Any) -> Tensor | None:
    """Where a constant decides, only the chosen one is heard; elsewhere both, and the condition."""
    ndim = call.out.dim()
    constant = condition.constant
    sets_a, sets_b = part(a, ndim, call), part(b, ndim, call)
    if constant is False:
        chosen = join(ndim, condition.sets, sets_a, sets_b)
        assert chosen is not None
    else:
        taken = condition.value.bool()
        chosen = torch.where(align(taken.unsqueeze(-1), ndim), sets_a, sets_b)
        if constant is not True:
            unsure = join(ndim, condition.sets, sets_a, sets_b)
            assert unsure is not None
            chosen = torch.where(align(constant.unsqueeze(-1), ndim), chosen, unsure)
    if not call.out.is_floating_point():
        return unmark(chosen)
    nowhere = torch.zeros((), dtype=torch.bool, device=call.out.device)
    low_a, low_b = (low if isinstance(item, Heard) and (low := item.low()) is not None else nowhere for item in (a, b))
    # Where a value chooses, the element is masked only if both sides are.
    low = torch.where(condition.value.bool(), low_a, low_b) & (low_a & low_b | constant)
    return mark_low(call, chosen, low)


@rule("where")
def where(call: Call) -> Any:
    if len(call.args) < 3 and call["other"] is None:
        return call.trace.escape(call)
    return choose(call, call["condition"], call["self"], call["other"])


@rule("masked_fill")
def masked_fill(call: Call) -> Tensor | None:
    return choose(call, call["mask"], call["value"], call["self"])


@rule("exp", "exp2", "sigmoid")
def exponential(call: Call) -> Tensor | None:
    """exp(score + large negative number) is 0 if the score stays ordinary: a condition."""
    sets = pointwise(call)
    argument = call.args[0]
    low = argument.low()
    if low is not None and sets is not None:
        zero = low & (call.out == 0)
        if bool(zero.any()):
            highest = argument.value[zero].max().item()
            call.trace.condition(call, margin=-highest, fill=highest)
            sets = silence(sets, zero, ndim=call.out.dim())
    return sets


@rule("tril", "triu")
def triangle(call: Call) -> Tensor | None:
    """The other triangle is a constant 0."""
    kept = getattr(torch, call.name)(torch.ones_like(call.out, dtype=torch.bool), call["diagonal"])
    sets = call.args[0].sets
    return unmark(None if sets is None else forget(sets, ~kept))


@rule("glu")
def glu(call: Call) -> Tensor | None:
    """Two halves of an axis, element by element."""
    item = call.args[0]
    if item.sets is None:
        return None
    sets = align(item.sets, item.ndim)
    dim = (call["dim"] if call["dim"] is not None else -1) % item.ndim
    if sets.shape[dim] > 1:
        first, second = sets.chunk(2, dim=dim)
        sets = first | second
    return unmark(sets)


@rule("native_dropout", "alpha_dropout", "feature_dropout", "dropout")
def dropout(call: Call) -> list[Tensor | None]:
    sets = call.args[0].sets
    chance = call.trace.unknown(call.args[0].ndim)
    # What is 0 before stays 0; the rest is scaled by chance.
    out = None if sets is None else flag(sets, WEIGHTS, sets[..., :LOW].any(-1))
    return [unmark(out), chance]


@rule("bernoulli", "multinomial", "normal", "poisson", "rrelu_with_noise", "uniform", "exponential", "cauchy")
def chance(call: Call) -> Any:
    """What is drawn is not known in advance, and hears whoever its distribution heard."""
    noise = call.trace.unknown(0)
    if call.name == "multinomial":
        sets = call.args[0].sets
        return join(call.out.dim(), noise, None if sets is None else sets.any(dim=-2, keepdim=True))
    sets = join(call.out.dim() if isinstance(call.out, Tensor) else 0, noise, *(item.sets for item in call.inputs))
    return unmark(sets)
