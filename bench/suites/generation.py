"""Generation at 10.6 million parameters, one sequence: the cache against no cache, and against transformers.

All contestants have the same weights and decode greedily. A contestant whose tokens differ is not timed.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch

from bench.harness import Case, Contestant, Outcome, Ready, Report, Suite, Target, Task, any_wrong, outcomes_of
from bench.table import Table, ratio
from rearview.generation import generate
from rearview.models import GPT, GPTConfig

# The size of nanoGPT's Shakespeare model.
CONFIG = GPTConfig(vocab_size=65, context=256, layers=6, heads=6, width=384)
PROMPT, TOKENS, QUICK_TOKENS = [1, 2, 3, 4], 240, 60
ROUNDS, QUICK_ROUNDS = 5, 2

CACHED, UNCACHED = "rearview, cache", "rearview, no cache"
INVARIANT = "rearview, cache, batch-invariant"
STATIC, DYNAMIC, NOTHING = "transformers, static cache", "transformers, dynamic cache", "transformers, no cache"
THEIRS: dict[str, dict[str, object]] = {
    STATIC: {"cache_implementation": "static", "disable_compile": True},
    DYNAMIC: {"use_cache": True},
    NOTHING: {"use_cache": False},
}
TARGETS = tuple(Target(CACHED, than, at_least) for than, at_least in ((UNCACHED, 4.0), (STATIC, 1.25), (DYNAMIC, 1.25)))

# () -> the new tokens
Speaker = Callable[[], list[int]]


def new_model() -> GPT:
    """A model with larger weights than at the start of training, so that no two logits are nearly equal."""
    torch.manual_seed(0)
    model = GPT(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return model


def contestants(tokens: int) -> list[Contestant]:
    model = new_model()
    truth = cache(partial(_ours, model, tokens, use_cache=False))
    found = {name: partial(_ours, model, tokens, use_cache=name == CACHED) for name in (CACHED, UNCACHED)}
    invariant = new_model()
    found[INVARIANT] = partial(_ours, invariant, tokens, use_cache=True)
    made = cache(partial(_in_transformers, model))

    def prepare(name: str) -> Ready:
        # Refused where there is no kernel.
        invariant.batch_invariant = invariant.batch_invariant or name == INVARIANT
        speak = found[name] if name in found else _theirs(made(), tokens, THEIRS[name])
        return Ready(speak, lambda: fault(speak(), truth()))

    return [Contestant(name, partial(prepare, name)) for name in (*found, *THEIRS)]


def fault(said: list[int], truth: list[int]) -> str:
    """The first token where two texts differ; "" if they are equal.

    >>> fault([1, 2, 4], [1, 2, 3])
    'differs from token 2 on'
    """
    if said == truth:
        return ""
    pairs = enumerate(zip(said, truth, strict=False))
    return f"differs from token {next((n for n, (a, b) in pairs if a != b), min(len(said), len(truth)))} on"


def _ours(model: GPT, tokens: int, *, use_cache: bool) -> list[int]:
    return generate(model, PROMPT, max_new_tokens=tokens, temperature=0, use_cache=use_cache).finish().tokens[0]


def _in_transformers(model: GPT):
    from transformers import GPT2LMHeadModel

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return GPT2LMHeadModel.from_pretrained(folder).eval()


def _theirs(model, tokens: int, options: dict[str, object]) -> Speaker:
    prompt = torch.tensor([PROMPT])
    # No token ends the text, so every contestant generates the same number of tokens.
    always = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}

    def speak() -> list[int]:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = model.generate(prompt, attention_mask=torch.ones_like(prompt), **always, **options)
        return said[0, len(PROMPT) :].tolist()

    return speak


def table_of(outcome: Outcome, tokens: int) -> Table:
    rows = []
    for row in outcome.rows:
        if not row.samples:
            rows.append((row.name, "-", "-", "-", row.note))
            continue
        faster = ratio(outcome.times_faster(CACHED, than=row.name))
        rows.append((row.name, f"{row.median / tokens:.2f}", f"{1000 * tokens / row.median:.0f}", faster, ""))
    return Table(("generation", "ms per token", "tokens/s", "cache is faster", "note"), rows, last_is_words=True)


class GenerationSuite(Suite):
    name, title, suffix = "generation", "Generation", "-generation"

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
        entries = partial(contestants, self._tokens(args))
        # Everything has run once when it is judged, so no further warm-up is needed.
        return [Case("generation", entries, targets=TARGETS, rounds=rounds, sample_ms=0.0)]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        outcomes, tokens = outcomes_of(results), self._tokens(args)
        verdicts = [text for each in outcomes for text in each.verdicts()]
        tables = [("", table_of(each, tokens)) for each in outcomes]
        return Report([f"{tokens} tokens, batch 1, float32"], tables, verdicts, is_wrong=any_wrong(outcomes))

    def _tokens(self, args: argparse.Namespace) -> int:
        return QUICK_TOKENS if args.quick else TOKENS


SUITES = (GenerationSuite(),)
