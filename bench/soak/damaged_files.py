"""Damage to every file that a run consists of: it is noticed, or it changes nothing.

The checkpoint that a run goes on from has a checksum for every file, so a changed bit is found before it is used.
metrics.jsonl has none: it is a list of numbers for people and pictures, and no weight depends on it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from bench.soak.children import REFUSED, STEPS, Children, carried_on, children, config_of, digests, last_line
from bench.soak.experiment import Experiment, Session, Tally
from rearview.training import Run, newest

METRICS = "metrics.jsonl"


def flip(data: bytearray, draw: random.Random) -> bytes:
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def truncate(data: bytearray, draw: random.Random) -> bytes:
    return bytes(data[: draw.randrange(len(data))])


def zeros(data: bytearray, draw: random.Random) -> bytes:
    """A block of zeros, as a disk returns for what it has lost; all of a small file."""
    start = draw.randrange(0, len(data), 512)
    data[start : start + 512] = bytes(len(data[start : start + 512]))
    return bytes(data)


def lengthen(data: bytearray, draw: random.Random) -> bytes:
    return bytes(data) + draw.randbytes(draw.randint(1, 600))


DAMAGE: dict[str, Callable[[bytearray, random.Random], bytes]] = {
    "a flipped bit": flip,
    "a truncated file": truncate,
    "a block of zeros": zeros,
    "a lengthened file": lengthen,
}


def use(out: Path, answer: Path) -> None:
    """What `rearview generate RUN` does: the text that the newest checkpoint generates."""
    from rearview.generation import complete
    from rearview.models import GPT
    from rearview.text_model import load_text_model

    loaded = load_text_model(out)
    assert isinstance(loaded.model, GPT)
    answer.write_text(complete(loaded.model, loaded.tokenizer, "green ", max_new_tokens=8)[0].text)


def files_of(out: Path) -> list[Path]:
    last = newest(out)
    return [path for path in (*sorted(last.iterdir()), out / METRICS) if path.is_file()]


def damage_files(tally: Tally, session: Session) -> None:
    draw = session.draw
    with children() as found:
        out = found.new_folder()
        # Half way, so that something is left to be trained.
        half = found.start(_half, out, found.text, found.log_of(out), log=found.log_of(out))
        if found.end(half):
            raise AssertionError(last_line(found.log_of(out)))
        whole_out = Path(shutil.copytree(out, found.workspace / "whole"))
        whole, text = found.finished(whole_out), _used(found, out)
        names = [path.relative_to(out) for path in files_of(out)]
        while session.goes_on(tally):
            name, kind = draw.choice(names), draw.choice([*DAMAGE, "a missing file"])
            copy = Path(shutil.copytree(out, found.new_folder()))
            if kind == "a missing file":
                (copy / name).unlink()
            else:
                before = (copy / name).read_bytes()
                (copy / name).write_bytes(after := DAMAGE[kind](bytearray(before), draw))
                if after == before:
                    continue
            tally.tried["damaged files"] += 1
            tally.tried[f"of these, {kind}"] += 1
            what = f"{kind}, {name}, {copy.name}"
            _judge(tally, what, found, copy, name.name == METRICS, whole, text)
            shutil.rmtree(copy)


def _judge(
    tally: Tally, what: str, found: Children, copy: Path, is_metrics: bool, whole: dict[str, str], text: str | None
) -> None:
    try:
        used = _used(found, copy)
    except AssertionError as error:
        tally.fail(f"{what}: generate: {error}")
        return
    tally.found["generate: refused" if used is None else "generate: the same text"] += 1
    if used not in (None, text):
        tally.fail(f"{what}: another text was generated")
    log = found.log_of(copy)
    code = found.end(found.start(carried_on, copy, found.text, log, found.steps, log=log))
    if code == REFUSED:
        tally.found["resume: refused"] += 1
        if "damaged" not in last_line(log) and "record" not in last_line(log) and "read" not in last_line(log):
            tally.fail(f"{what}: the reason is not given: {last_line(log)}")
        return
    if code:
        tally.fail(f"{what}: exit code {code}: {last_line(log)}")
        return
    others = digests(copy)
    differing = [name for name in whole if others[name] != whole[name]]
    if not differing:
        tally.found["resume: the same bits"] += 1
    elif is_metrics and differing == [METRICS]:
        tally.found["resume: the same weights, other numbers in metrics.jsonl"] += 1
    else:
        tally.fail(f"{what}: other bits in {', '.join(differing)}")


def _half(out: Path, text: Path, log: Path) -> None:
    steps = iter(range(STEPS))
    for _ in Run.start(config_of(text), out).train(stop=lambda: next(steps) >= STEPS // 2):
        pass


def _used(found: Children, out: Path) -> str | None:
    """The text that is generated, or None if the run is refused."""
    answer, log = found.workspace / "answer", found.workspace / "generate.log"
    answer.unlink(missing_ok=True)
    code = found.end(found.start(use, out, answer, log=log))
    if code not in (0, REFUSED):
        raise AssertionError(f"exit code {code}: {last_line(log)}")
    return answer.read_text() if code == 0 else None


EXPERIMENT = Experiment(
    "damaged files",
    "Damage to a file of a run is noticed, or the weights and the text that it generates are the same.",
    damage_files,
    quick=4,
)
