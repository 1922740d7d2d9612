"""What `rearview train` does: start or resume a run, show its progress, and say where its files are."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rearview.cli.interrupt import Interrupt
from rearview.cli.output import refused
from rearview.cli.progress import reading, shown
from rearview.cli.terminal import note
from rearview.drawing.cells import counted
from rearview.errors import BadArgument, MissingExtra, RearviewError
from rearview.training import Event, Finished, Run, RunConfig, Stopped, checkpoints, newest
from rearview.training.processes.launcher import launch
from rearview.training.processes.world import (
    RankFailed,
    World,
    check_devices,
    failures_named,
    is_one_of_several,
    launcher_is_gone,
)

SAVING = "Finishing the step and saving"
EXAMPLES = {"gpt": "The ", "bert": "the <mask>", "t5": "the <extra_id_0>"}


def run_training(settings: Mapping[str, object], given: set[str], *, out: Path, resume: Path | None) -> int:
    """Train with the settings of the command line, of which `given` were given; the exit code."""
    if resume is not None and "out" in given:
        raise BadArgument("--out", expected="no other folder: a resumed run stays in its own", got=out)
    if is_one_of_several():
        try:
            code = _in_one_of_several(settings, given, out=out, resume=resume)
        except RearviewError as error:
            code = refused(error)
        _exit_at_once(code)
    run = _new_run(settings, given, out=out, resume=resume, world=None)
    _announce(run)
    with Interrupt(SAVING) as interrupt:
        *_, last = shown(run.train(stop=interrupt), tokens_per_step=run.config.rows * run.config.context)
    return _ended(run, last, interrupt)


def start_processes(processes: int, arguments: Sequence[str], *, device: str, folder: Path) -> int:
    """Start `rearview train` with these arguments in several processes on this machine; the exit code."""
    # Here too, so that it is said once.
    check_devices(device, processes)
    try:
        return launch("rearview", ["train", *arguments], processes=processes)
    except RankFailed as failed:
        if not checkpoints(folder):
            raise
        command = shlex.join(["rearview", "train", "--resume", str(folder), "--processes", str(processes)])
        raise RankFailed(f"{failed} The last checkpoint is {newest(folder)}. To resume: {command}") from failed


def _new_run(
    settings: Mapping[str, object], given: set[str], *, out: Path, resume: Path | None, world: World | None
) -> Run:
    with reading(shown=world is None or world.is_first) as progress:
        if resume is None:
            return Run.start(config_of(settings), out, world=world, progress=progress)
        changes = {name: settings[name] for name in given - {"resume"}}
        return Run.resume(resume, world=world, progress=progress, **changes)


def _in_one_of_several(settings: Mapping[str, object], given: set[str], *, out: Path, resume: Path | None) -> int:
    """The same as one of several processes; rank 0 alone prints, unless another one fails."""
    world = World.join(device=str(settings["device"]))
    try:
        with failures_named(world.rank, "before the first step"), world.together():
            run = _new_run(settings, given, out=out, resume=resume, world=world)
        if world.is_first:
            _announce(run)
        with Interrupt(SAVING if world.is_first else None) as interrupt, failures_named(world.rank, "training"):
            events = run.train(stop=lambda: interrupt() or launcher_is_gone())
            if world.is_first:
                events = shown(events, tokens_per_step=run.config.rows * run.config.context)
            *_, last = events
            world.wait()
    except RearviewError as error:
        # What every process has found, rank 0 says.
        if world.is_first or (isinstance(error, RankFailed) and str(error)):
            raise
        return 2
    finally:
        world.leave()
    if world.is_first:
        return _ended(run, last, interrupt)
    return 0 if isinstance(last, Finished) else 128 + (interrupt.signal or 2)


def _exit_at_once(code: int) -> NoReturn:
    """End one of several processes without the end of the interpreter, when all is written.

    DDP keeps the threads of gloo. One that frees a tensor while the interpreter ends waits for Python's lock, and that
    aborts the process: a run that was complete would be reported as failed, and one that has said why it stops as
    ended by SIGABRT.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _ended(run: Run, last: Event, interrupt: Interrupt) -> int:
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
    if run.world is not None:
        print(_described(run.world, run.config))
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


def _described(world: World, config: RunConfig) -> str:
    how = "the parameters are divided between them" if config.shard else "each has a copy of the model"
    if world.context_parallel > 1:
        how += f", and {world.context_parallel} share each sequence"
    return f"{world.size} processes on {world.device.type}; {how}."


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
