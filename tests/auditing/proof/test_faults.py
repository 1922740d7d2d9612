"""Exceptions that depend on values: a program that catches one has a branch that the run does not show."""

from contextlib import contextmanager, suppress

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rearview.auditing import Verdict, audit
from rearview.auditing.proof import prove
from rearview.auditing.proof.faults import MOST_TRIED
from rearview.auditing.proof.guards import active_guards
from tests.auditing.proof.search import CAUSAL

T = 6


def look_up(table: Tensor, index: Tensor) -> Tensor:
    return table[index]


def fails(x: Tensor) -> None:
    """It has no rule, and raises where a number is not between 0 and 1."""
    F.binary_cross_entropy(x.amax().clamp(-9, 2) * 0.1, torch.tensor(0.5))


def by_another_line(x: Tensor) -> Tensor:
    """The line that raises runs twice, and only the second time it is guarded."""
    look_up(torch.zeros(99), x.abs().long())
    try:
        look_up(torch.zeros(9), x.abs().long())
    except IndexError:
        return x.flip(1)
    return x


def by_its_message(x: Tensor) -> Tensor:
    try:
        look_up(torch.zeros(9), x.abs().long())
    except IndexError as error:
        if "out of bounds" in str(error):
            return x.flip(1)
        raise
    return x


def at_the_last_round(x: Tensor) -> Tensor:
    for number in range(3):
        try:
            look_up(torch.zeros(9), x.abs().long())
        except IndexError:
            if number < 2:
                raise
            return x.flip(1)
    return x


def at_the_middle_round(x: Tensor) -> Tensor:
    for number in range(3):
        try:
            look_up(torch.zeros(9), x.abs().long())
        except IndexError:
            if number != 1:
                raise
            return x.flip(1)
    return x


def without_a_rule(x: Tensor) -> Tensor:
    try:
        fails(x)
    except RuntimeError:
        return x.flip(1)
    return x


def checked_by_the_op(x: Tensor) -> Tensor:
    try:
        torch.linalg.cholesky_ex(torch.eye(2) * x.amax().exp(), check_errors=True)
    except RuntimeError:
        return x.flip(1)
    return x


def suppressed(x: Tensor) -> Tensor:
    done = False
    with suppress(RuntimeError):
        fails(x)
        done = True
    return x if done else x.flip(1)


@contextmanager
def forgiving():
    with suppress(RuntimeError):
        yield


@forgiving()
def try_it(x: Tensor, done: list[bool]) -> None:
    fails(x)
    done.append(True)


def decorated(x: Tensor) -> Tensor:
    done: list[bool] = []
    try_it(x, done)
    return x if done else x.flip(1)


def in_the_end(x: Tensor) -> Tensor:
    out = x.flip(1)
    try:
        fails(x)
        out = x
    finally:
        return out  # noqa: B012


def by_a_loop_without_an_iterator(x: Tensor) -> Tensor:
    class Rows:
        def __getitem__(self, number: int) -> Tensor:
            if number > 1:
                raise IndexError
            return look_up(torch.zeros(9), x.abs().long())

    return x * len(list(Rows()))  # pyright: ignore[reportArgumentType]


def by_its_exact_type(x: Tensor) -> Tensor:
    try:
        return x + look_up(torch.zeros(9), x.abs().long())
    except Exception as error:
        if type(error) is IndexError:
            return x.flip(1)
        raise


CAUGHT = (
    by_another_line,
    by_its_message,
    by_its_exact_type,
    at_the_last_round,
    at_the_middle_round,
    without_a_rule,
    checked_by_the_op,
    suppressed,
    decorated,
    in_the_end,
    by_a_loop_without_an_iterator,
)


@pytest.mark.parametrize("program", CAUGHT, ids=lambda program: program.__name__)
def test_a_caught_exception_is_an_escape(program):
    proof = prove(program, torch.rand(1, T))
    assert proof.value_escapes
    assert "which may raise an exception that the program catches" in proof.value_escapes[0].place.op


def guarded_product(x: Tensor) -> Tensor:
    try:
        return x.cumsum(1) @ torch.eye(T)
    except RuntimeError:
        return x.flip(1)


def translated_error(x: Tensor) -> Tensor:
    try:
        return x.cumsum(1) + look_up(torch.zeros(9), x.abs().long())
    except IndexError as error:
        raise ValueError(f"these numbers are too large: {error}") from error


def released(x: Tensor) -> Tensor:
    try:
        return x.cumsum(1) + look_up(torch.zeros(9), x.abs().long())
    finally:
        x.sum()


@pytest.mark.parametrize("program", [guarded_product, translated_error, released], ids=lambda run: run.__name__)
def test_what_cannot_raise_or_is_passed_on_is_proven(program):
    proof = prove(program, torch.rand(1, T))
    assert not proof.value_escapes
    assert proof.matrix().diagonal().all()


def test_an_exception_at_another_length_only():
    def at_three(x: Tensor) -> Tensor:
        if x.shape[1] == 3:
            try:
                look_up(torch.zeros(9), x.abs().long())
            except IndexError:
                return x.flip(1)
        return x.cumsum(1)

    report = audit(at_three, torch.rand(2, 8))
    assert report.verdict is Verdict.PROVEN
    assert "with 3 positions it is not proven" in report.why
    assert "of shape [2, 8] and no weights" in report.why


def test_an_exception_that_is_caught_at_another_length_only():
    def when_short(x: Tensor) -> Tensor:
        try:
            look_up(torch.zeros(99999), x.abs().long())
        except IndexError:
            if x.shape[1] > 4:
                raise
            return x.flip(1)
        return x.cumsum(1)

    report = audit(when_short, torch.rand(2, 8))
    assert report.verdict is Verdict.PROVEN
    assert "with 3 positions it is not proven" in report.why


def test_a_guard_of_many_ops_is_an_assumption():
    def many(x: Tensor) -> Tensor:
        try:
            for _ in range(MOST_TRIED + 1):
                look_up(torch.zeros(9), x.abs().long())
        except IndexError as error:
            if x.shape[1] > T:
                return x.flip(1)
            raise ValueError("these numbers are too large") from error
        return x.cumsum(1)

    proof = prove(many, torch.rand(1, T))
    assert not proof.value_escapes
    assert "a `try` around more than 16 ops handles their exceptions as those that were tried" in proof.assumptions


def test_guards_are_those_of_the_program():
    found = []

    def run(x: Tensor) -> Tensor:
        found.append(active_guards())
        with torch.no_grad():
            found.append(active_guards())
        try:
            found.append(active_guards())
        except ValueError:
            if x.shape[1] > T:
                raise
        try:
            found.append(active_guards())
        except ValueError:
            raise
        try:
            found.append(active_guards())
        finally:
            if x.shape[1] > T:
                x = x.clone()
        return x

    assert prove(run, torch.rand(1, T)).within(CAUSAL[T])
    without, in_with, in_try, raised_again, in_finally = (len(guards) for guards in found[:5])
    assert (in_with - without, in_try - without) == (1, 1)
    assert (raised_again - without, in_finally - without) == (0, 0)
    assert all(code.co_name == "run" for code, _ in found[1][: in_with - without])
