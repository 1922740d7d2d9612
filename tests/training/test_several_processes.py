"""Several processes train the same model as one: the same gradients, losses and checkpoints, up to rounding."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rearview.errors import BadArgument, BadFile, RearviewError
from rearview.models.checkpoint import load as load_model
from rearview.training import Finished, Run, RunConfig, checkpoints, newest, read_checkpoint, read_metrics
from rearview.training.checkpoint import shards, together
from rearview.training.data import TextData
from rearview.training.factory import new_tokenizer
from rearview.training.processes.replication import whole
from rearview.training.processes.world import World
from rearview.training.trainer import Trainer
from tests.training.small_run import until_saved
from tests.training.worlds import Worlds

# Documents of unequal lengths, shorter than a row, so that rows hold several.
TEXTS = ["".join(f"Line {n} of a text, {n * n}.\n" for n in range(k, k + 1 + k % 3)) for k in range(40)]
CONFIG = RunConfig(
    steps=6, context=33, layers=2, heads=2, width=16, batch=5, lr=1e-2, warmup=1, threads=1, precision="float32",
    eval_every=3, eval_tokens=330, sample_every=3, sample_tokens=8, save_every=3, log_every=2, separator="---",
)  # fmt: skip
# Sums over other parts add in another order. Measured: 4e-7 for losses, 2e-6 for gradients relative to their norm.
ROUNDING = 1e-5


def gradients_of(config: RunConfig, world: World | None) -> tuple[float, dict[str, list[float]]]:
    """The loss and the gradients of the second step."""
    tokenizer = new_tokenizer("bytes", TEXTS, kind=config.model, context=config.context)
    data = TextData.of(TEXTS, tokenizer)
    if world is not None:
        world.divide(config.context_parallel)
    trainer = Trainer(config.new_model(tokenizer), data, config, world=world)
    found: dict[str, list[float]] = {}

    def keep(lr: float) -> torch.Tensor:
        for name, parameter in trainer.model.named_parameters():
            assert parameter.grad is not None, name
            found[name] = whole(parameter.grad).flatten().tolist()
        return torch.zeros(())

    trainer.optimizer.step = keep
    loss, _ = trainer.step(2)
    return float(loss), found


def in_world(world: World, config: RunConfig) -> tuple[float, dict[str, list[float]]]:
    return gradients_of(config, world)


def same_gradients(worlds: Worlds, size: int, config: RunConfig) -> None:
    results = worlds.run(in_world, size, config)
    loss, wanted = gradients_of(replace(config, shard=False, context_parallel=1), None)
    scale = torch.cat([torch.tensor(each) for each in wanted.values()]).norm()
    for got_loss, got in results:
        assert got_loss == pytest.approx(loss, abs=ROUNDING)
        assert got.keys() == wanted.keys()
        for name in wanted:
            error = (torch.tensor(got[name]) - torch.tensor(wanted[name])).norm() / scale
            assert error < ROUNDING, f"{name}: {error}"


@pytest.mark.parametrize("shard", [False, True], ids=["copies", "shards"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_gradients_equal_those_of_one_process(size: int, shard: bool, worlds: Worlds):
    """Five rows are divided by none of them, and the parameters of width 16 not by three."""
    same_gradients(worlds, size, replace(CONFIG, shard=shard, accumulate=2))


@pytest.mark.parametrize("shard", [False, True], ids=["copies", "shards"])
@pytest.mark.parametrize("model", ["bert", "t5"])
def test_random_choices_are_those_of_one_process(model: str, shard: bool, worlds: Worlds):
    same_gradients(worlds, 3, replace(CONFIG, model=model, shard=shard))


@pytest.mark.parametrize(
    ("size", "parts", "options"),
    [
        (2, 2, {}),
        (3, 3, {"positions": "rotary", "mask": "causal() & window(7)", "shard": True}),
        (4, 2, {"kv_heads": 1, "positions": "rotary", "checkpointing": True}),
        (4, 2, {"model": "bert", "shard": True, "accumulate": 2}),
    ],
    ids=["1x2", "1x3, window, shards", "2x2, recomputed", "2x2, bert, shards"],
)
def test_context_parallel_gradients_equal_those_of_one_process(
    size: int, parts: int, options: dict[str, Any], worlds: Worlds
):
    """Rows hold several documents, and 33 positions are divided by neither 2 nor 4."""
    same_gradients(worlds, size, replace(CONFIG, context_parallel=parts, **options))


def test_gradients_in_bfloat16(worlds: Worlds):
    """As on one device: products in bfloat16, weights and sums in float32."""
    config = replace(CONFIG, precision="bfloat16", batch=4)
    loss, wanted = gradients_of(config, None)
    for got_loss, got in worlds.run(in_world, 2, replace(config, shard=True)):
        # The rows of a batch are computed apart, so each product is the same.
        assert got_loss == pytest.approx(loss, abs=1e-3)
        for name in wanted:
            torch.testing.assert_close(torch.tensor(got[name]), torch.tensor(wanted[name]), atol=2e-3, rtol=2e-2)


def train(world: World, config: RunConfig, out: str) -> None:
    *_, last = Run.start(config, out, world=world).train()
    assert last == Finished(config.steps)


def resume(world: World, out: str, changes: dict[str, Any]) -> None:
    *_, last = Run.resume(out, world=world, **changes).train()
    assert isinstance(last, Finished)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "text.txt").write_text("---".join(TEXTS))
    return replace(CONFIG, text=str(tmp_path / "text.txt"))


def losses(out: Path, step: int = 0) -> list[float]:
    return [record["loss"] for record in read_metrics(out) if "loss" in record and record["step"] > step]


def check_same_curve(out: Path, wanted: Path) -> None:
    ours, theirs = read_metrics(out), read_metrics(wanted)
    assert [record.keys() for record in ours] == [record.keys() for record in theirs]
    for our, their in zip(ours, theirs, strict=True):
        for name in ("loss", "grad_norm", "validation"):
            assert our.get(name) == pytest.approx(their.get(name), abs=1e-4), our["step"]


def test_a_run_at_every_size(config: RunConfig, tmp_path: Path, worlds: Worlds):
    """The curve of one process; the same bits at the same size; resumed at every other size, and in one process."""
    one, two, again = (tmp_path / name for name in ("one", "two", "again"))
    *_, last = Run.start(config, one).train()
    worlds.run(train, 2, replace(config, shard=True), str(two))
    check_same_curve(two, one)
    # Bit by bit, although it was interrupted.
    worlds.run(train, 2, replace(config, shard=True, steps=6), str(again))
    worlds.run(resume, 2, str(again / "step-000003"), {})
    for name in ("metrics.jsonl", "step-000006/model.safetensors"):
        assert (again / name).read_bytes() == (two / name).read_bytes(), name
    ours, theirs = (read_checkpoint(newest(out)).optimizer for out in (two, again))
    assert all(torch.equal(ours[name], theirs[name]) for name in (*ours, *theirs))
    # From two in shards: to four in a mesh of 2 x 2, to three with copies, and to one process.
    worlds.run(resume, 4, str(two / "step-000003"), {"context_parallel": 2})
    check_same_curve(two, one)
    worlds.run(resume, 3, str(two / "step-000003"), {"shard": False, "context_parallel": 1})
    check_same_curve(two, one)
    *_, last = Run.resume(two / "step-000003").train()
    assert last == Finished(6)
    check_same_curve(two, one)
    # From one process to three in shards.
    worlds.run(resume, 3, str(one / "step-000003"), {"shard": True})
    check_same_curve(one, two)


def test_a_checkpoint_of_several_is_the_folder_that_one_process_writes(
    config: RunConfig, tmp_path: Path, worlds: Worlds
):
    out = tmp_path / "out"
    worlds.run(train, 3, replace(config, shard=True, steps=3), str(out))
    found = newest(out)
    assert sorted(path.name for path in found.iterdir()) == [
        "config.json", "model.safetensors", "rearview_tokenizer.json", "state", "training.json",
    ]  # fmt: skip
    # Three shards, nothing pickled, and a checksum for each.
    shards = sorted(path.name for path in (found / "state").iterdir())
    assert [name[:11] for name in shards] == ["shard-00001", "shard-00002", "shard-00003"]
    assert all(name.endswith(".safetensors") for name in shards)
    record = json.loads((found / "training.json").read_bytes())
    assert {f"state/{name}" for name in shards} < record["files"].keys()
    # The weights of the shards are those of the exported model.
    checkpoint = read_checkpoint(found)
    model = load_model(found)
    for name, value in checkpoint.optimizer.items():
        kind, _, parameter = name.partition(".")
        if kind != "step":
            assert value.shape == model.get_parameter(parameter).shape
    # And a damaged shard is found.
    path = found / "state" / shards[1]
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(RearviewError, match=r"shard-00002-.*: is damaged: its checksum does not match\."):
        read_checkpoint(found)


def fail_in_one(world: World, config: RunConfig, out: str) -> str:
    """The disk of one process is full when the checkpoint of step 3 is written."""
    events = Run.start(config, out, world=world).train()
    until_saved(events, step=0)
    original = together.checksum_of

    def refuse(path: Path) -> str:
        raise OSError(28, "No space left on device")

    if world.rank == 1:
        together.checksum_of = refuse
    try:
        for _ in events:
            pass
    except RearviewError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        together.checksum_of = original
    return "nothing was raised"


def test_a_checkpoint_that_one_process_cannot_write_is_absent(config: RunConfig, tmp_path: Path, worlds: Worlds):
    out = tmp_path / "out"
    first, second, third = worlds.run(fail_in_one, 3, config, str(out))
    # The one that failed says so; the others stop without a word.
    assert first == third == "RankFailed: "
    assert second == (
        f"RankFailed: rank 1: The checkpoint of step 3 could not be written to {out}: No space left on device. The "
        f"checkpoint {out}/step-000000 is intact. Free some space, then: rearview train --resume {out}"
    )
    assert [path.name for path in checkpoints(out)] == ["step-000000"]
    assert sorted(path.name for path in out.iterdir()) == ["metrics.jsonl", "step-000000"]
    worlds.run(resume, 2, str(out), {})


def train_late(world: World, config: RunConfig, out: str) -> None:
    """Rank 1 goes on from each exchange of checksums only when rank 0 has put the checkpoint in place."""
    original = world.gather
    places = iter([Path(out, name) for name in ("step-000000", "step-000003")])

    def gather(data: bytes) -> list[bytes]:
        found = original(data)
        if len(data) == together.SIZE + together.DIGEST:
            place, deadline = next(places), time.monotonic() + 60
            while not place.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        return found

    if world.rank == 1:
        world.gather = gather
    train(world, config, out)
    assert world.is_first or next(places, None) is None


@pytest.mark.parametrize("shard", [False, True], ids=["copies", "shards"])
def test_a_process_that_is_late_does_not_look_for_shards_that_were_moved(
    shard: bool, config: RunConfig, tmp_path: Path, worlds: Worlds
):
    """Rank 0 renames the folder of the checkpoint as soon as it has all checksums."""
    out = tmp_path / "out"
    worlds.run(train_late, 2, replace(config, shard=shard, steps=3), str(out))
    assert [path.name for path in checkpoints(out)] == ["step-000000", "step-000003"]


def resume_unreadable(world: World, out: str) -> str:
    """The disk of one process fails after the checksums were compared."""
    run = Run.resume(out, world=world)
    original = shards.read_shards

    def refuse(folder: Path, state: object) -> None:
        raise BadFile(folder, "cannot be read")

    if world.rank == 1:
        shards.read_shards = refuse
    try:
        next(iter(run.train()))
    except RearviewError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shards.read_shards = original
    return "nothing was raised"


def test_a_checkpoint_that_one_process_cannot_read(config: RunConfig, tmp_path: Path, worlds: Worlds):
    out = tmp_path / "out"
    worlds.run(train, 2, replace(config, steps=3), str(out))
    # The others do not report a lost connection in place of the reason.
    assert worlds.run(resume_unreadable, 2, str(out)) == [
        "RankFailed: ",
        f"RankFailed: rank 1: {newest(out)}/state: cannot be read",
    ]


def deleted(world: World, config: RunConfig, out: str) -> str:
    """The folder of the run is removed while it trains."""
    events = Run.start(config, out, world=world).train()
    until_saved(events, step=0)
    world.wait()
    if world.is_first:
        shutil.rmtree(out)
    try:
        for _ in events:
            pass
    except RearviewError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def test_a_folder_that_is_deleted_is_not_made_again(config: RunConfig, tmp_path: Path, worlds: Worlds):
    out = tmp_path / "out"
    assert worlds.run(deleted, 2, replace(config, steps=3), str(out)) == [
        f"NotSaved: The checkpoint of step 3 could not be written to {out}: No such file or directory. The folder was "
        "removed while the run was training.",
        "RankFailed: ",
    ]
    assert not out.exists()


def refused(world: World, config: RunConfig, out: str) -> str:
    try:
        with world.together():
            run = Run.start(config, out, world=world)
        next(iter(run.train()))
    except RearviewError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@pytest.mark.parametrize(
    ("size", "changes", "message"),
    [
        (
            3,
            {"batch": 2},
            "BadArgument: batch: expected at least 3 rows, one for each data parallel process, got 2. Use fewer "
            "processes, or a larger --batch.",
        ),
        (
            3,
            {"context_parallel": 2},
            "BadArgument: context_parallel: expected a divisor of the 3 processes, got 2. Each group of that many "
            "processes shares a sequence.",
        ),
        (
            2,
            {"context_parallel": 2, "dropout": 0.1},
            "BadArgument: dropout: expected 0 with --context-parallel: the dropout of attention weights has no form on "
            "a divided sequence, got 0.1.",
        ),
        (
            2,
            {"context_parallel": 2, "mask": "causal() & dilated(2)"},
            "NoRangeForm: causal() & dilated(2) cannot be spread over ranks:\n  - a layout needs the keys of each "
            "query as ranges: the keys that a query hears are not a few ranges\nWrite the mask with window, documents, "
            "prefix, chunks, tree or ranges(starts, ends), or run it on one device.",
        ),
        (
            2,
            {"context_parallel": 2, "model": "t5"},
            "Unsupported: --context-parallel:\n  - a sequence of a T5 cannot be divided; that of a GPT or BERT can",
        ),
        (
            2,
            {"text": "-"},
            'BadArgument: text: expected files or folders with several processes, got "-". Save it to a file first: '
            "the processes cannot all read the standard input.",
        ),
        (
            2,
            {"compile": True},
            "Unsupported: --compile in several processes:\n  - compiled losses are tested in one process only",
        ),
    ],
)
def test_what_several_processes_cannot_do(
    size: int, changes: dict[str, Any], message: str, config: RunConfig, tmp_path: Path, worlds: Worlds
):
    answers = worlds.run(refused, size, replace(config, **changes), str(tmp_path / "out"))
    assert answers[0] == message
    assert not (tmp_path / "out").exists()


def test_one_process_has_nothing_to_divide(config: RunConfig, tmp_path: Path):
    with pytest.raises(BadArgument) as error:
        Run.start(replace(config, shard=True), tmp_path / "out")
    assert str(error.value) == (
        "shard: expected several processes to divide a model between, got one. Start several: rearview train "
        "--processes N, or torchrun."
    )
    with pytest.raises(BadArgument, match="context_parallel: expected 1 in one process, got 2"):
        Run.start(replace(config, context_parallel=2), tmp_path / "out")


def other_text(world: World, config: RunConfig, out: str) -> str:
    """One machine has another text."""
    changes: dict[str, Any] = {"text": str(config.text).replace("text.txt", "other.txt")} if world.rank == 1 else {}
    return refused(world, replace(config, **changes), out)


def test_every_process_has_the_same_text(config: RunConfig, tmp_path: Path, worlds: Worlds):
    (tmp_path / "other.txt").write_text("---".join(reversed(TEXTS)))
    answers = worlds.run(other_text, 2, config, str(tmp_path / "out"))
    message = "RearviewError: Rank 1 has another text, tokenizer or settings than rank 0. All must have the same."
    assert answers == [message, message]
