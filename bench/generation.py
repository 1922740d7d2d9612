"""Generation at 10.6 million parameters, one sequence: the cache against no cache, and against transformers.

    python -m bench generation              # 5 rounds of 240 tokens
    python -m bench generation --quick

Everybody has the same weights and decodes greedily, and nobody is timed whose tokens differ. A round lets each
contestant generate once; a ratio is that of the same round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date

import torch

from bench import results
from bench.measure import Call, interleaved
from bench.noise import Neighbours
from bench.table import Table
from rearview.generation import generate
from rearview.models import GPT, GPTConfig

# The size of nanoGPT's Shakespeare model.
CONFIG = GPTConfig(vocab_size=65, context=256, layers=6, heads=6, width=384)
PROMPT, TOKENS, QUICK_TOKENS = [1, 2, 3, 4], 240, 60
ROUNDS, QUICK_ROUNDS = 5, 2

CACHED, UNCACHED = "rearview, cache", "rearview, no cache"
STATIC, DYNAMIC, NOTHING = "transformers, static cache", "transformers, dynamic cache", "transformers, no cache"

# () -> the new tokens
Speaker = Callable[[], list[int]]


@dataclass(frozen=True)
class Target:
    """The cached generation of rearview is at least so many times as fast as another."""

    than: str
    at_least: float

    def verdict(self, samples: dict[str, list[float]]) -> str:
        if CACHED not in samples or self.than not in samples:
            return f"not judged: {CACHED} against {self.than}: one of the two was not timed"
        came = times_faster(samples, than=self.than)
        word = "met" if came >= self.at_least else "NOT MET"
        return f"{word}: {CACHED} against {self.than}: {came:.2f}x, asked {self.at_least:g}x"


TARGETS = (Target(UNCACHED, 4.0), Target(STATIC, 1.25), Target(DYNAMIC, 1.25))


def times_faster(samples: dict[str, list[float]], *, than: str, name: str = CACHED) -> float:
    """The median over rounds of the ratio in the same round.

    >>> times_faster({CACHED: [1.0, 2.0, 1.0], STATIC: [2.0, 2.0, 3.0]}, than=STATIC)
    2.0
    """
    return statistics.median(b / a for a, b in zip(samples[name], samples[than], strict=True))


def new_model() -> GPT:
    """Weights larger than at the start of a training, so that no two logits are nearly the same."""
    torch.manual_seed(0)
    model = GPT(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return model


def speakers(model: GPT, *, tokens: int) -> dict[str, Speaker]:
    """Everybody who competes; transformers where it is installed."""
    found: dict[str, Speaker] = {
        CACHED: lambda: _ours(model, tokens, use_cache=True),
        UNCACHED: lambda: _ours(model, tokens, use_cache=False),
    }
    try:
        theirs = _in_transformers(model)
    except ImportError:
        return found
    for name, options in {
        STATIC: {"cache_implementation": "static", "disable_compile": True},
        DYNAMIC: {"use_cache": True},
        NOTHING: {"use_cache": False},
    }.items():
        found[name] = _theirs(theirs, tokens, options)
    return found


def _ours(model: GPT, tokens: int, *, use_cache: bool) -> list[int]:
    return generate(model, PROMPT, max_new_tokens=tokens, temperature=0, use_cache=use_cache).finish().tokens[0]


def _in_transformers(model: GPT):
    from transformers import GPT2LMHeadModel

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return GPT2LMHeadModel.from_pretrained(folder).eval()


def _theirs(model, tokens: int, options: dict[str, object]) -> Speaker:
    prompt = torch.tensor([PROMPT])
    # No token ends the text: everybody says as many.
    always = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}

    def speak() -> list[int]:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = model.generate(prompt, attention_mask=torch.ones_like(prompt), **always, **options)
        return said[0, len(PROMPT) :].tolist()

    return speak


def measure(*, tokens: int, rounds: int, patience_s: float = 0.0) -> tuple[dict[str, list[float]], dict[str, str], int]:
    """Milliseconds of each speaker, a sample a round; who was wrong; and how many rounds others disturbed."""
    everybody = speakers(new_model(), tokens=tokens)
    truth = everybody[UNCACHED]()
    wrong = {}
    for name, speak in everybody.items():
        said = speak()
        if said != truth:
            at = next(
                (n for n, (a, b) in enumerate(zip(said, truth, strict=False)) if a != b), min(len(said), len(truth))
            )
            wrong[name] = f"WRONG: differs from token {at} on"
    right: dict[str, Call] = {name: speak for name, speak in everybody.items() if name not in wrong}
    taken = interleaved(right, rounds=rounds, device=torch.device("cpu"), patience_s=patience_s)
    return taken.samples, wrong, taken.loud


def table_of(samples: dict[str, list[float]], wrong: dict[str, str], *, tokens: int) -> Table:
    rows = []
    for name, taken in samples.items():
        middle = statistics.median(taken)
        ratio = times_faster(samples, than=name) if CACHED in samples else float("nan")
        rows.append((name, f"{middle / tokens:.2f}", f"{1000 * tokens / middle:.0f}", f"{ratio:.2f}x", ""))
    rows += [(name, "-", "-", "-", why) for name, why in wrong.items()]
    return Table(("generation", "ms a token", "tokens/s", "cache is faster", "note"), rows, last_is_words=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 when rearview's own tokens differ."""
    parser = argparse.ArgumentParser(prog="python -m bench generation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds of {QUICK_TOKENS} tokens")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--threads", type=int, help="threads of torch (default: its own choice)")
    parser.add_argument("--patient", type=int, nargs="?", const=300, default=0, metavar="SECONDS",
                        help="wait so long for other programs to be quiet")  # fmt: skip
    parser.add_argument("--no-save", action="store_true", help="keep no file in bench/results/")
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    tokens = QUICK_TOKENS if args.quick else TOKENS
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    neighbours = Neighbours()
    samples, wrong, loud = measure(tokens=tokens, rounds=rounds, patience_s=args.patient)
    share = neighbours.share()
    machine = results.Machine.here(torch.device("cpu"))
    about = [
        *machine.lines(torch.get_num_threads()),
        f"{tokens} tokens, batch 1, float32, {rounds} rounds, {loud} of them disturbed by other programs",
        *([f"other programs used {100 * share:.0f} % of the processors meanwhile"] if share is not None else []),
    ]
    table, verdicts = table_of(samples, wrong, tokens=tokens), [target.verdict(samples) for target in TARGETS]
    print(*about, "", sep="\n")
    table.show()
    print("", *verdicts, sep="\n")
    if not (args.quick or args.no_save):
        path = results.RESULTS / results.file_name(machine, today=date.today(), suffix="-generation")
        parts = [f"# Generation, {date.today().isoformat()}", "\n".join(f"- {line}" for line in about)]
        results.write(path, "\n\n".join([*parts, table.markdown(), "\n".join(f"- {each}" for each in verdicts)]) + "\n")
        print(f"\nkept in bench/results/{path.name}")
    return int(any(name in wrong for name in (CACHED, UNCACHED)))


if __name__ == "__main__":
    sys.exit(main())
