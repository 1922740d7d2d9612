"""What `rearview train` does before and after the loop: options into a run, and where everything is in the end."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rearview.errors import BadArgument, BadFile, MissingExtra
from rearview.masks import Mask, causal, full
from rearview.masks.parse import parse
from rearview.masks.write import write_whole
from rearview.text import Tokenizer
from rearview.training import (
    Document,
    TextData,
    TrainConfig,
    checkpoints,
    newest,
    read_checkpoint,
    read_metrics,
    read_texts,
)
from rearview.training.curve import draw_curve
from rearview.training.data import fingerprint_of
from rearview.training.sources import STDIN
from rearview.training.start import new_model, new_tokenizer

OPTIONS, KEPT_TEXT, CURVE = "run.json", "text.txt", "loss.svg"
# What may change from one sitting to the next: it changes no number, or is meant to.
FREE = {
    "steps", "eval_every", "sample_every", "sample_prompt", "save_every", "tensorboard", "threads", "device", "text",
    "encoding",
}  # fmt: skip
NOT_KEPT = {"resume", "out", "context_length"}
SETTINGS = (
    "steps", "context", "batch", "accumulate", "lr", "warmup", "weight_decay", "clip", "seed", "precision", "compile",
    "checkpointing", "eval_every", "sample_every", "sample_prompt", "save_every",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The command line: values by name, and which of them were given."""

    values: dict[str, Any]
    given: set[str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def kept(self) -> dict[str, Any]:
        return {name: value for name, value in self.values.items() if name not in NOT_KEPT}

    def going_on(self, out: Path) -> Options:
        """The options that the run began with, and what may be changed of them."""
        before = _read(out / OPTIONS)
        for name in self.given - FREE - NOT_KEPT:
            if before.get(name) != self[name]:
                raise BadArgument(
                    option(name),
                    expected=f"{before.get(name)}, as the run in {out} began with",
                    came=self[name],
                    advice="A run keeps what it is; start another with another --out.",
                )
        return Options({**self.values, **before, **{name: self[name] for name in self.given & FREE}}, self.given)


@dataclass(frozen=True)
class Prepared:
    """All that the loop needs. `resume`: the checkpoint to go on from."""

    out: Path
    resume: Path | None
    kind: str
    model: Any
    data: TextData
    config: TrainConfig


def prepare(options: Options) -> Prepared:
    """Read the text, make or load the model, say what will happen."""
    out, resume = _folders(options)
    if resume is not None:
        options = options.going_on(out)
    if options["threads"] is not None:
        if options["threads"] < 1:
            raise BadArgument("--threads", expected="a number of at least 1", came=options["threads"])
        torch.set_num_threads(options["threads"])
    device = _device(options["device"])
    config = TrainConfig(**{name: options[name] for name in SETTINGS})
    texts = _texts(options, out, going_on=resume is not None)
    if resume is None:
        tokenizer, model = _new(options, texts)
    else:
        tokenizer, model = _old(resume, config, texts)
    data = TextData.of(texts, tokenizer, validation=options["validation"])
    data.check_context(options["context"])
    if resume is None:
        _begin(options, out, texts)
    model.to(device)
    prepared = Prepared(out, resume, options["model"], model, data, config)
    _announce(prepared)
    return prepared


def stopped(prepared: Prepared, step: int) -> None:
    _draw(prepared)
    print(f"Stopped after step {step}; saved. To go on: rearview train --resume {prepared.out}")


def finished(prepared: Prepared) -> None:
    """Where everything is, and what to do with it."""
    out = prepared.out
    lines = [f"{newest(out)}", "the model and its tokenizer", f"{out / 'metrics.jsonl'}", "every loss"]
    if _draw(prepared):
        lines += [f"{out / CURVE}", "the loss curve"]
    width = max(map(len, lines[::2]))
    print("\nDone.")
    for path, what in zip(lines[::2], lines[1::2], strict=True):
        print(f"  {path:{width}}   {what}")
    prompt = {"gpt": "The ", "bert": "the <mask>", "t5": "the <extra_id_0>"}[prepared.kind]
    print(f'Now: rearview generate {out} --prompt "{prompt}"')


def option(name: str) -> str:
    """How an option is written.

    >>> option("kv_heads")
    '--kv-heads'
    """
    return "--" + name.replace("_", "-")


def _folders(options: Options) -> tuple[Path, Path | None]:
    resume: Path | None = options["resume"]
    if resume is None:
        out: Path = options["out"]
        if found := checkpoints(out):
            raise BadArgument(
                "--out",
                expected="a folder without a run",
                came=f"{out}, which has {found[-1].name}",
                advice=f"Go on with it (rearview train --resume {out}), or choose another folder.",
            )
        return out, None
    out = resume.parent if resume in checkpoints(resume.parent) else resume
    if "out" in options.given and options["out"].resolve() != out.resolve():
        raise BadArgument("--out", expected="no other folder than that of --resume", came=options["out"])
    return out, (resume if resume != out else newest(out))


def _texts(options: Options, out: Path, *, going_on: bool) -> list[Document]:
    source = options["text"]
    if source == STDIN and going_on and "text" not in options.given:
        # What came through a pipe is gone; a copy was kept.
        source = out / KEPT_TEXT
        return read_texts(source, separator=options["separator"])
    if source is not None and source != STDIN:
        source = os.path.abspath(source)
    return read_texts(source, separator=options["separator"], encoding=options["encoding"])


def _new(options: Options, texts: list[Document]) -> tuple[Tokenizer, Any]:
    tokenizer = new_tokenizer(
        options["tokenizer"],
        [document.text for document in texts],
        kind=options["model"],
        context=options["context"],
        vocab_size=options["vocab_size"],
    )
    chosen = ("context", "layers", "heads", "width", "kv_heads", "positions", "dropout", "seed")
    mask = _mask(options["mask"])
    return tokenizer, new_model(options["model"], tokenizer, mask=mask, **{name: options[name] for name in chosen})


def _old(resume: Path, config: TrainConfig, texts: list[Document]) -> tuple[Tokenizer, Any]:
    saved = read_checkpoint(resume)
    saved.check_text(fingerprint_of([document.text for document in texts]))
    if saved.record.step >= config.steps:
        raise BadArgument(
            "--steps", expected=f"more than the {saved.record.step} that {resume} has done", came=config.steps
        )
    # A model of its own: the loop copies the weights into it, and starts from that.
    return saved.tokenizer, type(saved.model)(saved.model.config)


def _mask(expression: str | None) -> Mask:
    if expression is None:
        return causal()
    return full() if expression.strip().lower() == "none" else parse(expression)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BadArgument("--device", expected="a device that torch can use here", came=repr(name)) from error
    return device


def _begin(options: Options, out: Path, texts: list[Document]) -> None:
    kept = options.kept()
    # Another number of threads adds up in another order: the next sitting takes as many.
    kept["threads"] = torch.get_num_threads()
    if kept["text"] not in (None, STDIN):
        kept["text"] = os.path.abspath(kept["text"])
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadArgument("--out", expected="a folder that can be made", came=f"{error.strerror} ({out})") from error
    if kept["text"] == STDIN:
        separator = options["separator"] or ""
        write_whole(out / KEPT_TEXT, separator.join(document.text for document in texts).encode())
    write_whole(out / OPTIONS, (json.dumps(kept, indent=1) + "\n").encode())


def _announce(prepared: Prepared) -> None:
    data, model = prepared.data, prepared.model
    documents = f"{data.documents} documents" if data.documents > 1 else "1 document"
    print(
        f"{type(model).__name__} with {model.num_parameters():,} parameters; text of {data.characters:,} characters "
        f"({documents}), {len(data.train) + len(data.validation):,} tokens of {data.tokenizer.vocab_size} kinds "
        f"({data.tokenizer.kind})"
    )
    if prepared.resume is not None:
        print(f"going on from {prepared.resume}")
    sys.stdout.flush()


def _draw(prepared: Prepared) -> bool:
    try:
        draw_curve(read_metrics(prepared.out), prepared.out / CURVE, title=prepared.out.name)
    except MissingExtra as missing:
        print(f"No picture of the loss: {missing}", file=sys.stderr)
        return False
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadFile(path, "is not there: this is no run that rearview train began.") from None
    except (OSError, ValueError) as error:
        raise BadFile(path, f"cannot be read: {error}.") from error
    if not isinstance(values, dict):
        raise BadFile(path, "is not a JSON object.")
    return values
