"""Masked attention compared with what a user would choose instead: forms of PyTorch's attention, and FlexAttention.

>>> from bench.suites.attention import BASE_CPU, cases
>>> [case.name for case in cases(BASE_CPU)][:3]
['causal', 'window', 'documents']
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.attention_case import FORWARD, TRAINING, Attention, AttentionCase, Inputs, Rival, Rule, contest
from bench.harness import Case, Outcome, Report, Row, Suite, Target, Task, any_wrong, outcomes_of
from bench.suites import lowering
from bench.table import Table, ms, ratio
from rearview import Mask, attend, causal, documents, padding, plan, prefix, window

PLAIN, DENSE, FLEX, NAIVE = "SDPA is_causal", "SDPA dense mask", "FlexAttention", "naive softmax"
AUTO, OURS = "rearview auto", "rearview"
NAIVE_PAIRS = 512 * 512
RECOMPILATIONS = 256
ROUNDS, QUICK_ROUNDS, QUICK_LENGTH = 15, 3, 512
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
# A factor up to this between another engine and the choice of "auto" counts as noise.
NOISE = 1.15

# Lengths of uneven documents, as shares of 64; most are short, as in real text.
UNEVEN = (3, 1, 9, 2, 17, 1, 5, 12, 2, 4, 8)
# Real tokens of the items of a padded batch, as shares of 8.
RAGGED = (8, 5, 3, 6)

LEGEND = (
    "ms: the median over the rounds, and the quartiles. vs dense, vs causal: how many times as fast as SDPA with the "
    "dense mask and as SDPA is_causal, the median of the ratio in the same round; below 1 is slower. first ms: making "
    "the mask, writing it out or compiling it, and one forward call, once. Where one token is decoded, SDPA is_causal "
    "is SDPA without a mask. With padding on the right is_causal alone is right for every real token; rows of padding "
    "are not judged. The answer of each contestant, and its gradients, agreed with the float64 reference before it was "
    "timed, or it is marked WRONG."
)


@dataclass(frozen=True)
class Size:
    batch: int
    heads: int
    length: int
    dim: int

    def __str__(self) -> str:
        return f"B{self.batch} H{self.heads} L{self.length} D{self.dim}"


BASE_CPU = Size(batch=1, heads=8, length=2048, dim=64)
BASE_CUDA = Size(batch=4, heads=16, length=4096, dim=64)
# Targets of "auto", forward and backward, for one size on a CPU in float32.
TARGETS = {
    "documents": Target(AUTO, DENSE, at_least=4.0),
    "window": Target(AUTO, DENSE, at_least=3.0),
    "causal": Target(AUTO, PLAIN, at_least=0.95, remark='"no slower": 0.95 counts, for the noise'),
}


class AttentionSuite(Suite):
    """All masks and sizes, or those that `picks` accepts."""

    def __init__(self, name: str, title: str, suffix: str = "", picks: Callable[[AttentionCase], bool] | None = None):
        self.name, self.title, self.suffix, self.picks = name, title, suffix, picks

    def options(self, add: Callable[..., object]) -> None:
        add("--long", action="store_true", help="also length 8192, 4 heads: causal, window, documents")
        add("--device", choices=("cpu", "cuda"), help="default: the GPU if there is one")
        add("--dtype", choices=DTYPES, help="default: float32 on a CPU, bfloat16 on a GPU")
        for name, what in (("batch", "batch"), ("heads", "heads"), ("length", "length"), ("dim", "head dim")):
            cpu, cuda = getattr(BASE_CPU, name), getattr(BASE_CUDA, name)
            default = f"{cpu}" if cpu == cuda else f"{cpu}, on a GPU {cuda}"
            add(f"--{name}", type=int, help=f"{what} of the base size (default {default})")
        about = "FlexAttention, compiled (default: on a GPU; on a CPU it compiles for minutes)"
        add("--flex", action=argparse.BooleanOptionalAction, default=None, help=about)

    def device(self, args: argparse.Namespace) -> torch.device:
        return torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def missing(self, args: argparse.Namespace) -> str:
        no_gpu = self.device(args).type == "cuda" and not torch.cuda.is_available()
        return "--device cuda: torch finds no GPU here" if no_gpu else ""

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        device, dtype = self.device(args), self._dtype(args)
        flex = self._flex(args)
        rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
        base = self._size(args)
        found: list[Case | Task] = []
        for case in cases(base, device=device.type, long=args.long):
            if self.picks and not self.picks(case):
                continue
            case = replace(case, dtype=dtype)
            is_stated = (base, device.type, dtype) == (BASE_CPU, "cpu", torch.float32) and case.name in TARGETS
            for direction in case.directions:
                targets = (TARGETS[case.name],) if is_stated and direction == TRAINING else ()
                rivals = partial(self.rivals, case, flex=flex, backward=direction == TRAINING)
                found.append(contest(case, direction, rivals, device=device, rounds=rounds, targets=targets))
        return found + (lowering.tasks() if self.is_whole(args) and not self.picks else [])

    def rivals(self, case: AttentionCase, inputs: Inputs, *, flex: bool, backward: bool) -> list[Rival]:
        """The rivals that can express the mask of the case, those of other libraries first."""
        leaves = inputs.leaves(backward=backward)
        with torch.set_grad_enabled(backward):
            took = plan(*leaves, mask=case.make_mask()).engine
        on_cpu = leaves[0].device.type == "cpu"
        found = [Rival(DENSE, _dense)]
        if case.plain is not None:
            found.insert(0, Rival(PLAIN, _plain))
        if case.q_len * case.k_len <= NAIVE_PAIRS and case.q_len > 1:
            found.append(Rival(NAIVE, _naive))
        if flex:
            found.append(Rival(FLEX, _flex, has_backward=not on_cpu))
        found.append(Rival(AUTO, partial(_ours, engine="auto"), note=f"took {took}"))
        # The engine that "auto" takes need not run twice; `blocks` does, to show how large the noise is.
        engines = [each for each in ("blocks", "sdpa") if each != took or each == "blocks"]
        found += [Rival(f"{OURS} {engine}", partial(_ours, engine=engine)) for engine in engines]
        if flex and took != "flex":
            found.append(Rival(f"{OURS} flex", partial(_ours, engine="flex"), has_backward=not on_cpu))
        return found

    def file_suffix(self, args: argparse.Namespace) -> str:
        base, dtype = self._size(args), self._dtype(args)
        usual = BASE_CUDA if self.device(args).type == "cuda" else BASE_CPU
        words = [_name_of(dtype)] * (dtype != torch.float32) + str(base).lower().split() * (base != usual)
        return self.suffix + "".join(f"-{word}" for word in words)

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        device = self.device(args)
        about = [f"{self._size(args)}, {_name_of(self._dtype(args))}, {device.type}"]
        if not self._flex(args):
            about.append("FlexAttention was left out (--flex includes it: it compiles for minutes)")
        elif device.type == "cpu":
            about.append("FlexAttention has no backward on a CPU, so it is in the forward tables only")
        outcomes = outcomes_of(results)
        tables = []
        for direction in (FORWARD, TRAINING):
            for is_long in (False, True):
                some = [each for each in outcomes_of(results, direction) if each.case.facts["long"] == is_long]
                if some:
                    tables.append((f"{direction}{', long' if is_long else ''}", table_of(some, device)))
        if lowered := [each for each in results if isinstance(each, lowering.Lowered)]:
            tables.append(("making a mask", lowering.table_of(lowered)))
        verdicts = [text for each in outcomes for text in each.verdicts()]
        verdicts = verdicts or [f"not judged: targets are stated for {BASE_CPU}, float32, on a CPU"]
        return Report(about, tables, verdicts, LEGEND, any_wrong(outcomes))

    def _dtype(self, args: argparse.Namespace) -> torch.dtype:
        return DTYPES[args.dtype or ("bfloat16" if self.device(args).type == "cuda" else "float32")]

    def _flex(self, args: argparse.Namespace) -> bool:
        return self.device(args).type == "cuda" if args.flex is None else args.flex

    def _size(self, args: argparse.Namespace) -> Size:
        usual = BASE_CUDA if self.device(args).type == "cuda" else BASE_CPU
        length = args.length or (QUICK_LENGTH if args.quick else usual.length)
        return Size(args.batch or usual.batch, args.heads or usual.heads, length, args.dim or usual.dim)


def table_of(outcomes: Sequence[Outcome], device: torch.device) -> Table:
    """All cases in one direction: a line per case, followed by a line per contestant."""
    headers = ("case", "ms", "quartiles", "vs dense", "vs causal", "first ms", "note")
    rows = []
    for outcome in outcomes:
        loud = f"disturbed in {outcome.loud} of {outcome.rounds} rounds" if outcome.loud else ""
        rows.append((f"{outcome.case.name}, {outcome.case.facts['sizes']}", *[""] * (len(headers) - 2), loud))
        for row in outcome.rows:
            is_auto = row.name == AUTO and row.samples
            note = verdict_on_auto(outcome, compiles=device.type != "cpu") if is_auto else row.note
            rows.append((f"  {row.name}", *_numbers(outcome, row), note))
    return Table(headers, rows, last_is_words=True)


def _numbers(outcome: Outcome, row: Row) -> tuple[str, ...]:
    first = "-" if row.first_ms is None or outcome.case.part != FORWARD else ms(row.first_ms)
    if not row.samples:
        return "-", "-", "-", "-", first
    low, high = row.quartiles
    ratios = (ratio(outcome.times_faster(row.name, than=rival)) for rival in (DENSE, PLAIN))
    return ms(row.median), f"{ms(low)} - {ms(high)}", *ratios, first


def verdict_on_auto(outcome: Outcome, *, compiles: bool) -> str:
    """Whether "auto" took the fastest of our engines in this run.

    On a CPU "auto" never makes a user wait for a compiler, so an engine that compiles is only mentioned.
    """
    took = next(row.note for row in outcome.rows if row.name == AUTO)
    ahead = {
        row.name.removeprefix(f"{OURS} "): faster
        for row in outcome.rows
        if row.name.startswith(OURS) and row.name not in (AUTO, took.replace("took", OURS))
        if (faster := outcome.times_faster(row.name, than=AUTO)) is not None and faster > NOISE
    }
    compiled = 0.0 if compiles else ahead.pop("flex", 0.0)
    compiled_note = f" (flex, compiled: {compiled:.1f}x)" if compiled else ""
    if not ahead:
        return f"{took}: best{compiled_note}"
    best = max(ahead, key=lambda name: ahead[name])
    return f"{took}: {best} is {ahead[best]:.1f}x as fast{compiled_note}"


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# The rivals.


def _plain(case: AttentionCase, device: torch.device) -> Attention:
    return partial(F.scaled_dot_product_attention, **(case.plain or {}))


def _dense(case: AttentionCase, device: torch.device) -> Attention:
    return partial(F.scaled_dot_product_attention, attn_mask=case.dense(device))


def _naive(case: AttentionCase, device: torch.device) -> Attention:
    hidden = ~case.dense(device)

    def naive(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value

    return naive


def _flex(case: AttentionCase, device: torch.device) -> Attention:
    import torch._dynamo.config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    assert case.rule is not None
    # Dynamo counts each mask as a recompilation of the same function and gives up after a few.
    torch._dynamo.config.recompile_limit = RECOMPILATIONS
    batch = case.batch if case.differs_by_item else None
    blocks = create_block_mask(case.rule, batch, None, case.q_len, case.k_len, device=device.type)
    # On a CPU, code generated for a dynamic length does not compile with documents (torch 2.13).
    return partial(torch.compile(flex_attention, dynamic=False, fullgraph=True), block_mask=blocks)


def _ours(case: AttentionCase, device: torch.device, *, engine: str) -> Attention:
    return partial(attend, mask=case.make_mask(), engine=engine)


# The masks and sizes.


def cases(size: Size, *, device: str = "cpu", long: bool = False) -> list[AttentionCase]:
    """All cases at a base size, except those with a size in their name."""
    found = [*_square(size, device), *_batched(size, device), *_decoding(size, device), *_small(device)]
    return found + (_long(device) if long else [])


def _square(size: Size, device: str, suffix: str = "") -> list[AttentionCase]:
    back, each = min(128, max(2, size.length // 4)), min(256, max(2, size.length // 4))
    shape = (size.batch, size.heads, size.length, size.length, size.dim)

    def case(name: str, make_mask: Callable[[], Mask], rule: Rule, plain: dict[str, bool] | None = None):
        return AttentionCase(name + suffix, make_mask, *shape, rule=rule, plain=plain)

    ids = torch.arange(size.length) // each
    uneven = _uneven_ids(size.length)
    first = size.length // 4
    return [
        case("causal", causal, lambda b, h, q, k: k <= q, {"is_causal": True}),
        case("window", lambda: causal() & window(back), lambda b, h, q, k: (k <= q) & (q - k < back)),
        case("documents", lambda: causal() & documents(ids), _same_document(ids.to(device))),
        case("uneven documents", lambda: causal() & documents(uneven), _same_document(uneven.to(device))),
        case("prefix-LM", lambda: causal() | prefix(first), lambda b, h, q, k: (k <= q) | (k < first)),
        case(
            "sinks + window",
            lambda: causal() & (window(back) | prefix(4)),
            lambda b, h, q, k: (k <= q) & ((q - k < back) | (k < 4)),
        ),
    ]


def _batched(size: Size, device: str) -> list[AttentionCase]:
    """Batches whose items differ: padded on either side, or packed differently."""
    length, batch = max(8, size.length // 2), len(RAGGED) * size.batch
    shape = (batch, size.heads, length, length, size.dim)
    lengths = torch.tensor([share * length // 8 for share in RAGGED] * size.batch)
    position = torch.arange(length)
    right, left = position < lengths[:, None], position >= length - lengths[:, None]
    ids = torch.stack([_uneven_ids(length, start=item) for item in range(batch)])

    def case(name: str, mask: Callable[[], Mask], rule: Rule, real: Tensor | None = None) -> AttentionCase:
        return AttentionCase(name, mask, *shape, rule=rule, read=real, differs_by_item=True)

    # With padding on the right no real query can hear it, so is_causal alone is correct for the rows that are used.
    padded_right = case("padding right", lambda: causal() & padding(lengths), _causal_and_real(right.to(device)), right)
    return [
        replace(padded_right, plain={"is_causal": True}),
        case("padding left", lambda: causal() & padding(left), _causal_and_real(left.to(device)), left),
        case("packed batch", lambda: causal() & documents(ids), _same_document_of_item(ids.to(device))),
    ]


def _decoding(size: Size, device: str) -> list[AttentionCase]:
    """One new token over a cache."""
    length, back, batch = size.length, min(128, max(2, size.length // 4)), 2 * len(RAGGED) * size.batch
    lengths = torch.tensor([share * length // 8 for share in RAGGED] * (2 * size.batch))
    real = torch.arange(length) >= length - lengths[:, None]
    on_device = real.to(device)

    def case(name: str, mask: Callable[[], Mask], rule: Rule, batch: int = size.batch) -> AttentionCase:
        return AttentionCase(name, mask, batch, size.heads, 1, length, size.dim, rule=rule, trains=False)

    ragged = case("decode ragged", lambda: causal() & padding(real), lambda b, h, q, k: on_device[b, k], batch)
    return [
        replace(case("decode", causal, lambda b, h, q, k: k >= 0), plain={}),
        case("decode window", lambda: causal() & window(back), lambda b, h, q, k: k >= length - back),
        replace(ragged, differs_by_item=True),
    ]


def _small(device: str) -> list[AttentionCase]:
    """Sizes where call overhead dominates; "auto" has a separate rule for them."""
    found = []
    for batch, heads, length, dim in ((12, 4, 64, 32), (8, 4, 128, 32), (8, 6, 256, 64), (4, 8, 512, 64)):
        size = Size(batch, heads, length, dim)
        by_name = {case.name: case for case in _square(size, device, suffix=f" L{length}")}
        found += [by_name[f"{name} L{length}"] for name in ("causal", "window", "documents")]
        if length == 256:
            packed = next(case for case in _batched(Size(2, heads, 2 * length, dim), device) if "packed" in case.name)
            found.append(replace(packed, name="packed batch L256"))
    return found


def _long(device: str) -> list[AttentionCase]:
    chosen = ("causal L8192", "window L8192", "documents L8192")
    return [case for case in _square(Size(1, 4, 8192, 64), device, suffix=" L8192") if case.name in chosen]


def _uneven_ids(length: int, start: int = 0) -> Tensor:
    """A document id per position; `start` rotates the list of lengths."""
    shares = UNEVEN[start % len(UNEVEN) :] + UNEVEN[: start % len(UNEVEN)]
    edges = torch.tensor([length * share // sum(UNEVEN) for share in accumulate(shares)])
    return torch.bucketize(torch.arange(length), edges, right=True)


def _same_document(ids: Tensor) -> Rule:
    return lambda b, h, q, k: (k <= q) & (ids[q] == ids[k])


def _same_document_of_item(ids: Tensor) -> Rule:
    return lambda b, h, q, k: (k <= q) & (ids[b, q] == ids[b, k])


def _causal_and_real(real: Tensor) -> Rule:
    return lambda b, h, q, k: (k <= q) & real[b, k]


SUITES = (
    AttentionSuite("attention", "Bench"),
    AttentionSuite("decode", "Decoding one token", "-decode", picks=lambda case: case.q_len == 1),
)
