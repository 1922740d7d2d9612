"""What `rearview train` does: start or resume a run, show its progress, and say where its files are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from rearview.cli.interrupt import Interrupt
from rearview.cli.progress import shown
from rearview.cli.terminal import note
from rearview.drawing.cells import counted
from rearview.errors import BadArgument, MissingExtra
from rearview.training import Run, RunConfig, Stopped, newest

EXAMPLES = {"gpt": "The ", "bert": "the <mask>", "t5": "the <extra_id_0>"}


def run_training(settings: Mapping[str, object], given: set[str], *, out: Path, resume: Path | None) -> int:
    """Train with the settings of the command line, of which `given` were given; the exit code."""
    if resume is None:
        run = Run.start(config_of(settings), out)
    elif "out" in given:
        raise BadArgument("--out", expected="no other folder: a resumed run stays in its own", got=out)
    else:
        run = Run.resume(resume, **{name: settings[name] for name in given - {"resume"}})
    _announce(run)
    with Interrupt("Finishing the step and saving") as interrupt:
        *_, last = shown(run.train(stop=interrupt), tokens_per_step=run.config.rows * run.config.context)
    has_curve = _save_curve(run)
    folder = run.folder.path
    if isinstance(last, Stopped):
        print(f"Stopped after step {last.step}, and saved. To resume: rearview train --resume {folder}")
        return 128 + (interrupt.signal or 2)
    _list_files(run, has_curve=has_curve)
    return 0


def config_of(settings: Mapping[str, object]) -> RunConfig:
    """The settings of a new run. Without a number of warmup steps they are a tenth of all steps, at most 100."""
    values = dict(settings)
    if values["warmup"] is None and isinstance(steps := values["steps"], int):
        values["warmup"] = min(100, steps // 10)
    return RunConfig.from_json(values)


def _announce(run: Run) -> None:
    data, model, step = run.data, run.model, run.folder.step
    print(
        f"{type(model).__name__} with {model.num_parameters():,} parameters. Text with {data.characters:,} characters "
        f"in {counted(data.documents, 'document', 'documents')}: {len(data.train) + len(data.validation):,} tokens, "
        f"vocabulary of {data.tokenizer.vocab_size:,} {data.tokenizer.kind}."
    )
    if run.folder.checkpoint is not None:
        print(f"Resuming from {run.folder.checkpoint.path}.")
        if step == run.config.steps:
            print(f"All {step} steps are done. To train further, give a larger --steps.")
    sys.stdout.flush()


def _save_curve(run: Run) -> bool:
    try:
        run.save_curve()
    except MissingExtra as missing:
        note(f"no picture of the loss: {missing}")
        return False
    return True


def _list_files(run: Run, *, has_curve: bool) -> None:
    folder = run.folder.path
    files = {newest(folder): "the model and its tokenizer", folder / "metrics.jsonl": "all losses"}
    if has_curve:
        files[folder / "loss.svg"] = "the loss curve"
    width = max(len(str(path)) for path in files)
    print("\nDone.")
    for path, what in files.items():
        print(f"  {path!s:{width}}   {what}")
    print(f'To generate text: rearview generate {folder} --prompt "{EXAMPLES[run.config.model]}"')
