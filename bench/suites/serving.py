"""What the options of serving cost on the CPU kernel: sinks, pages, batch-invariant sums, and a prefix that is shared.

Each case is one call in two ways: as it is without the option, and with it. Both are judged by the definition.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bench.attention_case import FORWARD, TOLERANCE, TRAINING
from bench.harness import Case, Contestant, Outcome, Ready, Report, Suite, Target, Task, any_wrong, outcomes_of
from bench.table import Table
from rearview import Pages, attend
from rearview.attention.engines import native
from rearview.attention.engines.native import cascade

ROUNDS, QUICK_ROUNDS = 15, 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SINKS, PAGES, INVARIANT, CASCADE = "learned sinks", "pages", "batch-invariant", "shared prefix"
# How much longer the option may take.
ASKED = {SINKS: 1.05, PAGES: 1.1}
# Positions of a block.
BLOCKS = (16, 64, 128)


@dataclass(frozen=True)
class Sizes:
    batch: int
    heads: int
    key_heads: int
    q_len: int
    k_len: int
    dim: int

    def __str__(self) -> str:
        lengths = f"L{self.k_len}" if self.q_len == self.k_len else f"Q{self.q_len} K{self.k_len}"
        return f"B{self.batch} H{self.heads}/{self.key_heads} {lengths} D{self.dim}"

    def tensors(self, dtype: torch.dtype, *, shared: int = 0) -> list[Tensor]:
        """Query, key and value; the first `shared` keys and values are the same for every item."""
        make = torch.Generator().manual_seed(0)
        shapes = ((self.heads, self.q_len), (self.key_heads, self.k_len), (self.key_heads, self.k_len))
        found = [torch.randn(self.batch, *shape, self.dim, generator=make).to(dtype) for shape in shapes]
        for each in found[1:]:
            each[:, :, :shared] = each[:1, :, :shared]
        return found


SQUARES = [Sizes(1, 8, 8, length, length, 64) for length in (512, 1024, 2048)]
STEPS = [Sizes(1, 8, 8, 1, 4096, 64), Sizes(8, 32, 8, 1, 2048, 128)]
CHUNKS = [Sizes(1, 8, 8, 64, 4096, 64)]
SHARED = [Sizes(items, 32, 8, 1, 4096, 64) for items in (4, 16)]


@dataclass(frozen=True)
class Way:
    """A way to compute a call: its name in the tables, the tensors that it computes, and what they should be."""

    name: str
    compute: Callable[[], Sequence[Tensor]]
    right: Sequence[Tensor]
    dtype: torch.dtype

    def prepare(self) -> Ready:
        self.compute()
        return Ready(self.compute, self.fault)

    def fault(self) -> str:
        most = TOLERANCE[self.dtype]
        for n, (got, wanted) in enumerate(zip(self.compute(), self.right, strict=True)):
            error = float((got.double() - wanted).abs().max() / wanted.abs().max())
            if not error <= most:
                return f"result {n} is off by {error:.1e} (allowed {most:.0e})"
        return ""


def in_blocks(tensors: Sequence[Tensor], block_size: int, *, shared: int = 0) -> tuple[list[Tensor], Pages]:
    """The same keys and values in pools, the blocks in any order; the first `shared` positions are held once."""
    _, key, _ = tensors
    batch, _, k_len, _ = key.shape
    blocks, common = -(-k_len // block_size), shared // block_size
    order = torch.randperm(batch * blocks, generator=torch.Generator().manual_seed(1)).view(batch, blocks)
    order[:, :common] = order[:1, :common]
    pools = []
    for each in tensors[1:]:
        padded = torch.nn.functional.pad(each, (0, 0, 0, blocks * block_size - k_len))
        pool = each.new_zeros(batch * blocks, each.shape[1], block_size, each.shape[3])
        pool[order] = padded.unflatten(2, (blocks, block_size)).transpose(1, 2)
        pools.append(pool)
    return pools, Pages(order, [k_len] * batch)


def outputs(*tensors: Tensor, backward: bool = False, d_out: Tensor | None = None, **options) -> list[Tensor]:
    """The output of `attend`; with `backward`, the gradients of all tensors, and of the sinks."""
    if not backward:
        with torch.no_grad():
            return [attend(*tensors, **options)]
    leaves = [each.detach().requires_grad_() for each in tensors]
    if (sinks := options.get("sinks")) is not None:
        options["sinks"] = sinks.detach().requires_grad_()
        leaves.append(options["sinks"])
    out = attend(*leaves[:3], **options)
    return list(torch.autograd.grad(out, leaves, d_out))


def versus(part: str, name: str, before: str, make: Callable[[], list[Way]]) -> Case:
    """`make` gives the way without the option, which is called `before`, and the one with it."""

    def contestants() -> list[Contestant]:
        return [Contestant(each.name, each.prepare) for each in make()]

    asked = ASKED.get(part)
    targets = () if asked is None else (Target(f"rearview, {part}", before, at_most=asked),)
    return Case(name, contestants, part, targets)


def sinks_case(sizes: Sizes, dtype: str, direction: str) -> Case:
    before = "rearview, plain causal"

    def make() -> list[Way]:
        tensors, kind = sizes.tensors(DTYPES[dtype]), DTYPES[dtype]
        doubled, found = [each.double() for each in tensors], []
        for name, sinks in ((before, None), (f"rearview, {SINKS}", torch.linspace(-2, 4, sizes.heads))):
            given = {"sinks": sinks, "backward": direction == TRAINING}
            ones = torch.ones_like(tensors[0])
            right = outputs(*doubled, d_out=ones.double(), engine="reference", **given)
            found.append(Way(name, partial(outputs, *tensors, d_out=ones, engine="native", **given), right, kind))
        return found

    return versus(SINKS, f"{direction} {dtype} {sizes}", before, make)


def pages_case(sizes: Sizes, dtype: str, block_size: int) -> Case:
    before = "rearview, contiguous"

    def make() -> list[Way]:
        tensors, kind = sizes.tensors(DTYPES[dtype]), DTYPES[dtype]
        right = outputs(*(each.double() for each in tensors), engine="reference")
        pools, pages = in_blocks(tensors, block_size)
        paged = partial(outputs, tensors[0], *pools, pages=pages, engine="native")
        return [
            Way(before, partial(outputs, *tensors, engine="native"), right, kind),
            Way(f"rearview, {PAGES}", paged, right, kind),
        ]

    return versus(PAGES, f"blocks of {block_size} {dtype} {sizes}", before, make)


def invariant_case(sizes: Sizes, dtype: str) -> Case:
    before = "rearview, any order"

    def make() -> list[Way]:
        tensors, kind = sizes.tensors(DTYPES[dtype]), DTYPES[dtype]
        right = outputs(*(each.double() for each in tensors), engine="reference")
        return [
            Way(name, partial(outputs, *tensors, batch_invariant=fixed, engine="native"), right, kind)
            for name, fixed in ((before, False), (f"rearview, {INVARIANT}", True))
        ]

    return versus(INVARIANT, f"{dtype} {sizes}", before, make)


def cascade_case(sizes: Sizes, dtype: str, block_size: int = 64) -> Case:
    before = "rearview, not shared"

    def make() -> list[Way]:
        tensors, kind = sizes.tensors(DTYPES[dtype], shared=sizes.k_len - block_size), DTYPES[dtype]
        right = outputs(*(each.double() for each in tensors), engine="reference")
        found = []
        for name, shared in ((before, 0), (f"rearview, {CASCADE}", sizes.k_len - block_size)):
            pools, pages = in_blocks(tensors, block_size, shared=shared)
            found.append(Way(name, partial(outputs, tensors[0], *pools, pages=pages, engine="native"), right, kind))
        return found

    return versus(CASCADE, f"{dtype} {sizes}", before, make)


def cases() -> list[Case]:
    found = []
    for dtype in DTYPES:
        found += [sinks_case(sizes, dtype, direction) for sizes in SQUARES for direction in (FORWARD, TRAINING)]
        found += [pages_case(sizes, dtype, block) for sizes in (*STEPS, *CHUNKS) for block in BLOCKS]
        found += [invariant_case(sizes, dtype) for sizes in (*STEPS, *CHUNKS, *SQUARES)]
        found += [cascade_case(sizes, dtype) for sizes in SHARED]
    return found


class ServingSuite(Suite):
    name, title, suffix = "serving", "Sinks, pages and batch-invariant attention", "-serving"

    def missing(self, args: argparse.Namespace) -> str:
        return f"engine 'native': {native.library.MISSING}" if native.library.MISSING else ""

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
        return [replace(case, rounds=rounds) for case in cases() if not args.quick or "L2048" not in case.name]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        outcomes = outcomes_of(results)
        verdicts = [text for each in outcomes for text in each.verdicts()]
        about = [
            f"instruction set {native.isa()}; a prefix is read once where that saves {cascade.WORTH_SHARING} keys",
            f"targets met: {sum(text.startswith('met') for text in verdicts)} of {len(verdicts)}",
        ]
        parts = (SINKS, PAGES, INVARIANT, CASCADE)
        tables = [("", table_of(some)) for part in parts if (some := outcomes_of(results, part))]
        return Report(about, tables, is_wrong=any_wrong(outcomes))


def table_of(outcomes: Sequence[Outcome]) -> Table:
    before, ours = (row.name for row in outcomes[0].rows)
    rows = []
    for each in outcomes:
        timed = [each.row(name) for name in (before, ours)]
        faster = each.times_faster(ours, than=before)
        if faster is None:
            rows.append((each.case.name, "-", "-", "-", next(row.note for row in each.rows if not row.samples)))
            continue
        asked = next((target.at_most for target in each.case.targets), None)
        verdict = "" if asked is None else f"{'met' if 1 / faster <= asked else 'MISSED'}, asked {asked:g}x"
        times = (f"{row.median:.3g}" for row in timed if row is not None)
        rows.append((each.case.name, *times, f"{1 / faster:.2f}x", verdict))
    headers = (outcomes[0].case.part, f"{before.removeprefix('rearview, ')} ms", "with it ms", "takes", "target")
    return Table(headers, rows, last_is_words=True)


SUITES = (ServingSuite(),)
