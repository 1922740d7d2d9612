"""A case of masked attention, the judge of its answers, and the benchmark case that combines them.

>>> from rearview import causal
>>> case = AttentionCase("causal", causal, batch=1, heads=2, q_len=20, k_len=20, dim=8)
>>> case.sizes, case.pairs
('B1 H2 L20 D8', 420)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench.harness import Call, Case, Contestant, Ready, Target
from rearview import Mask, attend

FORWARD, TRAINING = "forward", "forward+backward"
# The largest error that counts as rounding, relative to the largest number of the answer.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
# Up to this number of pairs per head all rows are judged; for longer sequences only the last rows are.
JUDGED_PAIRS, JUDGED_ROWS = 8192**2, 128
# From this length on a head takes gigabytes in float64, so only one head is judged.
LONG_PAIRS = 4096**2

# Whether query row q may hear key k. A FlexAttention mask_mod: rows count from 0 for any position of the queries.
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# (query, key, value) -> out
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class AttentionCase:
    """`make_mask` makes a new mask each time, so that nothing is cached in the first call."""

    name: str
    make_mask: Callable[[], Mask]
    batch: int
    heads: int
    q_len: int
    k_len: int
    dim: int
    dtype: torch.dtype = torch.float32
    # Fewer than the query heads for grouped-query attention.
    key_heads: int | None = None
    # How a user without Rearview writes the mask; None to use the dense form of the mask.
    rule: Rule | None = None
    # SDPA's own arguments where they can express this mask without a tensor.
    plain: dict[str, bool] | None = None
    # The rows that are used, bool [batch, q_len], without those of padding; None for all.
    read: Tensor | None = None
    differs_by_item: bool = False
    trains: bool = True

    @property
    def sizes(self) -> str:
        lengths = f"L{self.k_len}" if self.q_len == self.k_len else f"Q{self.q_len} K{self.k_len}"
        grouped = f"/{self.key_heads}" if self.key_heads else ""
        return f"B{self.batch} H{self.heads}{grouped} {lengths} D{self.dim}"

    @property
    def is_long(self) -> bool:
        return self.q_len * self.k_len > LONG_PAIRS

    @property
    def directions(self) -> tuple[str, ...]:
        return (FORWARD, TRAINING) if self.trains else (FORWARD,)

    @property
    def pairs(self) -> int:
        """The number of visible pairs of all batch items and heads."""
        spans = self.make_mask().spans(self.q_len, self.k_len)
        return spans.area * (self.batch // spans.batch) * (self.heads // spans.heads)

    def operations(self, direction: str) -> int:
        """The number of useful operations, those of the visible pairs."""
        return (4 if direction == FORWARD else 14) * self.dim * self.pairs

    def dense(self, device: torch.device) -> Tensor:
        """The dense mask, as a user of SDPA writes it: bool, True = may be heard."""
        if self.rule is None:
            return self.make_mask().to_bool(self.q_len, self.k_len).to(device)
        b = torch.arange(self.batch, device=device).view(-1, 1, 1, 1)
        h = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
        q = torch.arange(self.q_len, device=device).view(1, 1, -1, 1)
        k = torch.arange(self.k_len, device=device).view(1, 1, 1, -1)
        return self.rule(b, h, q, k).contiguous()


@dataclass(frozen=True)
class Rival:
    """One way to compute the attention of a case. `make` does the work that is done once per mask."""

    name: str
    make: Callable[[AttentionCase, torch.device], Attention]
    has_backward: bool = True
    note: str = ""


@dataclass(frozen=True)
class Inputs:
    """query, key, value and d_out, [batch, heads, time, dim] each; d_out is 0 in rows that are not used."""

    query: Tensor
    key: Tensor
    value: Tensor
    d_out: Tensor

    @classmethod
    def of(cls, case: AttentionCase, device: torch.device) -> Inputs:
        generator = torch.Generator().manual_seed(0)

        def numbers(heads: int, length: int) -> Tensor:
            return torch.randn(case.batch, heads, length, case.dim, generator=generator).to(device, case.dtype)

        keys = (case.key_heads or case.heads, case.k_len)
        query, key, value, d_out = (numbers(*each) for each in ((case.heads, case.q_len), keys, keys,
                                                                (case.heads, case.q_len)))  # fmt: skip
        if case.read is not None:
            d_out = d_out * case.read.to(device)[:, None, :, None]
        return cls(query, key, value, d_out)

    def leaves(self, *, backward: bool) -> list[Tensor]:
        return [each.detach().requires_grad_(backward) for each in (self.query, self.key, self.value)]


@dataclass(frozen=True)
class Judge:
    """The correct answer in float64: the output, and the gradients of query, key and value if there is a backward pass.

    Heads are independent, so only the first and the last are judged; for long sequences only the last.
    """

    case: AttentionCase
    inputs: Inputs
    backward: bool
    # The heads of queries, the heads of keys, and the rows.
    heads: tuple[list[int], list[int]]
    rows: slice
    right: dict[str, Tensor]

    @classmethod
    def of(cls, case: AttentionCase, inputs: Inputs, *, backward: bool) -> Judge:
        key_heads = case.key_heads or case.heads
        judged = [key_heads - 1] if case.is_long else sorted({0, key_heads - 1})
        group = case.heads // key_heads
        heads = ([head * group + n for head in judged for n in range(group)], judged)
        rows = slice(max(0, case.q_len - JUDGED_ROWS) if case.q_len * case.k_len > JUDGED_PAIRS else 0, None)
        if rows.start:
            # Only these rows have gradients, so those of keys and values come from these rows too.
            inputs.d_out[:, :, : rows.start] = 0
        query, d_out = (each[:, heads[0], rows].double() for each in (inputs.query, inputs.d_out))
        key, value = (each[:, heads[1]].double() for each in (inputs.key, inputs.value))
        exact = Inputs(query, key, value, d_out)
        reference = partial(attend, mask=case.make_mask(), engine="reference")
        read = None if case.read is None else case.read[:, rows]
        return cls(case, inputs, backward, heads, rows, _answers(reference, exact, read, backward=backward))

    def fault(self, attention: Attention) -> str:
        """What is wrong with the answer, or "". Exceptions of the contestant are not caught."""
        most = TOLERANCE[self.inputs.query.dtype]
        answers = _answers(attention, self.inputs, self.case.read, backward=self.backward)
        for name, answer in answers.items():
            right, of_query = self.right[name], not name.endswith(("key", "value"))
            like = self.inputs.query if of_query else self.inputs.key
            if answer.shape != like.shape:
                return f"{name} has the shape {list(answer.shape)}"
            answer = answer[:, self.heads[not of_query]]
            answer = (answer[:, :, self.rows] if of_query else answer).double()
            error = float((answer - right).abs().max() / right.abs().max())
            if not error <= most:
                return f"{name} is off by {'NaN' if math.isnan(error) else f'{error:.1e}'} (allowed {most:.0e})"
        return ""


def contest(
    case: AttentionCase,
    direction: str,
    rivals: Callable[[Inputs], Sequence[Rival]],
    *,
    device: torch.device,
    rounds: int,
    targets: tuple[Target, ...] = (),
    name: str = "",
) -> Case:
    """The benchmark case for the rivals in one direction. Long cases run a third of the rounds."""
    backward = direction == TRAINING

    def contestants() -> list[Contestant]:
        inputs = Inputs.of(case, device)
        judge = Judge.of(case, inputs, backward=backward)
        return [
            Contestant(each.name, partial(_prepare, each, judge, device))
            for each in rivals(inputs)
            if each.has_backward or not backward
        ]

    facts = {"sizes": case.sizes, "long": case.is_long}
    rounds = max(1, rounds // 3) if case.is_long else rounds
    return Case(name or case.name, contestants, direction, targets, rounds, facts=facts)


def _prepare(rival: Rival, judge: Judge, device: torch.device) -> Ready:
    attention, inputs = rival.make(judge.case, device), judge.inputs
    with torch.no_grad():
        attention(inputs.query, inputs.key, inputs.value)
    return Ready(_call(attention, inputs, judge.backward), partial(judge.fault, attention), rival.note)


def _call(attention: Attention, inputs: Inputs, backward: bool) -> Call:
    leaves = inputs.leaves(backward=backward)

    def forward() -> object:
        with torch.no_grad():
            return attention(*leaves)

    return (lambda: torch.autograd.grad(attention(*leaves), leaves, inputs.d_out)) if backward else forward


def _answers(attention: Attention, inputs: Inputs, read: Tensor | None, *, backward: bool) -> dict[str, Tensor]:
    leaves = inputs.leaves(backward=backward)
    with torch.set_grad_enabled(backward):
        out = attention(*leaves)
    answers = {"the output": out.detach()}
    if backward:
        grads = torch.autograd.grad(out, leaves, inputs.d_out)
        names = ("query", "key", "value")
        answers |= {f"the gradient of {name}": grad for name, grad in zip(names, grads, strict=True)}
    if read is not None:
        # Rows that are not used are not judged, even if they are NaN.
        answers["the output"] = answers["the output"].masked_fill(~read.to(out.device)[:, None, :, None], 0)
    return answers
