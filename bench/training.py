"""`python -m bench training`: whole training steps beside a plain PyTorch model's, and how well both learn.

The configuration is nanoGPT's for a CPU: 4 layers, 4 heads, 128 wide, context 64, batch 12, 2000 steps, characters, no
dropout. Both models see the same batches and take their steps in turn, so that a busy moment hits both.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn

from bench import results
from bench.noise import Neighbours
from bench.plain import PlainGPT
from rearview.models import GPT, GPTConfig
from rearview.text import CharTokenizer
from rearview.training import TextData, TrainConfig
from rearview.training.evaluate import evaluate
from rearview.training.objectives import NextToken
from rearview.training.schedule import learning_rate
from rearview.training.sources import read_texts
from rearview.training.trainer import Trainer

STEPS, QUICK_STEPS = 2000, 60
CONTEXT, LAYERS, HEADS, WIDTH = 64, 4, 4, 128
PLAIN = "plain PyTorch"
# Of tiny Shakespeare, whose first lines tell it from other texts; elsewhere the loss is printed and not judged.
SHAKESPEARE, WANTED_LOSS, WANTED_RATIO = "First Citizen:\nBefore we proceed any further", 1.89, 0.8


@dataclass
class Contestant:
    """`step(n)` takes training step n; `loss()` is the validation loss so far."""

    name: str
    step: Callable[[int], Tensor]
    loss: Callable[[], float]
    # A contestant that is only timed stops here.
    steps: int
    seconds: list[float] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 130 when stopped by hand, else 0."""
    args = _parser().parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    steps = args.steps or (QUICK_STEPS if args.quick else STEPS)
    # One document: the plain model knows no masks.
    text = "\n\n".join(each.text for each in read_texts(args.text))
    tokenizer = CharTokenizer.of([text])
    data = TextData.of([text], tokenizer)
    config = TrainConfig(steps=steps, batch=12, warmup=min(100, steps // 10), sample_every=0)
    # float32 is timed over a part of the run only: its loss is no question.
    timed = max(steps // 10, min(steps, 50))
    contestants = [
        _plain(data, config, steps),
        _ours(data, config, "auto", steps),
        _ours(data, config, "float32", timed),
        _plain(data, config, timed, autocast=True),
    ]
    start, neighbours = time.monotonic(), Neighbours()
    done = _race(contestants, steps)
    name = Path(args.text).name if args.text else "the English text that comes with Python"
    about = [
        *results.Machine.here(torch.device("cpu")).lines(torch.get_num_threads()),
        f"{name}: {data.characters} characters, {tokenizer.vocab_size} kinds; {done} of {steps} steps",
        f"it took {time.monotonic() - start:.0f} s; other programs used {100 * (neighbours.share() or 0):.0f} % of the "
        "processors meanwhile",
    ]
    known = text.startswith(SHAKESPEARE)
    lines = _table(contestants)
    verdicts = _verdicts(contestants, judged=known and done == STEPS)
    print("\n".join(about), "", *lines, "", *verdicts, sep="\n")
    if done == STEPS and not args.no_save:
        machine = results.Machine.here(torch.device("cpu"))
        path = results.RESULTS / results.file_name(machine, today=date.today(), suffix="-training")
        parts = [f"# Training steps, {date.today().isoformat()}", "\n".join(f"- {line}" for line in about)]
        results.write(path, "\n\n".join([*parts, "\n".join(lines), "\n".join(f"- {each}" for each in verdicts)]) + "\n")
        print(f"\nkept in bench/results/{path.name}")
    return 0 if done == steps else 130


def _race(contestants: list[Contestant], steps: int) -> int:
    """All take step 1, then all step 2; how many steps were taken."""
    for step in range(1, steps + 1):
        try:
            for each in contestants:
                if step <= each.steps:
                    start = time.perf_counter()
                    loss = each.step(step)
                    each.seconds.append(time.perf_counter() - start)
                    assert math.isfinite(float(loss)), f"{each.name} diverged"
        except KeyboardInterrupt:
            print("\nstopped; what was finished follows", file=sys.stderr)
            return step - 1
        if step % 100 == 0 or step == steps:
            end = "\n" if step == steps or not sys.stderr.isatty() else "\r"
            print(f"step {step} of {steps}", end=end, file=sys.stderr, flush=True)
    return steps


def _ours(data: TextData, config: TrainConfig, precision: str, steps: int) -> Contestant:
    model = _gpt(data, config)
    settings = TrainConfig.from_json({**config.to_json(), "precision": precision})
    trainer = Trainer(model, data, settings)
    dtype = str(trainer.dtype).removeprefix("torch.")
    return Contestant(f"rearview, {dtype}", lambda step: trainer.step(step)[0], lambda: _loss(model, data), steps)


def _gpt(data: TextData, config: TrainConfig) -> GPT:
    torch.manual_seed(config.seed)
    vocab_size = data.tokenizer.vocab_size
    return GPT(GPTConfig(vocab_size=vocab_size, context=CONTEXT, layers=LAYERS, heads=HEADS, width=WIDTH))


def _plain(data: TextData, config: TrainConfig, steps: int, *, autocast: bool = False) -> Contestant:
    torch.manual_seed(config.seed)
    vocab_size = data.tokenizer.vocab_size
    model = PlainGPT(vocab_size=vocab_size, context=CONTEXT, layers=LAYERS, heads=HEADS, width=WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(config.beta1, config.beta2), weight_decay=0.1)
    batches = Trainer(_gpt(data, config), data, config).batches

    def step(number: int) -> Tensor:
        batch = batches[number - 1]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(number, steps=config.steps, peak=config.lr, warmup=config.warmup, floor=0.1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(batch.tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        return loss.detach()

    name = f"{PLAIN}, {'bfloat16 autocast' if autocast else 'float32'}"
    return Contestant(name, step, lambda: _loss(model, data), steps)


def _loss(model: nn.Module, data: TextData) -> float:
    """Over the whole of the held-out text, in float32."""
    found = evaluate(
        model,
        NextToken(),
        data.validation,
        context=CONTEXT,
        most_tokens=len(data.validation),
        seed=0,
        dtype=torch.float32,
    )
    return found.loss


def _table(contestants: list[Contestant]) -> list[str]:
    base = contestants[0]
    lines = ["| model | ms a step | of plain PyTorch's | validation loss |", "|:--|--:|--:|--:|"]
    for each in contestants:
        loss = f"{each.loss():.4f}" if len(each.seconds) == len(base.seconds) else "timed only"
        ms = 1000 * statistics.median(each.seconds)
        lines.append(f"| {each.name} | {ms:.1f} | {_ratio(each, base):.2f} | {loss} |")
    return lines


def _ratio(one: Contestant, base: Contestant) -> float:
    """The median of the ratios of the same step."""
    return statistics.median(a / b for a, b in zip(one.seconds, base.seconds, strict=False))


def _verdicts(contestants: list[Contestant], *, judged: bool) -> list[str]:
    base, auto = contestants[:2]
    ratio, loss = _ratio(auto, base), auto.loss()
    if not judged:
        return ["targets are for tiny Shakespeare and 2000 steps: not judged"]
    return [
        f"{'met' if ratio <= WANTED_RATIO else 'MISSED'}: a step in {WANTED_RATIO} of plain PyTorch's: {ratio:.2f}",
        f"{'met' if loss <= WANTED_LOSS else 'MISSED'}: validation loss of at most {WANTED_LOSS}: {loss:.4f}",
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench training", description=__doc__)
    add = parser.add_argument
    add("--text", help="a file or folder; the targets are for tiny Shakespeare. Default: text that comes with Python")
    add("--quick", action="store_true", help=f"{QUICK_STEPS} steps; keeps no file")
    add("--steps", type=int, help=f"steps of training (default {STEPS})")
    add("--threads", type=int, help="threads of torch (default: its own choice)")
    add("--no-save", action="store_true", help="keep no file in bench/results/")
    return parser


if __name__ == "__main__":
    sys.exit(main())
