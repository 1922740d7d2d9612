"""A small run whose every part matters: several documents in a row, dropout, accumulation, samples, validation.

As a program it runs scenarios, each in a process of its own that may kill itself; forked, since importing torch takes
longer than all of them. It reads [{"out": ..., "resume": ..., "kill": {...}}, ...] and prints their exit codes. A
scenario {"check": ...} reads every checkpoint of a run, as it was left.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from rearview.training import Event, Saved, TextData, TrainConfig, checkpoints, read_checkpoint, train
from rearview.training.factory import new_model, new_tokenizer

TEXTS = [f"{n} green bottles standing on the wall, and if one should fall " * (1 + n % 3) for n in range(12)]
CONFIG = TrainConfig(
    steps=16,
    batch=3,
    accumulate=2,
    lr=1e-2,
    warmup=3,
    log_every=3,
    eval_every=4,
    sample_every=8,
    sample_tokens=8,
    save_every=4,
)


def small_data() -> TextData:
    return TextData.of(TEXTS, new_tokenizer("chars", TEXTS))


def small_run(
    out: Path | None,
    *,
    resume: Path | None = None,
    config: TrainConfig = CONFIG,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[Event, None, None]:
    data = small_data()
    model = new_model("gpt", data.tokenizer, context=16, layers=1, heads=2, width=16, dropout=0.1)
    return train(model, data, config, out=None if resume else out, resume=resume, stop=stop)


def until_saved(events: Iterator[Event], step: int) -> None:
    """Run until the checkpoint of a step is written."""
    for event in events:
        if isinstance(event, Saved) and event.step == step:
            return


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(call: str, count: int) -> None:
    """Be killed in the middle of the `count`-th call: files are written by half, and nothing is renamed."""
    calls = [0]

    def counted() -> bool:
        calls[0] += 1
        return calls[0] == count

    if call == "write_bytes":
        whole = Path.write_bytes

        def write_bytes(path: Path, data: bytes) -> int:
            if not counted():
                return whole(path, data)
            whole(path, data[: len(data) // 2])
            die()
            return 0

        Path.write_bytes = write_bytes  # pyright: ignore[reportAttributeAccessIssue]
        return
    before = getattr(os, call)

    def fatal(*arguments: object, **options: object) -> object:
        if counted():
            die()
        return before(*arguments, **options)

    setattr(os, call, fatal)


def one(scenario: dict) -> None:
    if "check" in scenario:
        for path in checkpoints(scenario["check"]):
            read_checkpoint(path)
        return
    kill = scenario.get("kill", {})
    resume = Path(scenario["resume"]) if scenario.get("resume") else None
    armed = False
    for event in small_run(Path(scenario["out"]), resume=resume):
        if kill and event.step >= kill["step"] and not armed:
            armed = True
            if "call" not in kill:
                die()
            die_at(kill["call"], kill["count"])


def main() -> None:
    # What torch and saving load when they are first used: once here, not in every child.
    import safetensors.torch  # noqa: F401
    import torch._dynamo
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    codes = []
    for scenario in json.loads(sys.argv[1]):
        child = os.fork()
        if child == 0:
            try:
                one(scenario)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
