"""Random calls of `attend`, on every engine, against the formula in float64, which is written down a second time here.

A case draws a mask, shapes, a dtype, values and options. Each engine then computes it from tensors that lie differently
in memory, on different numbers of threads and instruction sets, alone or in several Python threads at once. A case is
repeated by its number:

    python -c "from bench.soak.attend_calls import repeat; repeat('17 1234')"
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.soak.attention_masks import Rule, Sizes, random_mask
from bench.soak.experiment import Experiment, Session, Tally
from rearview import Mask, Pages, Unsupported, alibi, attend
from rearview.attention.engines import native

ENGINES = ("auto", "native", "blocks", "sdpa", "reference")
DTYPES = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
PYTHON_THREADS = 4


@dataclass(frozen=True)
class Drawn:
    """A call: query [batch, heads, q_len, dim], and key and value of which each item has the first `lengths`."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask
    # [batch, heads, q_len, k_len], from the rule.
    seen: Tensor
    positions: Tensor
    options: dict[str, Any] = field(default_factory=dict)
    slopes: Tensor | None = None
    has_gradients: bool = False

    @property
    def group(self) -> int:
        return self.query.shape[1] // self.key.shape[1]

    @property
    def unheard(self) -> Tensor:
        """[batch, key heads, k_len]: the keys that no query of their group may hear."""
        batch, heads, _, k_len = self.seen.shape
        return ~self.seen.any(2).view(batch, heads // self.group, self.group, k_len).any(2)

    @property
    def title(self) -> str:
        shapes = " ".join(str(list(each.shape)) for each in (self.query, self.key, self.value))
        return f"{self.mask!r:.200}, {self.query.dtype}, {shapes}, {sorted(self.options)}"


@dataclass(frozen=True)
class Answer:
    out: Tensor
    lse: Tensor
    gradients: tuple[Tensor, ...] = ()


def drawn(draw: random.Random) -> Drawn:
    batch, key_heads, group = draw.randint(1, 3), draw.choice([1, 1, 2, 3]), draw.choice([1, 1, 2, 4])
    k_len = draw.randint(1, draw.choice([8, 20, 20, 40, 40, 90, 300]))
    q_len = draw.choice([k_len, k_len, 1, draw.randint(1, k_len)])
    dim, value_dim = _dim(draw), _dim(draw) if draw.random() < 0.2 else None
    if key_heads * group * batch * q_len * k_len > 60_000:
        batch = key_heads = 1
    dtype = draw.choice(DTYPES)
    normal = _normal(draw)
    query = normal(batch, key_heads * group, q_len, dim).to(dtype)
    key = normal(batch, key_heads, k_len, dim).to(dtype)
    value = normal(batch, key_heads, k_len, value_dim or dim).to(dtype)
    if draw.random() < 0.1:
        # As a tensor that is expanded over its items or heads.
        axis = draw.randint(0, 1)
        key, value = (each.narrow(axis, 0, 1).expand(each.shape) for each in (key, value))
    options, positions, lengths = _placed(draw, batch, q_len, k_len)
    length = max(k_len, int(positions.max()) + 1)
    mask, rule = random_mask(draw, Sizes(batch, key_heads * group, length))
    slopes = _scores(draw, options, query, key)
    return Drawn(
        query,
        key,
        value,
        mask,
        _seen(rule, positions, lengths, key_heads * group, k_len),
        positions,
        options,
        slopes,
        has_gradients=draw.random() < 0.15 and dtype in (torch.float32, torch.float64) and "lengths" not in options,
    )


def _dim(draw: random.Random) -> int:
    return draw.choice([1, 3, 8, 16, 16, 32, 64, draw.randint(1, 40), 80, 128])


def _normal(draw: random.Random) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(draw.getrandbits(48))
    return lambda *shape: torch.randn(shape, generator=generator)


def _placed(draw: random.Random, batch: int, q_len: int, k_len: int) -> tuple[dict[str, Any], Tensor, Tensor]:
    """The options that say where queries stand; their positions [batch, q_len], and the keys of each item."""
    steps, whole = torch.arange(q_len).expand(batch, -1), torch.full((batch, 1), k_len)
    kind = draw.random()
    if kind < 0.1:
        lengths = torch.tensor([[draw.randint(q_len, k_len)] for _ in range(batch)])
        return {"lengths": lengths.view(-1)}, lengths - q_len + steps, lengths
    if kind < 0.25:
        start = draw.randint(0, k_len)
        return {"q_start": start}, start + steps, whole
    return {}, k_len - q_len + steps, whole


def _scores(draw: random.Random, options: dict[str, Any], query: Tensor, key: Tensor) -> Tensor | None:
    """Adds options that change scores; returns the slopes of ALiBi, if it is among them."""
    batch, heads, q_len, dim = query.shape
    work = torch.float64 if query.dtype == torch.float64 else torch.float32
    normal, slopes = _normal(draw), None
    if draw.random() < 0.2:
        options["scale"] = draw.choice([0.0, -0.3, 1.0, 2.5, 1e-3, 1 / dim])
    if draw.random() < 0.15:
        options["softcap"] = draw.choice([0.5, 5.0, 30.0])
    if draw.random() < 0.15:
        options["sinks"] = normal(heads).to(work)
    kind = draw.random()
    if kind < 0.12:
        shape = [draw.choice([1, size]) for size in (batch, heads, q_len, key.shape[2])]
        options["bias"] = normal(*shape).to(work)
    elif kind < 0.25:
        options["bias"] = alibi(heads)
        # Slopes are float32, as documented.
        slopes = torch.tensor(_slopes(heads), dtype=torch.float32).double()
    if draw.random() < 0.1:
        options["batch_invariant"] = True
    return slopes


def _slopes(heads: int) -> list[float]:
    """https://arxiv.org/abs/2108.12409, and the authors' code for numbers of heads that are no power of two."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8 * (n + 1) / power) for n in range(power)]
    return first if power == heads else first + _slopes(2 * power)[0::2][: heads - power]


def _seen(rule: Rule, positions: Tensor, lengths: Tensor, heads: int, k_len: int) -> Tensor:
    batch, q_len = positions.shape
    items, head = torch.arange(batch).view(-1, 1, 1, 1), torch.arange(heads).view(1, -1, 1, 1)
    query, key = positions.view(batch, 1, q_len, 1), torch.arange(k_len).view(1, 1, 1, -1)
    found = rule(items, head, query, key) & (key < lengths.view(-1, 1, 1, 1))
    return found.expand(batch, heads, q_len, k_len)


def definition(call: Drawn) -> Answer:
    """softmax(softcap(scale x Q K^T) + bias, over the keys that are seen) x V, in float64."""
    inputs = [each.detach().double().requires_grad_(call.has_gradients) for each in (call.query, call.key, call.value)]
    query, key, value = inputs
    key, value = (each.repeat_interleave(call.group, dim=1) for each in (key, value))
    scale = call.options.get("scale", call.query.shape[-1] ** -0.5)
    scores = query @ key.transpose(-1, -2) * scale
    if (cap := call.options.get("softcap")) is not None:
        scores = cap * torch.tanh(scores / cap)
    if call.slopes is not None:
        distance = (call.positions.view(len(query), 1, -1, 1) - torch.arange(key.shape[2])).abs()
        scores = scores - call.slopes.view(1, -1, 1, 1) * distance
    elif "bias" in call.options:
        scores = scores + call.options["bias"].double()
    logits = scores.masked_fill(~call.seen, -math.inf)
    if "sinks" in call.options:
        sink = call.options["sinks"].double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        logits = torch.cat([logits, sink], dim=-1)
    lse = logits.detach().logsumexp(-1)
    logits = torch.where(lse.isinf().unsqueeze(-1), torch.zeros_like(logits), logits)
    weights = logits.softmax(-1)[..., : key.shape[2]] * call.seen
    out = weights @ value
    gradients = torch.autograd.grad(out.sin().sum(), inputs) if call.has_gradients else ()
    return Answer(out.detach(), lse, gradients)


def largest_score(call: Drawn) -> float:
    query, key = (each.double().norm(dim=-1).max().item() for each in (call.query, call.key))
    scale = abs(call.options.get("scale", call.query.shape[-1] ** -0.5))
    bias = 0.0 if call.slopes is None else float(call.slopes.max()) * call.seen.shape[-1]
    return query * key * scale + bias


def laid_out(tensor: Tensor, draw: random.Random) -> Tensor:
    """The same values, which lie differently in memory."""
    *others, rows, dim = tensor.shape
    match draw.randint(0, 6):
        case 0:
            return tensor.transpose(1, 2).contiguous().transpose(1, 2)
        case 1:
            return torch.nn.functional.pad(tensor, (0, draw.randint(1, 5)))[..., :dim]
        case 2:
            wide = torch.full((*others, rows, 2 * dim), math.nan, dtype=tensor.dtype)
            wide[..., ::2] = tensor
            return wide[..., ::2]
        case 3:
            # Not aligned.
            memory = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
            memory[1:] = tensor.flatten()
            return memory[1:].view(tensor.shape)
        case 4:
            return tensor.transpose(2, 3).contiguous().transpose(2, 3)
        case 5:
            # Every second row of a larger tensor.
            tall = torch.full((*others, 2 * rows, dim), math.nan, dtype=tensor.dtype)
            tall[..., ::2, :] = tensor
            return tall[..., ::2, :]
    return tensor


def with_junk(call: Drawn, draw: random.Random) -> tuple[Tensor, Tensor]:
    """Keys and values with NaN and infinities where no query of the call may hear them."""
    hole = call.unheard.unsqueeze(-1)
    junk = draw.choice([math.nan, math.inf, -math.inf])
    key, value = (torch.where(hole, junk, each).to(each.dtype) for each in (call.key, call.value))
    return key, value


def in_pages(call: Drawn, draw: random.Random) -> tuple[Tensor, Tensor, Pages]:
    """Keys and values in blocks, in any order, with NaN behind the last key of each item."""
    batch, _, k_len, _ = call.key.shape
    size = draw.choice([1, 4, 16, 32])
    blocks = -(-k_len // size)
    order = list(range(batch * blocks))
    draw.shuffle(order)
    pools = []
    for each in (call.key, call.value):
        padded = torch.nn.functional.pad(each, (0, 0, 0, blocks * size - k_len), value=math.nan)
        # [batch, heads, blocks, size, dim] -> [batch x blocks, heads, size, dim]
        split = padded.unflatten(2, (blocks, size)).transpose(1, 2).flatten(0, 1)
        pool = torch.empty_like(split)
        pool[order] = split
        pools.append(pool)
    table = torch.tensor(order).view(batch, blocks)
    lengths = call.options.get("lengths", torch.full((batch,), k_len))
    return pools[0], pools[1], Pages(table, lengths.tolist())


def answers(call: Drawn, engine: str, draw: random.Random) -> Answer:
    """What an engine computes, from tensors that lie somehow in memory."""
    key, value = with_junk(call, draw) if draw.random() < 0.3 else (call.key, call.value)
    options = dict(call.options)
    # With pages the longest item decides how many keys a bias has.
    paged = "q_start" not in options and not ("lengths" in options and isinstance(options.get("bias"), Tensor))
    if paged and not call.has_gradients and draw.random() < 0.08:
        key, value, options["pages"] = in_pages(call, draw)
        options.pop("lengths", None)
        query = laid_out(call.query, draw)
    else:
        query, key, value = (laid_out(each, draw) for each in (call.query, key, value))
    inputs = [each.detach().requires_grad_(call.has_gradients) for each in (query, key, value)]
    out, lse = attend(*inputs, mask=call.mask, engine=engine, return_lse=True, **options)
    gradients = torch.autograd.grad(out.sin().sum(), inputs) if call.has_gradients else ()
    return Answer(out.detach(), lse.detach(), gradients)


def fault(call: Drawn, got: Answer, want: Answer) -> str:
    """What is wrong with an answer, or ""."""
    dtype = call.query.dtype
    score = largest_score(call)
    # Scores have errors of their own size; weights of half precision are rounded to it in some kernels.
    work = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    room = work * (64 + 4 * score + call.query.shape[-1]) + 6 * (torch.finfo(dtype).eps if dtype.itemsize == 2 else 0)
    if not bool(got.out.isfinite().all()):
        return "the output is not finite"
    error = (got.out.double() - want.out).abs()
    most = float(call.value.double().abs().max())
    if bool((error > room * most).any()):
        return f"the output is off by {float(error.max()):.3g}, allowed {room * most:.3g}"
    silent = ~call.seen.any(-1)
    if bool(got.out[silent].any()):
        return "a row that hears nothing is not 0"
    if not torch.equal(got.lse.isinf(), want.lse.isinf()) or bool(got.lse.isnan().any()):
        return "the log-sum-exp is infinite in other rows"
    error = torch.where(want.lse.isinf(), 0.0, (got.lse.double() - want.lse).abs())
    if bool((error > room * (2 + score)).any()):
        return f"the log-sum-exp is off by {float(error.max()):.3g}"
    # The gradient of a score is a difference, which may be 0, of numbers of this size.
    query, key, value = (float(each.double().norm(dim=-1).max()) for each in (call.query, call.key, call.value))
    scale = abs(call.options.get("scale", call.query.shape[-1] ** -0.5))
    cancelled = 8 * work * call.value.shape[-1] ** 0.5 * value * max(query, key) * max(scale, 1.0)
    for name, ours, theirs in zip(("query", "key", "value"), got.gradients, want.gradients, strict=False):
        if not bool(ours.isfinite().all()):
            return f"the gradient of the {name} is not finite"
        allowed = 60 * room * (1 + score) * (float(theirs.abs().max()) + 1e-3 * most) + cancelled
        if bool(((ours.double() - theirs).abs() > allowed).any()):
            return f"the gradient of the {name} is off by {float((ours.double() - theirs).abs().max()):.3g}"
    return ""


def hidden_is_heard(call: Drawn, engine: str, draw: random.Random) -> bool:
    """Whether a row changes in any bit as keys and values that it may not hear become other finite numbers."""
    item, head, row = (draw.randrange(size) for size in call.seen.shape[:3])
    place = head // call.group
    mates = call.seen[item, place * call.group : (place + 1) * call.group, row]
    hidden = ~mates.any(0)
    key, value = call.key.clone(), call.value.clone()
    key[item, place, hidden] = draw.choice([0.0, 100.0, -100.0])
    value[item, place, hidden] = draw.choice([0.0, 100.0, -100.0])
    before, after = (
        attend(call.query, *pair, mask=call.mask, engine=engine, **call.options)
        for pair in ((call.key.contiguous(), call.value.contiguous()), (key, value))
    )
    return not torch.equal(before[item, head, row], after[item, head, row])


def tried(call: Drawn, name: str, tally: Tally, draw: random.Random) -> None:
    want = definition(call)
    for engine in ENGINES:
        try:
            if draw.random() < 0.01:
                draws = [random.Random(draw.getrandbits(48)) for _ in range(PYTHON_THREADS)]
                with ThreadPoolExecutor(PYTHON_THREADS) as pool:
                    got = list(pool.map(partial(answers, call, engine), draws))
                tally.tried["of these, several at once in Python threads"] += len(got)
            else:
                got = [answers(call, engine, draw)]
            tally.tried["calls"] += len(got)
            tally.tried["of these, with gradients"] += len(got) * call.has_gradients
            wrong = next(filter(None, (fault(call, each, want) for each in got)), "")
            if not wrong and draw.random() < 0.04:
                tally.tried["rows compared bit by bit after hidden keys changed"] += 1
                wrong = "a row changed with keys that it may not hear" * hidden_is_heard(call, engine, draw)
        except Unsupported as refusal:
            tally.found["refused, with reasons"] += 1
            wrong = "" if refusal.reasons and engine != "auto" else f"refused: {refusal}"
            # Only the kernel has batch-invariant sums, and not for every call.
            wrong = "" if call.options.get("batch_invariant") and refusal.reasons else wrong
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            tally.fail(f"case '{name}', engine {engine}, {native.isa()}: {wrong}; {call.title}")


def _machines(draw: random.Random) -> Generator[None, None, None]:
    """Changes the instruction set and the number of threads from time to time."""
    threads = torch.get_num_threads()
    try:
        while True:
            native.force_isa(draw.choice(native.isas()) if native.isas() else None)
            torch.set_num_threads(draw.choice([threads] * 28 + [2, 3]))
            yield
    finally:
        if native.isas():
            native.force_isa(None)
        torch.set_num_threads(threads)


def try_calls(tally: Tally, session: Session) -> None:
    seed, machines = session.draw.getrandbits(32), _machines(session.draw)
    number = 0
    try:
        while session.goes_on(tally):
            if number % 50 == 0:
                next(machines)
            case(seed, number, tally)
            number += 1
    finally:
        machines.close()


def case(seed: int, number: int, tally: Tally) -> None:
    name = f"{seed} {number}"
    draw = random.Random(name)
    tried(drawn(draw), name, tally, draw)


def repeat(name: str) -> None:
    """Print what is wrong in a case that an earlier run has named."""
    tally = Tally()
    seed, number = name.split()
    case(int(seed), int(number), tally)
    print("\n".join(tally.failures) or "nothing is wrong")


EXPERIMENT = Experiment(
    "attend calls",
    "Every engine gives what the formula gives in float64, up to rounding, or refuses with its reasons.",
    try_calls,
    share=3.0,
    quick=400,
)
