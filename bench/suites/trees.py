"""One prompt with many answers: one row under `shared_prefix`, compared with a row per answer and with a dense mask.

In a row per answer the prompt is repeated, and its queries are computed again for every answer. The gradient of the
output is 0 at the prompt, as in training on answers, so that all contestants have the same gradients: those of a
repeated prompt are added up before they are judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.attention_case import FORWARD, TOLERANCE, TRAINING
from bench.harness import Case, Contestant, Outcome, Ready, Report, Suite, Target, Task, any_wrong, outcomes_of
from bench.table import Table, ms, ratio
from rearview import Mask, attend, shared_prefix

HEADS, DIM = 8, 64
ROUNDS, QUICK_ROUNDS = 9, 2
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
OURS, OURS_APART = "rearview, shared_prefix", "rearview, a row per answer"
DENSE, APART = "SDPA, dense mask", "SDPA, a row per answer"

# (query, key, value) -> out
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Answers:
    """A prompt of `prompt` tokens and `count` answers of `each` tokens.

    >>> Answers(4, 2, 3).length
    10
    """

    prompt: int
    count: int
    each: int

    def __str__(self) -> str:
        return f"prompt {self.prompt}, {self.count} answers of {self.each}"

    @property
    def length(self) -> int:
        return self.prompt + self.count * self.each

    @property
    def mask(self) -> Mask:
        return shared_prefix(self.prompt, [self.each] * self.count)

    def apart(self, row: Tensor) -> Tensor:
        """[1, heads, length, dim] as a batch with the prompt before each answer, [count, heads, prompt + each, dim]."""
        prompt, answers = row.split([self.prompt, self.count * self.each], dim=2)
        own = answers.unflatten(2, (self.count, self.each))[0].transpose(0, 1)
        return torch.cat([prompt.expand(self.count, -1, -1, -1), own], dim=2).contiguous()

    def together(self, rows: Tensor, *, add: bool) -> Tensor:
        """The inverse of `apart`. The rows of the prompt, which every item has, are added up or taken from item 0."""
        prompt, own = rows.split([self.prompt, self.each], dim=2)
        kept = prompt.sum(0, keepdim=True) if add else prompt[:1]
        return torch.cat([kept, own.transpose(0, 1).flatten(1, 2)[None]], dim=2)


SIZES = (Answers(1024, 16, 256),)
QUICK_SIZES = (Answers(128, 4, 32),)


def contestants(sizes: Answers, dtype: torch.dtype, direction: str) -> list[Contestant]:
    generator, backward = torch.Generator().manual_seed(0), direction == TRAINING
    row = [torch.randn(1, HEADS, sizes.length, DIM, generator=generator).to(dtype) for _ in range(4)]
    row[3][:, :, : sizes.prompt] = 0
    # In a row per answer the prompt's output is repeated, with no gradient in any of them.
    rows = [sizes.apart(each) for each in row]
    mask = sizes.mask
    reference = partial(attend, mask=mask, engine="reference")
    # Heads are independent, and one of them is a few hundred MiB in float64.
    right = computed(reference, [each[:, :1].double() for each in row], backward=backward)
    dense = partial(F.scaled_dot_product_attention, attn_mask=mask.to_bool(sizes.length))
    plain = partial(F.scaled_dot_product_attention, is_causal=True)

    def prepare(attention: Attention, tensors: Sequence[Tensor], *, is_apart: bool) -> Ready:
        call = partial(computed, attention, tensors, backward=backward)
        call()

        def fault() -> str:
            for n, (got, wanted) in enumerate(zip(call(), right, strict=True)):
                if is_apart:
                    got = sizes.together(got.float(), add=backward)
                error = float((got[:, :1].double() - wanted).abs().max() / wanted.abs().max())
                if not error <= TOLERANCE[dtype]:
                    return f"result {n} is off by {error:.1e} (allowed {TOLERANCE[dtype]:.0e})"
            return ""

        return Ready(call, fault)

    return [
        Contestant(OURS, partial(prepare, partial(attend, mask=mask), row, is_apart=False)),
        Contestant(OURS_APART, partial(prepare, attend, rows, is_apart=True)),
        Contestant(APART, partial(prepare, plain, rows, is_apart=True)),
        Contestant(DENSE, partial(prepare, dense, row, is_apart=False)),
    ]


def computed(attention: Attention, tensors: Sequence[Tensor], *, backward: bool) -> list[Tensor]:
    """The output, or the gradients of query, key and value."""
    *inputs, d_out = tensors
    if not backward:
        with torch.no_grad():
            return [attention(*inputs)]
    leaves = [each.detach().requires_grad_() for each in inputs]
    return list(torch.autograd.grad(attention(*leaves), leaves, d_out))


def cases(sizes: Sequence[Answers] = SIZES) -> list[Case]:
    targets = (Target(OURS, APART, at_least=2.0), Target(OURS, DENSE, at_least=2.0))
    return [
        Case(
            f"{each}, {name}",
            partial(contestants, each, dtype, direction),
            direction,
            targets if each in SIZES else (),
            sample_ms=0.0,
        )
        for direction in (FORWARD, TRAINING)
        for each in sizes
        for name, dtype in DTYPES.items()
    ]


def table_of(outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for outcome in outcomes:
        rows.append((outcome.case.name, "", "", ""))
        for row in outcome.rows:
            faster = ratio(outcome.times_faster(OURS, than=row.name)) if row.samples else "-"
            rows.append((f"  {row.name}", ms(row.median) if row.samples else "-", faster, row.note))
    return Table((outcomes[0].case.part, "ms", "ours is faster", "note"), rows, last_is_words=True)


class TreesSuite(Suite):
    name, title, suffix = "trees", "One prompt with many answers", "-trees"

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
        return [replace(case, rounds=rounds) for case in cases(QUICK_SIZES if args.quick else SIZES)]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        outcomes = outcomes_of(results)
        verdicts = [text for each in outcomes for text in each.verdicts()]
        tables = [("", table_of(some)) for part in (FORWARD, TRAINING) if (some := outcomes_of(results, part))]
        return Report([f"{HEADS} heads of {DIM}"], tables, verdicts, is_wrong=any_wrong(outcomes))


SUITES = (TreesSuite(),)
