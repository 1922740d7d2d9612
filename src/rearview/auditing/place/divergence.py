"""The place where two forms of one call diverge: the first op whose inputs agree and whose outputs do not.

>>> import torch
>>> from rearview.auditing.place.divergence import Ends
>>> Ends("last").differ(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[9.0, 2.0, 3.0]]))
True
>>> Ends("last").differ(torch.tensor([[2.0, 3.0]]), torch.tensor([[9.0, 2.0, 3.0]]))
False

With padding on the left, or after a cache, the common positions stand at the end of both tensors; with padding on the
right, at the front. Shapes differ between forms, so values are compared up to rounding, and ops are matched by module,
line and their number there, not by their place in the run: a cache adds ops of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rearview.auditing.evidence.leak import Leak
from rearview.auditing.evidence.probe import difference
from rearview.auditing.place.recording import Op, OpRecorder
from rearview.auditing.place.scores import BLOCKS
from rearview.auditing.reporting.report import Place
from rearview.auditing.user_code import text_of

# The fraction of an ordinary value by which two forms may differ.
ROUNDING = 1e-4
Key = tuple[str, str, str, int, int]


@dataclass(frozen=True)
class Ends:
    """At which end two tensors of different lengths hold the common positions."""

    at: Literal["first", "last"]

    def shared(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
        """The part that both have; None where they differ in rank."""
        if a.ndim != b.ndim:
            return None
        for axis in range(a.ndim):
            size = min(a.shape[axis], b.shape[axis])
            if self.at == "first":
                a, b = a.narrow(axis, 0, size), b.narrow(axis, 0, size)
            else:
                a, b = (part.narrow(axis, part.shape[axis] - size, size) for part in (a, b))
        return a, b

    def differ(self, a: Tensor, b: Tensor) -> bool:
        pair = self.shared(a, b)
        if pair is None or not pair[0].numel():
            return False
        a, b = (part.double() for part in pair if not part.is_complex()) if not pair[0].is_complex() else pair
        gap = (a - b).abs().nan_to_num(0.0, posinf=0.0)
        ordinary = float(a[a.isfinite()].abs().mean()) if bool(a.isfinite().any()) else 0.0
        return bool((gap > ROUNDING * ordinary + 1e-9).any())

    def repaired(self, clean: Tensor, other: Tensor) -> Tensor:
        """The other tensor with the clean values at the common positions."""
        repaired = other.clone()
        pair = self.shared(clean, repaired)
        if pair is not None:
            pair[1].copy_(pair[0])
        return repaired


def divergence(leak: Leak) -> tuple[Place, ...]:
    """The place where `leak.subject` diverges from `leak.usual`; empty where it cannot be found."""
    if leak.usual is None:
        return ()
    if len(leak.clean) > 1:
        # With one batch item, positions that are flattened with the batch still stand at the end.
        one, rows = torch.tensor([leak.item]), slice(leak.item, leak.item + 1)
        usual, subject = leak.usual.of_items(one), leak.subject.of_items(one)
        leak = replace(leak, usual=usual, subject=subject, clean=leak.clean[rows], other=leak.other[rows], item=0)
    assert leak.usual is not None
    ends = Ends("first" if leak.shares_front else "last")
    usual = OpRecorder(leak.usual.model)
    before = replace(leak.usual, around=usual).run(leak.clean)
    form = OpRecorder(leak.subject.model)
    replace(leak.subject, around=form).run(leak.other)
    clean = dict(zip(_keys(usual.ops), usual.ops, strict=True))
    found = _first(clean, form.ops, ends)
    if found is None:
        return ()
    key, op = found
    reference = clean[key]

    def repair(seen: Op) -> list[Tensor] | None:
        if seen.index != op.index:
            return None
        return [ends.repaired(a, b) for a, b in zip(reference.outputs, seen.outputs, strict=True)]

    after = replace(leak.subject, around=OpRecorder(leak.subject.model, repair)).run(leak.other)
    pair = ends.shared(before[leak.item : leak.item + 1], after[leak.item : leak.item + 1])
    confirmed = pair is not None and float(difference(*pair)[0].max()) < 0.1 * leak.amount
    hint = _hint(op, leak)
    evidence = "its inputs are the same in both forms of the call, but its output is not"
    module, kind = op.module, op.module_class
    if "embedding" in op.name:
        # An embedding is not to blame for the positions that it is given; its caller is.
        module = module.rpartition(".")[0]
        kind = next((seen.module_class for seen in form.ops if seen.module == module), "")
    place = Place(module, kind, op.name, op.file, op.line, text_of(op.file, op.line), hint, confirmed)
    return (replace(place, evidence=evidence, check=leak.check),)


def _keys(ops: Sequence[Op]) -> list[Key]:
    """A key for each op: its module, op, line and number there; calls before the last are marked as such."""
    last = max((op.call for op in ops), default=0)
    counts: dict[tuple[str, str, str, int], int] = {}
    keys: list[Key] = []
    for op in ops:
        name = (op.module if op.call == last else f"(call {op.call}) {op.module}", op.name, op.file, op.line)
        counts[name] = counts.get(name, -1) + 1
        keys.append((*name, counts[name]))
    return keys


def _first(clean: dict[Key, Op], ops: Sequence[Op], ends: Ends) -> tuple[Key, Op] | None:
    for key, op in zip(_keys(ops), ops, strict=True):
        reference = clean.get(key)
        if reference is None or len(reference.outputs) != len(op.outputs) or not op.outputs:
            continue
        if not any(ends.differ(a, b) for a, b in zip(reference.outputs, op.outputs, strict=True)):
            continue
        # Masks and positions belong to the form, so that they differ is no fault; only 2-d floats are compared.
        hears = [n for n, tensor in enumerate(reference.inputs) if tensor.is_floating_point() and tensor.ndim >= 2]
        inputs = [(reference.inputs[n], op.inputs[n]) for n in hears if n < len(op.inputs)]
        if inputs and not any(ends.differ(a, b) for a, b in inputs):
            return key, op
    return None


def _hint(op: Op, leak: Leak) -> str:
    if leak.check == "padding":
        return "padding is counted or heard here: count positions from the first real token, and mask padded keys"
    if leak.check != "cached decoding":
        return ""
    if _is_top_left(op):
        q_len, k_len = _lengths(op)
        return f"is_causal aligns the {q_len} queries after a cache with the first of {k_len} keys instead of the last"
    if "softmax" in op.name or "attention" in op.name:
        return "with a cache, this attention hears other keys than in the full pass"
    return "with a cache, this op computes something else than in the full pass"


def _lengths(op: Op) -> tuple[int, int]:
    """The number of queries and of keys of an attention op."""
    if "softmax" in op.name:
        return op.inputs[0].shape[-2], op.inputs[0].shape[-1]
    return op.inputs[0].shape[-2], op.inputs[1].shape[-2]


def _is_top_left(op: Op) -> bool:
    """Whether there are fewer queries than keys, and query n hears the first n + 1 keys."""
    if "softmax" in op.name and op.inputs[0].ndim >= 2:
        q_len, k_len = _lengths(op)
        heard = op.inputs[0].reshape(-1, q_len, k_len).cpu() > BLOCKS
        return q_len < k_len and bool((heard == torch.ones(q_len, k_len, dtype=torch.bool).tril()).all())
    if "attention" not in op.name:
        return False
    flags = [value for value in (*op.arguments[:-1], *op.arguments[-1].values()) if value is True]
    q_len, k_len = _lengths(op)
    return bool(flags) and q_len < k_len
