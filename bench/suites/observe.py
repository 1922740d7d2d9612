"""The cost of watching a model as its input grows, and the length where returned weights no longer fit.

A Llama of 4 layers with 8 heads of 64 features reads random tokens on SDPA: plain, watched by `observe`, and with eager
attention that returns its weights. Each runs in a separate process, for its peak memory. Eager attention is run
where its weights fit into the free memory, and predicted where they do not. The output of the watched run must be that
of the plain one, bit for bit, and what keys received must agree with eager's weights.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from bench.harness import Case, Report, Settings, Suite, Task
from bench.process import Failed, free_bytes, in_own_process, peak
from bench.table import Table

LENGTHS, QUICK_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768), (1024, 4096)
HEAD_DIM, GIB = 64, 2**30
PLAIN, WATCHED, EAGER = "plain", "watched", "eager"
# The most that watching may add to the peak memory of a model at 32,768 tokens.
ADDED_GIB = 1.5
# Eager attention holds the mask, the weights of all layers, and the scores of the running layer. This predicts its
# measured peak within a few percent.
WORKING_COPIES = 1

HEADERS = ("tokens", "layers x heads", "plain s", "GiB", "watched s", "GiB", "added GiB", "times", "eager s", "GiB")
LEGEND = (
    "plain: the model alone on SDPA; watched: inside observe(); eager: output_attentions=True, which returns all "
    "weights. s: processor seconds, all threads together. GiB: the peak of the process, Python and torch included; "
    "added: watched over plain. Single runs."
)


@dataclass(frozen=True)
class Size:
    length: int
    layers: int
    heads: int

    def __str__(self) -> str:
        return f"{self.length:,} tokens, {self.layers} layers x {self.heads} heads"

    @property
    def eager_gib(self) -> float:
        """The memory of eager attention in float32: the weights of all layers, the scores of one, the mask."""
        one = self.length**2 * 4
        return (self.layers * self.heads * one + WORKING_COPIES * self.heads * one + one) / GIB


@dataclass(frozen=True)
class Pass:
    """One forward pass: processor seconds, peak of memory in GiB, the output's hash, what the first keys received."""

    seconds: float
    peak: float
    output: str
    received: list[float]


@dataclass(frozen=True)
class Compared:
    """The passes at one size, by mode; or the reason why there is none."""

    size: Size
    passes: dict[str, Pass]
    words: dict[str, str]

    def wrong(self) -> list[str]:
        found, wrong = self.passes, []
        if PLAIN in found and WATCHED in found and found[PLAIN].output != found[WATCHED].output:
            wrong.append("watching changed what the model computed")
        if WATCHED in found and EAGER in found:
            one, other = (torch.tensor(found[mode].received) for mode in (WATCHED, EAGER))
            if not torch.allclose(one, other, atol=1e-3, rtol=1e-3):
                wrong.append("what keys received is not what eager's weights say")
        return [f"WRONG: {self.size.length:,} tokens: {why}" for why in wrong]

    def row(self) -> list[str]:
        plain, watched = self.passes.get(PLAIN), self.passes.get(WATCHED)
        added = f"{watched.peak - plain.peak:+.2f}" if plain and watched else "-"
        times = f"{watched.seconds / plain.seconds:.1f}x" if plain and watched else "-"
        first, second, third = (self._shown(mode) for mode in (PLAIN, WATCHED, EAGER))
        size = f"{self.size.layers} x {self.size.heads}"
        return [f"{self.size.length:,}", size, *first, *second, added, times, *third]

    def _shown(self, mode: str) -> list[str]:
        found = self.passes.get(mode)
        return [self.words.get(mode, "-"), ""] if found is None else [f"{found.seconds:.1f}", f"{found.peak:.2f}"]


def run(mode: str, length: int, layers: int, heads: int) -> dict[str, Any]:
    """Run one forward pass in this process, after a short one as warm-up."""
    from transformers import LlamaConfig, LlamaModel

    from rearview.observation import observe

    torch.manual_seed(0)
    width = heads * HEAD_DIM
    options: dict[str, Any] = {"attn_implementation": EAGER if mode == EAGER else "sdpa"}
    model = LlamaModel(
        LlamaConfig(
            vocab_size=256,
            hidden_size=width,
            intermediate_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=length,
            **options,
        )
    ).eval()
    # Larger weights than at the start of training, so that attention is not uniform.
    with torch.inference_mode():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
        tokens = torch.randint(0, 256, (1, length))
        model(tokens[:, :64], use_cache=False)
        start, received = time.process_time(), torch.zeros(0)
        if mode == WATCHED:
            with observe(model, keep=None) as seen:
                out = model(tokens, use_cache=False)
            seconds, received = time.process_time() - start, seen.received(0, 0)
        else:
            out = model(tokens, use_cache=False, output_attentions=mode == EAGER)
            seconds = time.process_time() - start
            if mode == EAGER:
                received = out.attentions[0][0, 0].sum(0)
    output = hashlib.sha256(out.last_hidden_state.numpy().tobytes()).hexdigest()
    highest = peak()
    return asdict(Pass(seconds, math.nan if highest is None else highest / GIB, output, received[:64].tolist()))


def compared(size: Size, settings: Settings) -> Compared:
    """All modes at one size; eager attention only if it fits into the free memory."""
    passes: dict[str, Pass] = {}
    words: dict[str, str] = {}
    for mode in (PLAIN, WATCHED, EAGER):
        if mode == EAGER and size.eager_gib * GIB > 0.8 * free_bytes():
            words[mode] = f"would need {size.eager_gib:,.0f} GiB"
            continue
        settings.progress(mode)
        try:
            passes[mode] = Pass(**in_own_process(f"{__name__}:run", settings.progress, mode=mode, **asdict(size)))
        except Failed as failure:
            words[mode] = str(failure)
    return Compared(size, passes, words)


def verdict(found: Sequence[Compared]) -> str:
    """Whether watching 32,768 tokens stays within the memory target."""
    stated = next((each.passes for each in found if each.size == Size(LENGTHS[-1], 4, 8)), {})
    if PLAIN not in stated or WATCHED not in stated:
        return f"not judged: {LENGTHS[-1]:,} tokens were not run"
    added = stated[WATCHED].peak - stated[PLAIN].peak
    word = "met" if added <= ADDED_GIB else "NOT MET"
    return f"{word}: watching {LENGTHS[-1]:,} tokens adds {added:.2f} GiB to the peak, asked at most {ADDED_GIB} GiB"


class ObserveSuite(Suite):
    name, title, suffix = "observe", "Observe", "-observe"

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        sizes = [Size(length, 4, 8) for length in (QUICK_LENGTHS if args.quick else LENGTHS)]
        sizes += [] if args.quick else [Size(131072, 1, 2)]
        return [Task(str(size), partial(compared, size)) for size in sizes]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        found = [each for each in results if isinstance(each, Compared)]
        wrong = [text for each in found for text in each.wrong()]
        about = ["a Llama on SDPA, heads of 64 features, float32; observe() with a map of 64 x 64 and 32 links each"]
        table = Table(HEADERS, [each.row() for each in found])
        return Report(about, [("", table)], [*wrong, verdict(found)], LEGEND, bool(wrong))


SUITES = (ObserveSuite(),)
