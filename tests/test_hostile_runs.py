"""Runs, comparisons, reports, texts and mask expressions that are not trusted; see test_hostile_files.py.

A checkpoint has checksums, which an attacker makes fit again: the files of a run are mutated both ways.
"""

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rearview.auditing import Witness, audit, compare_reports
from rearview.auditing.reporting.serial import from_json
from rearview.cli.audit_run import run_diff
from rearview.codec import read_bytes
from rearview.comparison import folder as comparisons
from rearview.masks.parser import parse
from rearview.text import ByteTokenizer
from rearview.text_model import load_text_model
from rearview.training import Run, RunConfig, best, newest, read_metrics, read_texts
from rearview.training.checkpoint import Record
from rearview.training.checkpoint.record import NAME as RECORD
from rearview.training.checkpoint.record import _checksum, checksum_of
from rearview.training.curve import draw_curve
from rearview.training.data import TextData
from rearview.training.text_files import TextFiles
from tests.comparison.example import a_comparison
from tests.hostile import (
    ESCAPE,
    HOSTILE,
    IN_PLACE,
    MUTATIONS,
    SEED,
    changed_bytes,
    check_in_place,
    check_mutations,
    holds,
    mutated,
)

TEXT = "".join(f"Line {n} of a text that is about nothing in particular.\n" for n in range(40))
CONFIG = RunConfig(
    steps=2, context=16, layers=1, heads=2, width=16, batch=2, threads=1, eval_every=1, eval_tokens=64,
    sample_every=0, save_every=1, tokenizer="chars",
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("runs")
    (root / "text.txt").write_text(TEXT)
    for _ in Run.start(replace(CONFIG, text=str(root / "text.txt")), root / "run").train():
        pass
    comparisons.save(a_comparison(), root / "compared")
    report = audit(lambda x: x.flip(1), torch.randn(1, 6))
    report.save(root / "report.json")
    assert report.witness is not None
    for ending in ("npz", "safetensors"):
        report.witness.save(root / f"witness.{ending}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REARVIEW_CACHE", str(root / "cache"))
        use_tokens(root)
        yield root


def use_run(out: Path) -> None:
    """What --resume and `generate` read, up to the first event of the training."""
    best(out)
    read_metrics(out)
    load_text_model(out)
    events = Run.resume(out, steps=3).train()
    try:
        next(events)
    finally:
        events.close()


def use_metrics(out: Path) -> None:
    draw_curve(read_metrics(out), out / "loss.svg")


def use_comparison(out: Path) -> None:
    comparisons.load(out)


def use_report(path: Path) -> None:
    report = from_json(read_bytes(path, most=2**28), path)
    str(report.show())
    report.save(path.with_suffix(".html"))
    compare_reports(report, report)


def use_witness(path: Path) -> None:
    str(Witness.load(path).sentence)


def use_text(path: Path) -> None:
    read_texts(path)
    for _ in TextFiles.of(str(path)).pieces():
        pass


def use_tokens(root: Path) -> None:
    data = TextData.of_files(TextFiles.of(str(root / "text.txt")), ByteTokenizer())
    assert int(data.train.tokens[:5].sum()) >= 0


def sign(out: Path) -> None:
    """Make the checksums of the newest checkpoint fit its files, as whoever changed them would."""
    last = newest(out)
    body = json.loads((last / RECORD).read_bytes())
    files = {path.name: (path.stat().st_size, checksum_of(path)) for path in last.iterdir() if path.name != RECORD}
    body = {name: value for name, value in body.items() if name != "checksum"}
    (last / RECORD).write_bytes(Record(**{**body, "files": files}).to_bytes())


READERS: dict[str, Callable[[Path], None]] = {
    "run/step-000002/training.json": use_run,
    "run/step-000002/config.json": use_run,
    "run/step-000002/model.safetensors": use_run,
    "run/step-000002/optimizer.safetensors": use_run,
    "run/step-000002/rearview_tokenizer.json": use_run,
    "run/metrics.jsonl": use_metrics,
    "compared/comparison.json": use_comparison,
    "report.json": use_report,
    "witness.npz": use_witness,
    "witness.safetensors": use_witness,
    "text.txt": use_text,
}


def copied(corpus: Path, name: str, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of a file, and what its reader is given: the folder of the run, or the file."""
    first, _, inside = name.partition("/")
    if not inside:
        return (copy := Path(shutil.copy(corpus / name, tmp_path))), copy
    folder = Path(shutil.copytree(corpus / first, tmp_path / first))
    return folder / inside, folder


@pytest.mark.parametrize("name", READERS)
def test_mutated_files_are_read_or_refused(corpus: Path, name: str, tmp_path: Path):
    check_mutations(READERS[name], *copied(corpus, name, tmp_path), name)


@pytest.mark.parametrize("name", [name for name in READERS if "step" in name and RECORD not in name])
def test_mutated_files_with_new_checksums_are_read_or_refused(corpus: Path, name: str, tmp_path: Path):
    check_mutations(use_run, *copied(corpus, name, tmp_path), name, repair=sign)


@pytest.mark.parametrize("kind", IN_PLACE)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_refused(corpus: Path, name: str, kind: str, tmp_path: Path):
    check_in_place(READERS[name], *copied(corpus, name, tmp_path), kind)


@pytest.mark.parametrize("number", range(MUTATIONS))
def test_records_with_hostile_values_and_fitting_checksums(corpus: Path, number: int, tmp_path: Path):
    out = Path(shutil.copytree(corpus / "run", tmp_path / "run"))
    path, draw = newest(out) / RECORD, random.Random(f"{SEED}{number}")
    body = json.loads(path.read_bytes())
    body.pop("checksum")
    where = body["config"] if draw.random() < 0.7 else body
    for _ in range(draw.choice([1, 1, 3])):
        where[draw.choice(sorted(where))] = copy.deepcopy(draw.choice(HOSTILE))
    path.write_text(json.dumps({**body, "checksum": _checksum(body)}))
    holds(use_run, out)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sources": []}, "witnesses[0].sources: expected at least one position, got none"),
        ({"other": {}}, "witnesses[0].other: expected at least one input, got none"),
        ({"item": 7}, "witnesses[0].other: expected inputs with the axes 0 and 1 and the item 7, got the shape [1, 6]"),
        ({"time_axis": 5}, "witnesses[0].other: expected inputs with the axes 0 and 5 and the item 0, got the shape"),
    ],
)
def test_witnesses_that_no_audit_finds_are_refused(corpus: Path, change: dict, said: str, tmp_path: Path):
    body = json.loads((corpus / "report.json").read_text())
    body["witnesses"][0] |= change
    path = tmp_path / "report.json"
    path.write_text(json.dumps(body))
    assert said in (holds(use_report, path) or "")


def test_a_setting_that_is_no_number_is_refused(corpus: Path, tmp_path: Path):
    out = Path(shutil.copytree(corpus / "run", tmp_path / "run"))
    path = newest(out) / RECORD
    body = json.loads(path.read_bytes())
    body.pop("checksum")
    body["config"]["validation"] = "nan"
    path.write_text(json.dumps({**body, "checksum": _checksum(body)}))
    assert "config.validation: expected a number, got nan" in (holds(use_run, out) or "")


def test_a_pipe_is_no_report(tmp_path: Path):
    os.mkfifo(tmp_path / "report.json")
    said = holds(lambda path: print(run_diff(str(path), str(path), target=None)), tmp_path / "report.json")
    assert (said or "").endswith("report.json: this is a pipe or a device, not a file")


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-16", "utf-16-le", "utf-32", "latin-1", "shift-jis", "utf-7", "idna", "rot13", "undefined"],
)
def test_texts_of_every_encoding_and_none(encoding: str, tmp_path: Path):
    """Under every encoding that Python knows: a text, or an error; read whole and in blocks with the same result."""
    draw = random.Random(f"{SEED}{encoding}")
    written = encoding if encoding.startswith("utf") else "utf-8"
    good = "Übermut tut selten gut.\r\n日本語\n".encode(written, "replace")
    for number in range(MUTATIONS):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(changed_bytes(good, draw))

        def use(path: Path) -> None:
            (whole,) = read_texts(path, encoding=encoding)
            pieces = TextFiles.of(str(path), encoding=encoding).pieces()
            assert "".join(piece.text for piece in pieces) == whole.text

        holds(use, path)


WORDS = [
    *("causal()", "window(3)", "prefix(2)", "documents([0, 0, 1])", "padding([3])", "chunks(2)", "dilated(2)"),
    *("tree([-1, 0])", "along(tree([-1, 0]), window(1))", "per_head([causal(), full()])", "ranges([0], [1])", "where("),
    *("(", ")", "[", "]", ",", "&", "|", "~", "-", "-1", "0", "10**9", "9" * 30, "True", "None", "lambda: 0", "x", "."),
    *("window(", "documents([", "\0", "#", "\n", ESCAPE, "'", '"', "=", "ahead=", "é", "(" * 300, "~" * 5000, "\ud800"),
]


def test_mask_expressions_are_read_or_refused(tmp_path: Path):
    """Random words: whatever is a mask can be shown and lowered at a small size."""
    draw, masks = random.Random(f"{SEED}masks"), 0

    def use(text: str) -> None:
        nonlocal masks
        mask = parse(text)
        masks += 1
        mask.show(6)
        mask.to_bool(6)

    for _ in range(60 * MUTATIONS):
        words = [draw.choice(WORDS) for _ in range(draw.choice([1, 1, 2, 3, 5, 9]))]
        if draw.random() < 0.5:
            words = [word for each in words for word in (each, draw.choice("&|"))][:-1]
        holds(use, " ".join(words))
    assert masks > 50


@pytest.mark.parametrize("name", ["tokens", "bytes_per_token", "documents", "marks", "characters", "fingerprint"])
def test_numbers_of_a_cache_that_are_none_are_refused(corpus: Path, name: str):
    (path,) = (corpus / "cache").rglob("tokens.json")
    good = path.read_text()
    try:
        for wrong in ([], {}, None, True, 0.5):
            path.write_text(json.dumps({**json.loads(good), name: wrong}))
            assert f"{name}: expected" in (holds(use_tokens, corpus) or "")
    finally:
        path.write_text(good)


TOKEN_FILES = ("tokens.bin", "starts.bin", "marks.bin", "tokens.json", "source.json")


@pytest.mark.parametrize("name", TOKEN_FILES)
def test_a_damaged_cache_of_tokens_is_refused_or_made_again(corpus: Path, name: str):
    """Files of the user's own cache: sizes are checked, and JSON may be anything."""
    (path,) = (corpus / "cache").rglob(name)
    good, draw = path.read_bytes(), random.Random(f"{SEED}{name}")
    for number in range(MUTATIONS):
        if path.suffix == ".json":
            path.write_bytes(mutated(path, good, number, draw))
        else:
            path.write_bytes(good[: draw.randrange(len(good))])
        holds(use_tokens, corpus)
        (path,) = (corpus / "cache").rglob(name)
        path.write_bytes(good)
    path.unlink()
    os.mkfifo(path)
    holds(use_tokens, corpus)
    # As the error says, the folder can be removed.
    shutil.rmtree(path.parent)
    use_tokens(corpus)
