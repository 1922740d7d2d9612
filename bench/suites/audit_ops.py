"""The rules of the proof over torch's own database of operators, against brute force.

Every operator of `op_db` is called with torch's own samples, in float64. One of its tensors is the input of a proof; a
source is a group of its elements. The proof says which elements of the outputs may hear which source. Brute force
changes one source at a time and looks which outputs move. A rule that denies what was heard is a bug: the operator is
NARROW, and the run fails. A rule that allows what was never heard is WIDE; where that is, the table says how much.
"""

from __future__ import annotations

import argparse
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from bench.harness import Case, Report, Settings, Suite, Task
from bench.table import Table
from rearview.auditing.proof import ProofFailed, prove
from rearview.errors import RearviewError

# Sources of one input, and outputs that are compared.
MOST_SOURCES, MOST_OUTPUTS = 12, 4096
# Of each operator, in a whole run.
MOST_SAMPLES = 12
QUICK_SAMPLES = 1
DRAWS = 4
MOST_TENSORS = 3
# Rounding of float64 that a change of other elements may cause, in products and transforms.
ROUNDING = 1e-9
# The types of inputs that are varied, in order of preference.
VARIED = (torch.float64, torch.int64, torch.bool)
# Uninitialized memory differs from run to run.
NOT_A_FUNCTION = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
# They read the data pointer or the version of their input.
NOT_A_FUNCTION |= {"jiterator_unary", "jiterator_binary", "jiterator_2inputs_2outputs"}


@dataclass
class OperatorRow:
    """One operator: what its proofs said of all of its samples."""

    name: str
    samples: int = 0
    narrow: int = 0
    """Samples in which something was heard that the proof denies."""
    exact: int = 0
    wide: int = 0
    """Samples in which the proof allows what was never heard."""
    excess: float = 0.0
    """The largest share of all pairs of output and source that were allowed and never heard."""
    escapes: int = 0
    unknown: int = 0
    failed: int = 0
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def verdict(self) -> str:
        if self.narrow:
            return "NARROW"
        if not self.samples:
            return "no sample"
        if self.failed:
            return "failed"
        return "escapes" if self.escapes else "no rule" if self.unknown else "wide" if self.wide else "exact"

    def cells(self) -> list[str]:
        note = self.notes.most_common(1)[0][0] if self.notes else ""
        excess = f"{100 * self.excess:.0f} %" if self.wide else ""
        return [self.name, self.verdict, str(self.samples), str(self.exact), excess, note[:120].replace("|", "/")]


def database() -> list[Any]:
    """torch's operators with samples."""
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError:
            # torch's tests derive from its TestCase, which the samples do not need.
            module = types.ModuleType("expecttest")
            module.__dict__["TestCase"] = unittest.TestCase
            sys.modules["expecttest"] = module
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.supports_dtype(torch.float64, "cpu")]


def title_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@dataclass(frozen=True)
class Sample:
    """An operator as a function of one of its tensors, flat and in groups of elements: [sources, elements]."""

    call: Callable[[Tensor], Any]
    x: Tensor


def samples_of(op: Any, most: int, *, tensors: int, sources: int) -> Iterator[Sample]:
    """Each sample with elements, once for each of its tensors, up to `tensors` of them; every second one turned."""
    torch.manual_seed(0)
    if op.name in NOT_A_FUNCTION:
        return
    number = 0
    for sample in op.sample_inputs("cpu", torch.float64):
        leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if any(isinstance(leaf, Tensor) and leaf.layout is not torch.strided for leaf in leaves):
            continue
        varied = [
            n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.numel() and leaf.dtype in VARIED
        ]
        # Those with many numbers first, then single numbers and integers.
        varied.sort(key=lambda n: (VARIED.index(leaves[n].dtype), leaves[n].numel() == 1))
        for n in varied[:tensors]:
            yield _as_function(op, leaves, spec, n, sources, turned=number % 2 == 1)
        number += bool(varied)
        if number == most:
            return


def _turned(value: Any) -> Any:
    """The same tensor with its last two axes the other way round in memory."""
    return value.mT.contiguous().mT if isinstance(value, Tensor) and value.ndim > 1 else value


def _as_function(op: Any, leaves: list[Any], spec: Any, n: int, sources: int, *, turned: bool) -> Sample:
    tensor = leaves[n]
    count, shape = tensor.numel(), tensor.shape
    width = -(-count // min(count, sources))
    rows = -(-count // width)
    x = torch.zeros(rows * width, dtype=tensor.dtype)
    x[:count] = tensor.reshape(-1)

    def call(x: Tensor) -> Any:
        torch.manual_seed(0)
        value = x.reshape(-1)[:count].reshape(shape)
        others = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        values = [*others[:n], value, *others[n + 1 :]]
        given, args, kwargs = spec.unflatten([_turned(each) for each in values] if turned else values)
        return op(given, *args, **kwargs)

    return Sample(call, x.view(rows, width))


def flat(out: Any) -> Tensor:
    """All outputs as one vector of complex numbers."""
    found = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, Tensor)]
    if any(leaf.layout is not torch.strided for leaf in found):
        raise TypeError("a sparse output")
    parts = [leaf.dequantize() if leaf.is_quantized else leaf for leaf in found]
    return torch.cat([part.to(torch.complex128).reshape(-1) for part in parts])


