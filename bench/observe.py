"""Seeing the attention of a model as its input grows: what watching costs, and where returned weights end.

    python -m bench observe              # 1,024 to 32,768 tokens, and 131,072 for one layer; about ten minutes
    python -m bench observe --quick      # up to 4,096

A Llama of 4 layers with 8 heads of 64 features reads random tokens on SDPA: plain, watched by `observe`, and with eager
attention that returns its weights. Each runs in a process of its own, for its peak of memory. Eager attention is run
where its weights fit into what is free, and predicted where they do not. The output of the watched run must be that of
the plain one, bit for bit, and what keys received must agree with eager's weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

from bench import results
from bench.noise import Neighbours
from bench.table import Table

LENGTHS, QUICK_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768), (1024, 4096)
HEAD_DIM, GIB = 64, 2**30
PLAIN, WATCHED, EAGER = "plain", "watched", "eager"
# What watching may add to the peak of a model at 32,768 tokens.
ADDED_GIB = 1.5
# Eager attention holds the mask, what all layers return and, of the layer that runs, its scores. Where it could be run
# that was its peak, to a few percent.
WORKING_COPIES = 1


@dataclass(frozen=True)
class Case:
    """One run: so many tokens through so many layers of so many heads."""

    mode: str
    length: int
    layers: int
    heads: int

    @property
    def eager_gib(self) -> float:
        """What weights of float32 would take: all layers returned, the scores of one, the mask."""
        one = self.length**2 * 4
        return (self.layers * self.heads * one + WORKING_COPIES * self.heads * one + one) / GIB


@dataclass(frozen=True)
class Outcome:
    """One forward pass: processor seconds, peak of memory in GiB, the output's hash, what the first keys received."""

    case: Case
    seconds: float
    peak: float
    output: str
    received: list[float]


def run(case: Case) -> Outcome:
    """In this process: one forward pass after a short one that warms up."""
    from transformers import LlamaConfig, LlamaModel

    from rearview.observe import observe

    torch.manual_seed(0)
    width = case.heads * HEAD_DIM
    options: dict[str, Any] = {"attn_implementation": EAGER if case.mode == EAGER else "sdpa"}
    model = LlamaModel(
        LlamaConfig(
            vocab_size=256,
            hidden_size=width,
            intermediate_size=width,
            num_hidden_layers=case.layers,
            num_attention_heads=case.heads,
            num_key_value_heads=case.heads,
            max_position_embeddings=case.length,
            **options,
        )
    ).eval()
    # Weights larger than at the start of a training, so that attention is not all alike.
    with torch.inference_mode():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
        tokens = torch.randint(0, 256, (1, case.length))
        model(tokens[:, :64], use_cache=False)
        start, received = time.process_time(), torch.zeros(0)
        if case.mode == WATCHED:
            with observe(model, keep=None) as seen:
                out = model(tokens, use_cache=False)
            seconds, received = time.process_time() - start, seen.received(0, 0)
        else:
            out = model(tokens, use_cache=False, output_attentions=case.mode == EAGER)
            seconds = time.process_time() - start
            if case.mode == EAGER:
                received = out.attentions[0][0, 0].sum(0)
    output = hashlib.sha256(out.last_hidden_state.numpy().tobytes()).hexdigest()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    return Outcome(case, seconds, peak, output, received[:64].tolist())


def measured(case: Case, *, show: bool = True) -> Outcome | str:
    """The same in a process of its own; in words why there is none."""
    command = [sys.executable, "-m", "bench.observe", json.dumps(asdict(case))]
    start = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        while True:
            try:
                text, errors = child.communicate(timeout=1 if sys.stderr.isatty() else 30)
                break
            except subprocess.TimeoutExpired:
                if show:
                    _progress(case, f"{time.monotonic() - start:.0f} s")
            except KeyboardInterrupt:
                child.kill()
                raise
    if child.returncode:
        return (errors.strip().splitlines() or [f"ended with {child.returncode}"])[-1]
    found = json.loads(text.splitlines()[-1])
    return Outcome(**{**found, "case": case})


def _progress(case: Case, text: str) -> None:
    line = f"{case.mode}, {case.length:,} tokens, {case.layers} layers x {case.heads} heads: {text}"
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    else:
        print(line, file=sys.stderr, flush=True)


