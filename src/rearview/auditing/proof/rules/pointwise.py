"""Elementwise ops: an output hears what the elements that it is computed from heard. Constants can silence others.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> prove(lambda x: x * 2 + torch.tril(torch.ones(3, 3))[:, :1], torch.rand(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [0, 1, 0], [0, 0, 1]]
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from rearview.auditing.proof.op_call import STAND_IN, Heard, OpCall, tensors
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import LOW, align, flag, forget, heard, join, unmark


@rule(
    *("floor_divide", "hardswish", "log_sigmoid_forward", "_prelu_kernel", "complex", "polar", "real", "imag"),
    *("fake_quantize_per_tensor_affine", "special_ndtr", "special_expit", "softshrink", "logit", "float_power"),
)
def pointwise(call: OpCall) -> Any:
    """The rule of every elementwise op that has no other."""
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


def mark_low(call: OpCall, sets: Tensor, low: Tensor | None) -> Tensor:
    """Mark these elements as finite masks, where their values are very low."""
    return unmark(sets) if low is None else flag(sets, LOW, low & (call.out <= STAND_IN))


def still_low(call: OpCall, inputs: list[Heard]) -> Tensor | None:
    """Which elements are a score plus a large negative number for every input, so not by the choice of a value."""
    if call.name not in KEEPS_LOW:
        return None
    lows = [item.low() for item in inputs]
    found = [low for low in lows if low is not None]
    if not found:
        return None
    if call.name in CHOOSES:
        return reduce(torch.logical_and, found) if len(found) == len(lows) else None
    # A factor that is not constant may be 0 for another input, as in a padding mask computed from tokens.
    others = [item for item, low in zip(inputs, lows, strict=True) if low is None]
    if call.name in ("mul", "div", "true_divide") and not all(item.is_constant for item in others):
        return None
    return reduce(torch.logical_or, found)


def silence(sets: Tensor | None, where: Tensor | None, *, ndim: int) -> Tensor | None:
    return sets if sets is None or where is None else forget(align(sets, ndim), where)


@rule("mul", "div", "true_divide")
def multiply(call: OpCall) -> Tensor | None:
    """A constant 0 makes the product 0, whatever finite number the other factor is."""
    sets = pointwise(call)
    factors = call.args[:2] if call.name == "mul" else call.args[:1]
    for factor in factors:
        zero = None
        if isinstance(factor, Heard):
            zero = factor.equal_to(0)
        elif not isinstance(factor, bool) and factor == 0 and call.state.numbers_are_constants:
            zero = torch.ones((), dtype=torch.bool, device=call.out.device)
        if zero is not None:
            call.state.has_silenced |= heard(sets)
            sets = silence(sets, zero & (call.out == 0), ndim=call.out.dim())
    return sets


@rule("add", "sub", "rsub")
def add(call: OpCall) -> Tensor | None:
    return absorb(call, pointwise(call), call.args[:2] if call.name == "add" else call.args[:1])


def absorb(call: OpCall, sets: Tensor | None, terms: Sequence[Any]) -> Tensor | None:
    """A constant -inf stays -inf, whatever is added to it."""
    if call.out.is_floating_point():
        for term in terms:
            if isinstance(term, Heard) and (gone := term.equal_to(float("-inf"))) is not None:
                sets = silence(sets, gone & (call.out == float("-inf")), ndim=call.out.dim())
    return sets


@rule("bitwise_and", "logical_and", "__and__")
def both(call: OpCall) -> Tensor | None:
    return decided(call, False)


@rule("bitwise_or", "logical_or", "__or__")
def either(call: OpCall) -> Tensor | None:
    return decided(call, True)


def decided(call: OpCall, by: bool) -> Tensor | None:
    sets = pointwise(call)
    if call.out.dtype is torch.bool:
        for term in call.args[:2]:
            if isinstance(term, Heard) and term.value.dtype is torch.bool:
                sets = silence(sets, term.equal_to(by), ndim=call.out.dim())
    return sets


def part(value: Any, ndim: int, call: OpCall) -> Tensor:
    """The sets of an alternative, with all columns even where it is constant."""
    sets = value.sets if isinstance(value, Heard) else None
    if sets is None:
        return torch.zeros(*[1] * ndim, call.state.columns, dtype=torch.bool, device=call.out.device)
    return align(sets, ndim)


def choose(call: OpCall, condition: Heard, a: Any, b: Any) -> Tensor | None:
    """Where the condition is constant, only the chosen side is heard; elsewhere both sides and the condition."""
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
    # Where the condition is not constant, the element is masked only if both sides are.
    low = torch.where(condition.value.bool(), low_a, low_b) & (low_a & low_b | constant)
    return mark_low(call, chosen, low)


@rule("where")
def where(call: OpCall) -> Any:
    if len(call.args) < 3 and call["other"] is None:
        return call.state.escape(call)
    return choose(call, call["condition"], call["self"], call["other"])


@rule("masked_fill")
def masked_fill(call: OpCall) -> Tensor | None:
    return choose(call, call["mask"], call["value"], call["self"])


@rule("exp", "exp2", "sigmoid")
def exponential(call: OpCall) -> Tensor | None:
    """exp(score + large negative number) is 0 as long as the score stays ordinary, which is a condition."""
    sets = pointwise(call)
    argument = call.args[0]
    low = argument.low()
    if low is not None and sets is not None:
        zero = low & (call.out == 0)
        if bool(zero.any()):
            highest = argument.value[zero].max().item()
            call.state.condition(call, margin=-highest, fill=highest, bound=argument.underflow)
            sets = silence(sets, zero, ndim=call.out.dim())
    return sets


@rule("tril", "triu")
def triangle(call: OpCall) -> Tensor | None:
    """The other triangle is a constant 0."""
    kept = getattr(torch, call.name)(torch.ones_like(call.out, dtype=torch.bool), call["diagonal"])
    sets = call.args[0].sets
    return unmark(None if sets is None else forget(sets, ~kept))


@rule("glu")
def glu(call: OpCall) -> Tensor | None:
    """The two halves of an axis, elementwise."""
    item = call.args[0]
    if item.sets is None:
        return None
    sets = align(item.sets, item.ndim)
    dim = (call["dim"] if call["dim"] is not None else -1) % item.ndim
    if sets.shape[dim] > 1:
        first, second = sets.chunk(2, dim=dim)
        sets = first | second
    return unmark(sets)


@rule("native_dropout", "feature_dropout", "dropout")
def dropout(call: OpCall) -> list[Tensor | None]:
    item = call.args[0]
    chance = call.state.unknown(item.ndim)
    out = join(item.ndim, unmark(item.sets), chance)
    # A constant 0 stays 0; all other values are scaled or dropped at random.
    return [silence(out, item.equal_to(0), ndim=item.ndim), chance]


@rule("rrelu_with_noise", "rrelu_with_noise_functional", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet")
def sequence_of_chance(call: OpCall) -> Any:
    """How many random numbers an element uses depends on its value, so every later element hears it."""
    if call["training"] is False:
        # RReLU draws nothing then.
        return [unmark(call.args[0].sets)] * len(tensors(call.out))
    return call.state.all_of(call)


@rule("bernoulli", "multinomial", "normal", "uniform", "exponential", "cauchy")
def chance(call: OpCall) -> Any:
    """Random numbers are not known in advance, and hear what their distribution heard."""
    noise = call.state.unknown(0)
    if call.name == "multinomial":
        sets = call.args[0].sets
        return join(call.out.dim(), noise, None if sets is None else sets.any(dim=-2, keepdim=True))
    # What is written in place only gives its shape.
    asked = call.inputs[1:] if call.func._schema.is_mutable and call["out"] is None else call.inputs
    sets = join(call.out.dim() if isinstance(call.out, Tensor) else 0, noise, *(item.sets for item in asked))
    return unmark(sets)