def heard(sample: Sample, draws: int) -> Tensor | None:
    """[outputs, sources], by changing one source at a time; None where two runs with the same input differ."""
    base = flat(sample.call(sample.x.clone()))
    if not _same(base, flat(sample.call(sample.x.clone()))).all():
        return None
    generator = torch.Generator().manual_seed(1)
    found = torch.zeros(len(base), len(sample.x), dtype=torch.bool)
    values = sample.x.reshape(-1)
    for source in range(len(sample.x)):
        for draw in range(draws):
            other = sample.x.clone()
            if draw % 2 or not other.is_floating_point():
                # Values of other elements are in the domain of the operator.
                chosen = torch.randint(len(values), other[source].shape, generator=generator)
                other[source] = values[chosen]
            else:
                noise = torch.randn(other[source].shape, dtype=torch.float64, generator=generator)
                other[source] += noise * (0.01, 3.0)[draw // 2]
            try:
                out = flat(sample.call(other))
            except Exception:
                # The changed input is outside of the domain.
                continue
            found[:, source] |= ~_same(out, base) if out.shape == base.shape else True
    return found


def _same(a: Tensor, b: Tensor) -> Tensor:
    close = torch.isclose(a, b, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
    return close | (a == b) | (~a.isfinite() & ~b.isfinite())


def examined(
    op: Any, most: int, *, draws: int = DRAWS, tensors: int = MOST_TENSORS, sources: int = MOST_SOURCES
) -> OperatorRow:
    """One operator with up to `most` of its samples, and up to `tensors` inputs of each, in so many `sources`."""
    row = OperatorRow(title_of(op))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples_of(op, most, tensors=tensors, sources=sources):
            try:
                out = flat(sample.call(sample.x.clone()))
            except Exception as error:
                # The sample needs something that a fresh tensor does not have.
                row.notes[f"{type(error).__name__}: {error}".splitlines()[0]] += 0
                continue
            if 0 < len(out) <= MOST_OUTPUTS:
                _compare(row, sample, draws)
    return row


def _compare(row: OperatorRow, sample: Sample, draws: int) -> None:
    found = heard(sample, draws)
    if found is None:
        return
    row.samples += 1
    try:
        proof = prove(
            lambda x: flat(sample.call(x)), sample.x, time_axis=0, batch_axis=None, out_time_axis=0, origins=False
        )
    except RearviewError as error:
        row.failed += isinstance(error, ProofFailed)
        row.notes[str(error).splitlines()[0]] += 1
        return
    allowed = proof.hears[0, :, 0]
    row.escapes += bool(proof.value_escapes)
    row.unknown += bool(proof.unknown_ops)
    for why in (*proof.value_escapes, *proof.unknown_ops):
        row.notes[why.place.op] += 1
    denied = found & ~allowed if found.shape == allowed.shape else found.any(dim=0, keepdim=True) & ~allowed.any(dim=0)
    if bool(denied.any()):
        row.narrow += 1
        row.notes[f"denied: output and source {denied.nonzero()[0].tolist()} of {list(denied.shape)}"] += 1000
        return
    excess = float((allowed & ~found).double().mean()) if found.shape == allowed.shape else 0.0
    row.excess = max(row.excess, excess)
    row.wide += excess > 0
    row.exact += excess == 0


def summary(rows: Sequence[OperatorRow]) -> list[str]:
    counts = Counter(row.verdict for row in rows)
    samples = sum(row.samples for row in rows)
    lines = [f"{samples:,} one-operator programs; {sum(row.narrow for row in rows)} of them denied something heard"]
    order = ("NARROW", "exact", "wide", "no rule", "escapes", "failed", "no sample")
    return lines + [f"{name}: {counts[name]} operators" for name in order if counts[name]]


class AuditOps(Suite):
    name, title, suffix = "audit_ops", "Rules of the proof over torch's operators", "-audit-ops"

    def options(self, add: Callable[..., object]) -> None:
        add("--samples", type=int, default=MOST_SAMPLES, help=f"of each operator (default {MOST_SAMPLES})")

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        most = QUICK_SAMPLES if args.quick else args.samples

        def run(op: Any, settings: Settings) -> OperatorRow:
            row = examined(op, most)
            settings.progress(row.verdict)
            return row

        return [Task(title_of(op), partial(run, op)) for op in database()]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        rows = [each for each in results if isinstance(each, OperatorRow)]
        shown = [row.cells() for row in rows if row.verdict != "exact"]
        table = Table(("operator", "verdict", "samples", "exact", "excess", "why"), shown, True, 2)
        legend = (
            "Operators whose rule is exact in every sample are not listed. wide: the rule allows what brute force did "
            "not hear, at most the share of pairs that is given. no rule: every output counts as hearing every input. "
            "escapes: a value decides a shape or becomes a number, or the operator is not one of torch's own, so that "
            "nothing is proven."
        )
        about = [f"{len(rows)} operators in float64", *summary(rows)]
        return Report(about, [("", table)], legend=legend, is_wrong=any(row.narrow for row in rows))


SUITES = (AuditOps(),)
