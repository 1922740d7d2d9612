"""Training steps compared with those of a plain PyTorch model, and the losses of both.

The configuration is nanoGPT's for a CPU: 4 layers, 4 heads, 128 wide, context 64, batch 12, 2000 steps, characters, no
dropout. All models see the same batches; a round is one training step of each.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.harness import Call, Case, Contestant, Outcome, Ready, Report, Suite, Target, Task, outcomes_of
from bench.suites.plain_gpt import PlainGPT
from bench.table import Table
from rearview.models import GPT, GPTConfig
from rearview.text import CharTokenizer
from rearview.training import TextData, TrainConfig
from rearview.training.evaluation import evaluate
from rearview.training.objectives import NextToken
from rearview.training.schedule import learning_rate
from rearview.training.sources import read_texts
from rearview.training.trainer import Trainer

STEPS, QUICK_STEPS = 2000, 60
CONTEXT, LAYERS, HEADS, WIDTH = 64, 4, 4, 128
PLAIN, PLAIN_HALF, AUTO, OURS = (
    *("plain PyTorch, float32", "plain PyTorch, bfloat16 autocast"),
    *("rearview, auto precision", "rearview, float32"),
)
# Targets are for tiny Shakespeare, which is recognised by its first lines; for other texts the loss is only printed.
SHAKESPEARE, WANTED_LOSS, WANTED_RATIO = "First Citizen:\nBefore we proceed any further", 1.89, 0.8


class Race:
    """The models, their data, and their final losses."""

    def __init__(self, text: str | None, steps: int):
        # One document, because the plain model has no mask.
        self.text = "\n\n".join(each.text for each in read_texts(text))
        self.data = TextData.of([self.text], CharTokenizer.of([self.text]))
        self.config = TrainConfig(steps=steps, batch=12, warmup=min(100, steps // 10), sample_every=0)
        self.models: dict[str, nn.Module] = {}
        self.auto_dtype = ""

    @property
    def is_shakespeare(self) -> bool:
        return self.text.startswith(SHAKESPEARE)

    def contestants(self) -> list[Contestant]:
        # The other contestants take part only in some of the rounds, and their loss is not compared.
        some = max(self.config.steps // 10, min(self.config.steps, 50))
        prepare = {
            PLAIN: self._plain,
            AUTO: partial(self._ours, precision="auto"),
            OURS: partial(self._ours, precision="float32"),
            PLAIN_HALF: partial(self._plain, autocast=True),
        }
        limits = {OURS: some, PLAIN_HALF: some}
        return [Contestant(name, partial(self._ready, name, make), limits.get(name)) for name, make in prepare.items()]

    def loss(self, name: str) -> float:
        """The loss over the whole held-out text, in float32."""
        text = self.data.validation
        options: dict[str, Any] = {"context": CONTEXT, "most_tokens": len(text), "seed": 0, "dtype": torch.float32}
        return evaluate(self.models[name], NextToken(), text, **options).loss

    def _ready(self, name: str, make: Callable[[], tuple[nn.Module, Callable[[int], Tensor]]]) -> Ready:
        self.models[name], step = make()
        return Ready(_stepping(name, step))

    def _ours(self, precision: str) -> tuple[nn.Module, Callable[[int], Tensor]]:
        model = self._gpt()
        settings = TrainConfig.from_json({**self.config.to_json(), "precision": precision})
        trainer = Trainer(model, self.data, settings)
        if precision == "auto":
            self.auto_dtype = str(trainer.dtype).removeprefix("torch.")
        return model, lambda step: trainer.step(step)[0]

    def _gpt(self) -> GPT:
        torch.manual_seed(self.config.seed)
        vocab_size = self.data.tokenizer.vocab_size
        return GPT(GPTConfig(vocab_size=vocab_size, context=CONTEXT, layers=LAYERS, heads=HEADS, width=WIDTH))

    def _plain(self, *, autocast: bool = False) -> tuple[nn.Module, Callable[[int], Tensor]]:
        config = self.config
        batches = Trainer(self._gpt(), self.data, config).batches
        torch.manual_seed(config.seed)
        vocab_size = self.data.tokenizer.vocab_size
        model = PlainGPT(vocab_size=vocab_size, context=CONTEXT, layers=LAYERS, heads=HEADS, width=WIDTH)
        optimizer = torch.optim.AdamW(model.parameters(), betas=(config.beta1, config.beta2), weight_decay=0.1)

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

        return model, step


def _stepping(name: str, step: Callable[[int], Tensor]) -> Call:
    """A function that performs the next training step."""
    numbers = count(1)

    def call() -> None:
        loss = float(step(next(numbers)))
        assert math.isfinite(loss), f"{name} diverged"

    return call


class TrainingSuite(Suite):
    name, title, suffix = "training", "Training steps", "-training"

    def options(self, add: Callable[..., object]) -> None:
        about = "a file or folder; the targets are for tiny Shakespeare. Default: text that comes with Python"
        add("--text", help=about)
        add("--steps", type=int, help=f"training steps (default {STEPS})")

    def is_whole(self, args: argparse.Namespace) -> bool:
        return super().is_whole(args) and self._steps(args) == STEPS

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        self.race, steps = Race(args.text, self._steps(args)), self._steps(args)
        target = Target(AUTO, PLAIN, at_most=WANTED_RATIO)
        return [Case("a step", self.race.contestants, targets=(target,), rounds=steps, sample_ms=0.0, can_repeat=False)]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        race, outcomes, steps = self.race, outcomes_of(results), self._steps(args)
        name = Path(args.text).name if args.text else "the English text that comes with Python"
        done = max((each.rounds for each in outcomes), default=0)
        kinds = race.data.tokenizer.vocab_size
        about = [
            f"{name}: {race.data.characters} characters, {kinds} kinds; {done} of {steps} steps",
            f"auto precision is {race.auto_dtype}",
        ]
        losses = {row.name: race.loss(row.name) for each in outcomes for row in each.rows if len(row.samples) == done}
        tables = [("", table_of(each, losses)) for each in outcomes]
        verdicts = ["not judged: targets are for tiny Shakespeare and 2000 steps"]
        if outcomes and race.is_shakespeare and done == STEPS:
            verdicts = [*outcomes[0].verdicts(), verdict_on(losses[AUTO])]
        return Report(about, tables, verdicts)

    def _steps(self, args: argparse.Namespace) -> int:
        return args.steps or args.rounds or (QUICK_STEPS if args.quick else STEPS)


def verdict_on(loss: float) -> str:
    """Whether the validation loss meets its target.

    >>> verdict_on(1.9)
    'NOT MET: validation loss 1.9000, asked at most 1.89'
    """
    return f"{'met' if loss <= WANTED_LOSS else 'NOT MET'}: validation loss {loss:.4f}, asked at most {WANTED_LOSS}"


def table_of(outcome: Outcome, losses: dict[str, float]) -> Table:
    rows = []
    for row in outcome.rows:
        faster = outcome.times_faster(row.name, than=PLAIN)
        times = (f"{row.median:.1f}", f"{1 / faster:.2f}") if row.samples and faster else ("-", "-")
        rows.append((row.name, *times, f"{losses[row.name]:.4f}" if row.name in losses else "timed only"))
    return Table(("model", "ms per step", "of plain PyTorch's", "validation loss"), rows)


SUITES = (TrainingSuite(),)
