"""The language models of transformers on `attn_implementation="rearview"`.

Every model that reads tokens and that its own configuration can build, tiny and random, runs with the attention that
transformers chooses for it and with Rearview's, on the same tokens: alone, padded on the right, padded on the left,
packed by position_ids, and generating with a cache. At this size `attend` passes a dense mask to the same kernel, so
everything runs a second time on the engine that reads the ranges of the mask. The table has the largest difference of
the logits, relative to the largest logit, or the reason for a refusal.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.harness import Case, Report, Settings, Suite, Task
from bench.suites.audit_sweep import BATCH, TIME, tiny
from bench.table import Table

TOLERANCE = 1e-4
GENERATED = 12
QUICK_MODELS = 5
PAD = 9
ENGINES = ("auto", "blocks")
ORDER = (
    *("equal", "equal to eager", "not called", "refused by transformers"),
    *("unsupported", "differs", "failed", "skipped"),
)


@dataclass
class Row:
    """One model: its verdict, and for each case the difference or a reason."""

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
    """Compare one model on both implementations."""
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
        row.verdict, row.why, row.cases = "not called", "its attention does not use the interface", {}
    if different := [case for case, found in row.cases.items() if isinstance(found, float) and not found <= TOLERANCE]:
        with Calls() as calls:
            against_eager = [_difference(model, cases[case], "eager", calls) for case in different]
        same = all(isinstance(found, float) and found <= TOLERANCE for found in against_eager)
        row.verdict = "equal to eager" if same else "differs"
        row.why = f"its own eager attention differs from its {own}, and is equal" if same else ""
    return row


class Calls:
    """Counts the calls of Rearview's attention and runs them on `engine`."""

    engine = "auto"

    def __enter__(self) -> Calls:
        from rearview.attention.functional import run
        from rearview.integrations.transformers import registered_functions

        self.count = 0
        self._module: Any = registered_functions

        def counted(call: Any) -> Any:
            self.count += 1
            return run(call, engine=self.engine)

        self._module.run = counted
        self._run = run
        return self

    def __exit__(self, *_: object) -> None:
        self._module.run = self._run


def _switched(model: Any, implementation: Any) -> bool:
    model.set_attn_implementation(implementation)
    return model.config._attn_implementation == implementation


def _difference(model: Any, run: Callable[[Any], Tensor | None], own: Any, calls: Calls) -> float | str:
    """The largest relative difference on either engine; a string if the model itself does not support the case."""
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
        got = run(model)
        assert got is not None
        scale = expected.double().abs().max().clamp(min=1e-6)
        found = max(found, float((got.double() - expected.double()).abs().max() / scale))
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
    # The logits of each step are compared, since with random weights two tokens may be nearly tied.
    done = model.generate(**given, **options, return_dict_in_generate=True, output_logits=True)
    return torch.stack(done.logits)


@torch.no_grad()
def _translated(model: Any) -> Tensor:
    if not model.config.is_encoder_decoder:
        raise TypeError("it does not read tokens")
    return model(input_ids=_tokens(), decoder_input_ids=_tokens(length=TIME // 2)).logits


@torch.no_grad()
def _translated_right(model: Any) -> Tensor:
    real = torch.ones(BATCH, TIME, dtype=torch.long)
    real[1, -PAD:] = 0
    return model(input_ids=_tokens(), attention_mask=real, decoder_input_ids=_tokens(length=TIME // 2)).logits


Cases = dict[str, Callable[[Any], Tensor | None]]
SIDES: Cases = {"plain": _plain, "right": _right, "left": _left}
# The class that builds a model of each kind, and its cases.
KINDS: dict[str, tuple[str, Cases]] = {
    "decoder": ("AutoModelForCausalLM", SIDES | {"packed": _packed, "generation": _generated}),
    "encoder": ("AutoModelForMaskedLM", SIDES),
    "encoder-decoder": (
        "AutoModelForSeq2SeqLM",
        {"plain": _translated, "right": _translated_right, "generation": _generated},
    ),
    # Without images, this is the language model of each.
    "image and text": ("AutoModelForImageTextToText", SIDES | {"generation": _generated}),
}


def models() -> list[tuple[str, str]]:
    """(kind, model type) of all models of transformers."""
    import transformers

    auto = {kind: getattr(transformers, name) for kind, (name, _) in KINDS.items()}
    return [(kind, name) for kind, each in auto.items() for name in dict.fromkeys(each._model_mapping._model_mapping)]


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def summary(rows: Sequence[Row]) -> list[str]:
    """The number of models per verdict, for each kind."""
    lines = []
    for kind in KINDS:
        counts = Counter(row.verdict for row in rows if row.kind == kind)
        if counts:
            lines.append(f"{kind}: " + ", ".join(f"{counts[name]} {name}" for name in ORDER if counts[name]))
    return lines


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of transformers about tiny configurations."""
    from transformers import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def _swept(kind: str, name: str, settings: Settings) -> Row:
    with _quiet():
        row = compared(name, kind)
    settings.progress(row.verdict)
    return row


class TransformersSweep(Suite):
    name, suffix = "transformers_sweep", "-transformers"
    title = "The language models of transformers on Rearview's attention"

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        some = models()[:QUICK_MODELS] if args.quick else models()
        return [Task(name, partial(_swept, kind, name)) for kind, name in some]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        import transformers

        rows = [each for each in results if isinstance(each, Row)]
        about = [
            f"transformers {transformers.__version__}; tiny random models, {BATCH} x {TIME} tokens, float32",
            f"equal: the largest difference is at most {TOLERANCE:g} of the largest logit",
            f"{len(rows)} models",
            *summary(rows),
        ]
        headers = ("kind", "model", "verdict", "against", "differences, or why")
        table = Table(headers, [row.cells() for row in rows], last_is_words=True, words_first=4)
        return Report(about, [("", table)], is_wrong=any(row.verdict in ("differs", "failed") for row in rows))


SUITES = (TransformersSweep(),)
