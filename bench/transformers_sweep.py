"""`python -m bench transformers_sweep`: the language models of transformers on `attn_implementation="rearview"`.

Every model that reads tokens and that its own configuration can build, tiny and random, runs with the attention that
transformers chooses for it and with Rearview's, on the same tokens: alone, padded on the right, padded on the left,
packed by position_ids, and generating with a cache. At this size `attend` hands a dense mask to the same kernel; so it
all runs a second time on the engine that reads the ranges of the mask. The table tells the largest difference of the
logits, relative to the largest logit, or who refused and why.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import torch
from torch import Tensor

from bench import results
from bench.audit_sweep import BATCH, TIME, tiny

TOLERANCE = 1e-4
GENERATED = 12
PAD = 9
ENGINES = ("auto", "blocks")
ORDER = (
    *("equal", "equal to eager", "not called", "refused by transformers"),
    *("unsupported", "differs", "failed", "skipped"),
)


@dataclass
class Row:
    """One model: what came of it, and in each case the difference or the reason."""

    kind: str
    name: str
    verdict: str
    why: str = ""
    against: str = ""
    cases: dict[str, float | str] = field(default_factory=dict)

    def cells(self) -> list[str]:
        each = [f"{case} {f'{found:.0e}' if isinstance(found, float) else found}" for case, found in self.cases.items()]
        told = ", ".join([*each, self.why] if self.why else each)[:300].replace("|", "/")
        return [self.kind, self.name, self.verdict, self.against, told]


def compared(name: str, kind: str = "decoder") -> Row:
    """One model, both ways."""
    from rearview.errors import Unsupported
    from rearview.integrations.transformers import register

    auto, cases = KINDS[kind]
    try:
        model: Any = tiny(name, auto)
        cases["plain"](model)
    except Exception as error:
        return Row(kind, name, "skipped", _told(error))
    own = model.config._attn_implementation
    if not _switched(model, register()):
        return Row(kind, name, "refused by transformers", "it does not use the attention interface", str(own))
    row = Row(kind, name, "equal", against=str(own))
    with Calls() as calls:
        for case, run in cases.items():
            try:
                row.cases[case] = _difference(model, run, own, calls)
            except Unsupported as error:
                row.cases[case] = _told(error)
                row.verdict = "unsupported"
            except Exception as error:
                row.cases[case] = _told(error)
                row.verdict = "failed"
    if row.verdict == "equal" and not calls.count:
        row.verdict, row.why, row.cases = "not called", "what attention it has does not go through the interface", {}
    if different := [case for case, found in row.cases.items() if isinstance(found, float) and not found <= TOLERANCE]:
        with Calls() as calls:
            against_eager = [_difference(model, cases[case], "eager", calls) for case in different]
        same = all(isinstance(found, float) and found <= TOLERANCE for found in against_eager)
        row.verdict = "equal to eager" if same else "differs"
        row.why = f"its own eager attention differs from its {own}, and is equal" if same else ""
    return row


class Calls:
    """How often Rearview's attention was called, and which engine it is to take."""

    engine = "auto"

    def __enter__(self) -> Calls:
        from rearview.attention import attend
        from rearview.integrations.transformers import call

        self.count = 0
        self._module: Any = call

        def counted(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return attend(*arguments, **(options | {"engine": self.engine}))

        self._module.attend = counted
        self._attend = attend
        return self

    def __exit__(self, *_: object) -> None:
        self._module.attend = self._attend


def _switched(model: Any, implementation: Any) -> bool:
    model.set_attn_implementation(implementation)
    return model.config._attn_implementation == implementation


def _difference(model: Any, run: Callable[[Any], Tensor | None], own: Any, calls: Calls) -> float | str:
    """The largest difference on either engine, relative; a string where the model itself does not take this case."""
    _switched(model, own)
    try:
        expected = run(model)
    except Exception as error:
        return f"not by itself: {type(error).__name__}"
    if expected is None:
        return "not asked"
    _switched(model, "rearview")
    found = 0.0
    for calls.engine in ENGINES:
        came = run(model)
        assert came is not None
        scale = expected.double().abs().max().clamp(min=1e-6)
        found = max(found, float((came.double() - expected.double()).abs().max() / scale))
    return found


def _tokens(batch: int = BATCH, length: int = TIME) -> Tensor:
    return torch.randint(5, 90, (batch, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def _plain(model: Any) -> Tensor:
    return model(input_ids=_tokens()).logits


@torch.no_grad()
def _right(model: Any) -> Tensor:
    real = torch.ones(BATCH, TIME, dtype=torch.long)
    real[1, -PAD:] = 0
    return model(input_ids=_tokens(), attention_mask=real).logits[real.bool()]


@torch.no_grad()
def _left(model: Any) -> Tensor:
    real = torch.ones(BATCH, TIME, dtype=torch.long)
    real[1, :PAD] = 0
    return model(input_ids=_tokens(), attention_mask=real).logits[real.bool()]


@torch.no_grad()
def _packed(model: Any) -> Tensor:
    positions = torch.cat([torch.arange(11), torch.arange(TIME - 11)]).expand(BATCH, -1)
    return model(input_ids=_tokens(), position_ids=positions, use_cache=False).logits


@torch.no_grad()
def _generated(model: Any) -> Tensor | None:
    if not model.can_generate():
        return None
    real = torch.ones(BATCH, TIME // 2, dtype=torch.long)
    real[1, :5] = 0
    options = {"max_new_tokens": GENERATED, "min_new_tokens": GENERATED, "do_sample": False, "pad_token_id": 0}
    given = {"input_ids": _tokens(length=TIME // 2), "attention_mask": real}
    # The logits of each step; with random weights two tokens may be as good as equal.
    done = model.generate(**given, **options, return_dict_in_generate=True, output_logits=True)
    return torch.stack(done.logits)


@torch.no_grad()
def _translated(model: Any) -> Tensor:
    if not model.config.is_encoder_decoder:
        raise TypeError("it reads something else than tokens")
    return model(input_ids=_tokens(), decoder_input_ids=_tokens(length=TIME // 2)).logits


@torch.no_grad()
def _translated_right(model: Any) -> Tensor:
    real = torch.ones(BATCH, TIME, dtype=torch.long)
    real[1, -PAD:] = 0
    return model(input_ids=_tokens(), attention_mask=real, decoder_input_ids=_tokens(length=TIME // 2)).logits


Cases = dict[str, Callable[[Any], Tensor | None]]
SIDES: Cases = {"plain": _plain, "right": _right, "left": _left}
# The class that builds a model of that kind, and what it is asked.
KINDS: dict[str, tuple[str, Cases]] = {
    "decoder": ("AutoModelForCausalLM", SIDES | {"packed": _packed, "generation": _generated}),
    "encoder": ("AutoModelForMaskedLM", SIDES),
    "encoder-decoder": (
        "AutoModelForSeq2SeqLM",
        {"plain": _translated, "right": _translated_right, "generation": _generated},
    ),
    # Pictures are left out, so this is their language model in its place.
    "image and text": ("AutoModelForImageTextToText", SIDES | {"generation": _generated}),
}


def models() -> list[tuple[str, str]]:
    """(kind, model type) of all that transformers knows."""
    import transformers

    auto = {kind: getattr(transformers, name) for kind, (name, _) in KINDS.items()}
    return [(kind, name) for kind, each in auto.items() for name in dict.fromkeys(each._model_mapping._model_mapping)]


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def summary(rows: Sequence[Row]) -> list[str]:
    """How many came to what, for each kind."""
    lines = []
    for kind in KINDS:
        counts = Counter(row.verdict for row in rows if row.kind == kind)
        if counts:
            lines.append(f"{kind}: " + ", ".join(f"{counts[name]} {name}" for name in ORDER if counts[name]))
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 when a model differs, or failed on Rearview's attention, else 0."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m bench transformers_sweep", description=description)
    parser.add_argument("--only", metavar="A,B", help="only these model types")
    parser.add_argument("--no-save", action="store_true", help="keep no file in bench/results/")
    args = parser.parse_args(argv)
    known = models()
    wanted = args.only.split(",") if args.only else [name for _, name in known]
    chosen = [(kind, name) for kind, name in known if name in wanted]
    if missing := sorted(set(wanted) - {name for _, name in known}):
        parser.error(f"--only: no model type {', '.join(missing)}")
    started, rows = time.monotonic(), []
    with _quiet():
        for kind, name in chosen:
            rows.append(compared(name, kind))
            _, _, verdict, against, told = rows[-1].cells()
            print(f"{kind:<16} {name:<26} {verdict:<24} {against:<6} {told}", flush=True)
    lines = [f"{len(rows)} models in {time.monotonic() - started:.0f} s", *summary(rows)]
    print("", *lines, sep="\n")
    if len(chosen) == len(known) and not args.no_save:
        machine = results.Machine.here(torch.device("cpu"))
        path = results.RESULTS / results.file_name(machine, today=date.today(), suffix="-transformers")
        results.write(path, _document(machine, rows, lines))
        print(f"\nkept in bench/results/{path.name}")
    return int(any(row.verdict in ("differs", "failed") for row in rows))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what transformers says of tiny configurations."""
    from transformers import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def _document(machine: results.Machine, rows: Sequence[Row], lines: Sequence[str]) -> str:
    import transformers

    version = f"transformers {transformers.__version__}; tiny random models, {BATCH} x {TIME} tokens, float32"
    about = [*machine.lines(1), version, f"equal: the largest difference is at most {TOLERANCE:g} of the largest logit"]
    table = ["| kind | model | verdict | against | differences, or why |", "|---|---|---|---|---|"]
    table += [f"| {' | '.join(row.cells())} |" for row in rows]
    return results.document("The language models of transformers on Rearview's attention", about, lines, table)


if __name__ == "__main__":
    sys.exit(main())
