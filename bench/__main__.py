"""`python -m bench`: measure, print, check the targets, keep the dated file."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from datetime import date
from importlib import import_module

import torch

from bench import lowering, results, targets
from bench.cases import BASE_CPU, BASE_CUDA, Case, Size, cases
from bench.measure import FORWARD, TRAINING, Bench, Outcome
from bench.noise import Neighbours
from bench.rivals import contestants
from bench.table import LEGEND, Table, table_of, table_of_lowering

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
ROUNDS, QUICK_ROUNDS, QUICK_LENGTH = 15, 3, 512
# Measurements with a module and a `main` of their own: python -m bench generation --quick
PROMISED = ("native", "training", "generation", "statistics")
GROUPS = (*PROMISED, "statistics_gpu", "observe", "audit_sweep", "transformers_sweep")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 when an engine of rearview gave a wrong answer, 130 when stopped by hand, else 0."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in GROUPS:
        return import_module(f"bench.{words[0]}").main(words[1:])
    if words:
        return attention(words)
    # Everything that a speed is promised of; the sweeps ask other questions.
    codes = [attention(words)]
    for group in PROMISED:
        print(f"\n{group}\n")
        codes.append(import_module(f"bench.{group}").main([]))
    return max(codes)


def attention(words: Sequence[str]) -> int:
    """Masked attention alone: what the options of `python -m bench` are for."""
    parser = _parser()
    args = parser.parse_args(words)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    if args.threads:
        torch.set_num_threads(args.threads)
    base, usual = _size(args, device), BASE_CUDA if device.type == "cuda" else BASE_CPU
    dtype = DTYPES[args.dtype or ("bfloat16" if device.type == "cuda" else "float32")]
    chosen = _chosen(cases(base, device=device.type, long=args.long), args.cases, parser)
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    flex = device.type == "cuda" if args.flex is None else args.flex

    machine, start, neighbours = results.Machine.here(device), time.monotonic(), Neighbours()
    outcomes, was_stopped = _measure(chosen, Bench(device, dtype, rounds, patience_s=args.patient), flex=flex)
    others = neighbours.share()
    whole = not (args.quick or args.cases or was_stopped)
    lowered = lowering.measure_all() if whole else []

    about = [
        *machine.lines(torch.get_num_threads()),
        f"{base}, {_name_of(dtype)}, {device.type}; {rounds} rounds" + ", a third of them for long cases" * args.long,
        f"it took {time.monotonic() - start:.0f} s; {_noise(outcomes, others, patient=args.patient > 0)}",
    ]
    if not flex:
        about.append("FlexAttention was left out (--flex takes it in: it compiles for minutes)")
    elif device.type == "cpu":
        about.append("FlexAttention has no backward on a CPU, so it is in the forward tables only")
    tables = _tables(outcomes, lowered)
    verdicts = [str(each) for each in targets.check(outcomes, device=device, dtype=dtype)]
    _show(about, tables, verdicts)
    if whole and not args.no_save:
        unusual = [_name_of(dtype)] * (dtype != torch.float32) + str(base).lower().split() * (base != usual)
        suffix = "".join(f"-{word}" for word in unusual)
        path = results.RESULTS / results.file_name(machine, today=date.today(), suffix=suffix)
        results.write(path, _document(about, tables, verdicts))
        print(f"\nkept in bench/results/{path.name}")
    elif not args.no_save:
        print("\nnot kept: only a run of all cases, neither --quick nor stopped, is.")
    wrong = any(row.is_wrong and row.name.startswith("rearview") for each in outcomes for row in each.rows)
    return 130 if was_stopped else int(wrong)


def _measure(chosen: list[Case], bench: Bench, *, flex: bool) -> tuple[list[Outcome], bool]:
    outcomes: list[Outcome] = []
    try:
        for number, case in enumerate(chosen, 1):
            place = f"[{number}/{len(chosen)}] {case.name}"
            bench.progress = _progress(place)
            outcomes += bench.run(case, contestants(case, bench.device, flex=flex))
    except KeyboardInterrupt:
        print("\nstopped; what was finished follows", file=sys.stderr)
        return outcomes, True
    finally:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    return outcomes, False


def _progress(place: str):
    """One line on stderr that is written over, or one line a case where it cannot be."""
    if not sys.stderr.isatty():
        print(place, file=sys.stderr, flush=True)
        return lambda text: None
    return lambda text: print(f"\r\033[K{place}: {text}", end="", file=sys.stderr, flush=True)


def _noise(outcomes: list[Outcome], share: float | None, *, patient: bool) -> str:
    if share is None:
        return "what other programs used of the processors is not known here"
    loud, rounds = sum(each.loud_rounds for each in outcomes), sum(each.rounds for each in outcomes)
    told = (
        f"other programs used {100 * share:.0f} % of the processors meanwhile, and disturbed {loud} of {rounds} rounds"
    )
    if patient:
        told += " that were kept (others were taken again)"
    return told + (": DO NOT TRUST these times" if loud > rounds // 4 else "")


def _tables(outcomes: list[Outcome], lowered: list[lowering.Lowered]) -> list[tuple[str, Table]]:
    found = []
    for direction in (FORWARD, TRAINING):
        for is_long in (False, True):
            rows = [each for each in outcomes if each.direction == direction and each.case.is_long == is_long]
            if rows:
                found.append((f"{direction}{', long' if is_long else ''}", table_of(rows)))
    if lowered:
        found.append(("making a mask", table_of_lowering(lowered)))
    return found


def _show(about: list[str], tables: list[tuple[str, Table]], verdicts: list[str]) -> None:
    print("\n".join(about))
    for title, table in tables:
        print(f"\n{title}\n")
        table.show()
    print("", *LEGEND, "", "targets", "", sep="\n")
    print("\n".join(verdicts))


def _document(about: list[str], tables: list[tuple[str, Table]], verdicts: list[str]) -> str:
    parts = [f"# Bench, {date.today().isoformat()}", "\n".join(f"- {line}" for line in about)]
    parts += [f"## {title}\n\n{table.markdown()}" for title, table in tables]
    parts += [" ".join(LEGEND), "## targets\n\n" + "\n".join(f"- {line}" for line in verdicts)]
    return "\n\n".join(parts) + "\n"


def _size(args: argparse.Namespace, device: torch.device) -> Size:
    usual = BASE_CUDA if device.type == "cuda" else BASE_CPU
    length = args.length or (QUICK_LENGTH if args.quick else usual.length)
    return Size(args.batch or usual.batch, args.heads or usual.heads, length, args.dim or usual.dim)


def _chosen(found: list[Case], wanted: str | None, parser: argparse.ArgumentParser) -> list[Case]:
    if not wanted:
        return found
    by_name = {_loosely(case.name): case for case in found}
    names = [_loosely(name) for name in wanted.split(",")]
    if missing := sorted(set(names) - set(by_name)):
        known = ", ".join(case.name for case in found)
        parser.error(f"--cases: no case {', '.join(map(repr, missing))}. There are: {known}")
    return [by_name[name] for name in dict.fromkeys(names)]


def _loosely(name: str) -> str:
    """The same for "prefix-LM" and "Prefix LM"."""
    return " ".join(re.split(r"[-_ ]+", name.strip().lower()))


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Masked attention side by side with what a user would pick instead, interleaved in one run.",
        epilog=f"Whole models: python -m bench {' | '.join(GROUPS)}, each with options of its own. "
        "Without any words all is measured, but for the sweeps and observe.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds at length {QUICK_LENGTH}; keeps no file")
    add("--cases", metavar="A,B", help="only these cases; a wrong name lists them all")
    add("--long", action="store_true", help="also length 8192, 4 heads: causal, window, documents")
    add("--rounds", type=_positive, help=f"samples of each contestant (default {ROUNDS})")
    add(
        "--patient",
        type=_positive,
        nargs="?",
        const=300,
        default=0,
        metavar="SECONDS",
        help="on a shared machine: for each case wait so long (300 unless given) for other programs to be quiet, "
        "and take the rounds that they disturb again",
    )
    add("--threads", type=_positive, help="threads of torch (default: its own choice)")
    add("--device", choices=("cpu", "cuda"), help="default: the GPU if there is one")
    add("--dtype", choices=DTYPES, help="default: float32 on a CPU, bfloat16 on a GPU")
    for name, what in (("batch", "batch"), ("heads", "heads"), ("length", "length"), ("dim", "head dim")):
        cpu, cuda = getattr(BASE_CPU, name), getattr(BASE_CUDA, name)
        default = f"{cpu}" if cpu == cuda else f"{cpu}, on a GPU {cuda}"
        add(f"--{name}", type=_positive, help=f"{what} of the base size (default {default})")
    add(
        "--flex",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="FlexAttention, compiled (default: on a GPU; on a CPU it compiles for minutes)",
    )
    add("--no-save", action="store_true", help="keep no file in bench/results/")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