def free_gib() -> float:
    """Memory that a new process can have, where the system says it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024 / GIB


def compared(length: int, layers: int, heads: int) -> tuple[list[str], list[Outcome], list[str]]:
    """A row of the table, what was measured, and what was wrong."""
    found: dict[str, Outcome] = {}
    words: dict[str, str] = {}
    for mode in (PLAIN, WATCHED, EAGER):
        case = Case(mode, length, layers, heads)
        if mode == EAGER and case.eager_gib > 0.8 * free_gib():
            words[mode] = f"would need {case.eager_gib:,.0f} GiB"
            continue
        _progress(case, "begins")
        outcome = measured(case)
        if isinstance(outcome, str):
            words[mode] = outcome
        else:
            found[mode] = outcome
    wrong = _wrong(found)
    plain, watched, eager = (found.get(mode) for mode in (PLAIN, WATCHED, EAGER))

    def shown(outcome: Outcome | None, mode: str) -> list[str]:
        return [words.get(mode, "-"), ""] if outcome is None else [f"{outcome.seconds:.1f}", f"{outcome.peak:.2f}"]

    added = f"{watched.peak - plain.peak:+.2f}" if plain and watched else "-"
    times = f"{watched.seconds / plain.seconds:.1f}x" if plain and watched else "-"
    size = f"{layers} x {heads}"
    row = [f"{length:,}", size, *shown(plain, PLAIN), *shown(watched, WATCHED), added, times, *shown(eager, EAGER)]
    return row, list(found.values()), [f"{length:,} tokens: {why}" for why in wrong]


def _wrong(found: dict[str, Outcome]) -> list[str]:
    wrong = []
    if PLAIN in found and WATCHED in found and found[PLAIN].output != found[WATCHED].output:
        wrong.append("WRONG: watching changed what the model computed")
    if WATCHED in found and EAGER in found:
        one, other = (torch.tensor(found[mode].received) for mode in (WATCHED, EAGER))
        if not torch.allclose(one, other, atol=1e-3, rtol=1e-3):
            wrong.append("WRONG: what keys received is not what eager's weights say")
    return wrong


def verdict(outcomes: list[Outcome]) -> str:
    """Does watching 32,768 tokens stay within what it may add?"""
    peaks = {o.case.mode: o.peak for o in outcomes if (o.case.length, o.case.layers) == (LENGTHS[-1], 4)}
    if PLAIN not in peaks or WATCHED not in peaks:
        return f"not judged: {LENGTHS[-1]:,} tokens were not run"
    added = peaks[WATCHED] - peaks[PLAIN]
    word = "met" if added <= ADDED_GIB else "NOT MET"
    return f"{word}: watching {LENGTHS[-1]:,} tokens adds {added:.2f} GiB to the peak, at most {ADDED_GIB} GiB asked"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench observe", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="up to 4,096 tokens; keeps no file")
    parser.add_argument("--threads", type=int, help="threads of torch (default: its own choice)")
    parser.add_argument("--no-save", action="store_true", help="keep no file in bench/results/")
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    machine, start, neighbours = results.Machine.here(torch.device("cpu")), time.monotonic(), Neighbours()
    sizes = [(length, 4, 8) for length in (QUICK_LENGTHS if args.quick else LENGTHS)]
    sizes += [] if args.quick else [(131072, 1, 2)]
    rows, outcomes, wrong = [], [], []
    for size in sizes:
        row, found, errors = compared(*size)
        rows.append(row)
        outcomes += found
        wrong += errors
    share = neighbours.share()
    about = [
        *machine.lines(torch.get_num_threads()),
        "a Llama on SDPA, heads of 64 features, float32; observe() with a map of 64 x 64 and 32 links a head",
        f"it took {time.monotonic() - start:.0f} s; other programs used "
        + ("an unknown part" if share is None else f"{100 * share:.0f} %")
        + " of the processors meanwhile",
    ]
    headers = ("tokens", "layers x heads", "plain s", "GiB", "watched s", "GiB", "added GiB", "times", "eager s", "GiB")
    table, judged = Table(headers, rows), [*wrong, verdict(outcomes)]
    legend = (
        "plain: the model alone on SDPA; watched: inside observe(); eager: output_attentions=True, which returns all "
        "weights. s: processor seconds, all threads together. GiB: the peak of the process, Python and torch included; "
        "added: watched over plain. Single runs."
    )
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print("\n".join(about), "", sep="\n")
    table.show()
    print("", legend, "", *judged, sep="\n")
    if not (args.quick or args.no_save):
        path = results.RESULTS / results.file_name(machine, today=date.today(), suffix="-observe")
        parts = [f"# Observe, {date.today().isoformat()}", "\n".join(f"- {line}" for line in about)]
        parts += [table.markdown(), legend, "## targets\n\n" + "\n".join(f"- {line}" for line in judged)]
        results.write(path, "\n\n".join(parts) + "\n")
        print(f"\nkept in bench/results/{path.name}")
    return int(bool(wrong))


if __name__ == "__main__":
    given: dict[str, Any] = json.loads(sys.argv[1])
    print(json.dumps(asdict(run(Case(**given)))))
