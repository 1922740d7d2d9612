"""Texts that are larger than memory: read in pieces, tokenized once into a file, and read from there by windows."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rearview.errors import BadArgument, BadFile
from rearview.text import BPETokenizer, ByteTokenizer, CharTokenizer, Tokenizer, pieces
from rearview.text.pieces import cut, pieces_of
from rearview.text.tokenizer import encode_tensor
from rearview.training import (
    Batches,
    Corpus,
    Finished,
    Run,
    RunConfig,
    TextData,
    batches,
    read_texts,
    run_config,
    text_files,
    token_file,
)
from rearview.training.permutation import permuted
from rearview.training.text_files import TextFiles

TEXT = "".join(f"Zeile {n} of a text; naïve — 水 {n * n}?\r\n\n" for n in range(60)) + "the end"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pieces and blocks are so small that every text has many."""
    monkeypatch.setattr(pieces.cut, "__kwdefaults__", {"size": 12, "searched": 0})
    monkeypatch.setattr(text_files, "BLOCK", 7)
    monkeypatch.setenv("REARVIEW_CACHE", str(tmp_path / "cache"))


def documents(files: TextFiles) -> list[str]:
    found: list[str] = []
    for piece in files.pieces():
        assert piece.text
        if piece.starts:
            found.append("")
        found[-1] += piece.text
    return found


@pytest.mark.parametrize("separator", [None, "水", "\n\n", "aa"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_pieces_join_to_the_documents(separator: str | None, encoding: str, tmp_path: Path):
    for name, text in {"a.txt": TEXT, "b.txt": "aaaaa b aa c", "c.txt": "", "d.txt": "x" * 99}.items():
        (tmp_path / name).write_bytes(text.encode(encoding))
    wanted = read_texts(tmp_path, separator=separator, encoding=encoding)
    files = TextFiles.of(str(tmp_path), separator=separator, encoding=encoding)
    assert documents(files) == [document.text for document in wanted]
    assert len(list(files.pieces())) > len(wanted)


@pytest.mark.parametrize(
    ("content", "encoding"),
    [(b"good " * 9 + b"\xe9 bad", "utf-8"), (b"ab" * 20 + b"\0cd", "utf-8"), (b"cut off \xc3", "utf-8")],
)
def test_what_is_not_text_is_refused_as_in_memory(content: bytes, encoding: str, tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(BadFile) as wanted:
        read_texts(path, encoding=encoding)
    with pytest.raises(BadFile) as error:
        documents(TextFiles.of(str(path), encoding=encoding))
    assert str(error.value) == str(wanted.value)


def test_a_text_in_utf_16_is_named_as_such(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes("abc".encode("utf-16"))
    with pytest.raises(BadFile, match="If it has another encoding, name it: --encoding utf-16"):
        read_texts(path)


def test_files_that_do_not_exist_and_invalid_options(tmp_path: Path):
    with pytest.raises(BadFile, match=r"nowhere: does not exist\."):
        TextFiles.of(str(tmp_path / "nowhere")).size  # noqa: B018
    with pytest.raises(BadArgument, match="encoding: expected an encoding that Python supports, got 'utf-99'"):
        TextFiles.of(str(tmp_path), encoding="utf-99")
    with pytest.raises(BadArgument, match="separator: expected a string that is not empty, got an empty string"):
        TextFiles.of(str(tmp_path), separator="")


TOKENIZERS: list[Tokenizer] = [
    ByteTokenizer(),
    CharTokenizer.of([TEXT, "".join(map(chr, range(32, 127)))]),
    BPETokenizer.train([TEXT], vocab_size=400),
]


@given(st.text(st.sampled_from(" \n\tab'sé水9.\u00a0\u2028"), max_size=300), st.integers(1, 40))
def test_tokens_of_pieces_are_the_tokens_of_the_text(text: str, size: int):
    parts, rest = cut(text, size=size)
    assert "".join([*parts, rest]) == text
    bpe = TOKENIZERS[2]
    joined = [id for part in [*parts, rest] for id in bpe.encode(part)]
    assert joined == bpe.encode(text)


@given(st.text(st.sampled_from(" \nab_é水"), max_size=200), st.integers(1, 20), st.integers(1, 30))
def test_a_text_that_arrives_in_blocks_is_cut_as_if_all_were_searched_again(text: str, size: int, block: int):
    one, other, pieces_of_one, pieces_of_other = "", "", [], []
    for begin in range(0, len(text), block):
        arrived = text[begin : begin + block]
        parts, one = cut(one + arrived, size=size, searched=len(one))
        pieces_of_one += parts
        parts, other = cut(other + arrived, size=size)
        pieces_of_other += parts
    assert (pieces_of_one, one) == (pieces_of_other, other)


class Counted:
    """The places to cut, with the number of characters that were searched for them."""

    def __init__(self) -> None:
        self.pattern, self.characters = pieces.PLACE, 0

    def search(self, text: str, begin: int) -> re.Match[str] | None:
        self.characters += len(text) - begin
        return self.pattern.search(text, begin)

    def finditer(self, text: str, begin: int, end: int) -> Iterator[re.Match[str]]:
        self.characters += end - begin
        return self.pattern.finditer(text, begin, end)


@pytest.mark.parametrize("separator", [None, "水"])
def test_a_line_without_spaces_is_searched_once(separator: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file of one line arrives in thousands of blocks."""
    (tmp_path / "line.txt").write_text("x" * 3000)
    counted = Counted()
    monkeypatch.setattr(pieces, "PLACE", counted)
    assert documents(TextFiles.of(str(tmp_path / "line.txt"), separator=separator)) == ["x" * 3000]
    assert counted.characters < 4 * 3000


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.kind)
def test_ids_as_a_tensor_are_the_ids(tokenizer: Tokenizer):
    text = TEXT.replace("\r", "")
    assert encode_tensor(tokenizer, text).tolist() == tokenizer.encode(text)
    assert len(pieces_of(text)) > 9
    assert encode_tensor(tokenizer, "").tolist() == []
    if tokenizer.kind == "characters":
        with pytest.raises(BadArgument, match="the tokenizer's alphabet, got 'ÿ'"):
            encode_tensor(tokenizer, "abcÿ")


def test_subwords_learned_from_pieces_are_those_of_the_text(monkeypatch: pytest.MonkeyPatch):
    ours = BPETokenizer.train([TEXT], vocab_size=400)
    monkeypatch.setattr(pieces.cut, "__kwdefaults__", {"size": 1 << 20, "searched": 0})
    assert ours.inner.to_str() == BPETokenizer.train([TEXT], vocab_size=400).inner.to_str()


@pytest.mark.parametrize("separator", [None, "水"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.kind)
def test_tokens_in_a_file_are_those_in_memory(tokenizer: Tokenizer, separator: str | None, tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    wanted = TextData.of(read_texts(path, separator=separator), tokenizer, validation=0.3)
    got = TextData.of_files(TextFiles.of(str(path), separator=separator), tokenizer, validation=0.3)
    for name in ("train", "validation"):
        ours, theirs = getattr(got, name), getattr(wanted, name)
        assert ours.tokens.dtype == torch.uint16
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.starts.tolist() == theirs.starts.tolist()
        assert ours.characters == theirs.characters
    assert (got.fingerprint, got.documents, got.characters) == (
        wanted.fingerprint, wanted.documents, wanted.characters,
    )  # fmt: skip
    ours, theirs = (Batches(data.train, context=9, batch=4, seed=3)[50] for data in (got, wanted))
    assert torch.equal(ours.tokens, theirs.tokens)


def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    original = token_file._write
    monkeypatch.setattr(token_file, "_write", lambda *a: (found.append("built"), original(*a))[1])
    return found


def test_a_file_is_tokenized_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    times = built(monkeypatch)
    path = tmp_path / "a.txt"
    path.write_text("to be or not to be")
    files, tokenizer = TextFiles.of(str(path)), ByteTokenizer()
    first = TextData.of_files(files, tokenizer)
    assert TextData.of_files(files, tokenizer).fingerprint == first.fingerprint
    assert times == ["built"]
    # Another time and the same content: the checksum decides.
    os.utime(path, (1, 1))
    TextData.of_files(files, tokenizer)
    assert times == ["built"]
    # The same size, at once: the time may be the same, so the checksum decides here too.
    path.write_text("to be or not to by")
    second = TextData.of_files(files, tokenizer)
    assert times == ["built", "built"]
    assert second.fingerprint != first.fingerprint
    assert tokenizer.decode(second.validation.tokens.tolist()).endswith("y")
    # What was read before is still there, for a run that is under way.
    assert tokenizer.decode(first.validation.tokens.tolist()).endswith("e")
    # Another tokenizer has tokens of its own.
    TextData.of_files(files, CharTokenizer.of(["to be or not to by"]))
    assert len(times) == 3


def test_an_unfinished_or_damaged_file_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    files, tokenizer = TextFiles.of(str(path)), ByteTokenizer()

    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(token_file, "_append", fail)
        with pytest.raises(KeyboardInterrupt):
            TextData.of_files(files, tokenizer)
    folder = tmp_path / "cache" / "tokens"
    assert [each.suffix for each in folder.iterdir()] == [".lock"]
    data = TextData.of_files(files, tokenizer)
    (found,) = (each for each in folder.iterdir() if each.is_dir())
    (found / "tokens.bin").write_bytes(b"")
    why = r": is damaged \(tokens\.bin has 0 bytes, not [\d,]+\)\. Remove it; it will be made again\."
    with pytest.raises(BadFile, match=re.escape(str(found)) + why):
        TextData.of_files(files, tokenizer)
    (found / "source.json").unlink()
    assert TextData.of_files(files, tokenizer).fingerprint == data.fingerprint


def test_several_that_start_together_tokenize_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    times = built(monkeypatch)
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    found: list[TextData] = []
    files = TextFiles.of(str(path))
    threads = [
        threading.Thread(target=lambda: found.append(TextData.of_files(files, ByteTokenizer()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({data.fingerprint for data in found}) == 1
    assert (len(found), times) == (4, ["built"])


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.txt"
    path.write_text(TEXT)

    def grow(doing: str, done: int, total: int) -> None:
        with path.open("a") as file:
            file.write("x" if done < 20 else "")

    with pytest.raises(BadFile, match="was changed while it was read"):
        TextData.of_files(TextFiles.of(str(path)), ByteTokenizer(), progress=grow)


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "bpe"])
def test_a_run_on_a_large_text_is_the_run_on_a_small_one(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The threshold changes no number: a run is started in memory, and resumed from a file."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TEXT)
    config = RunConfig(
        text=(str(tmp_path / "a.txt"), str(tmp_path / "b.txt")), tokenizer=tokenizer, steps=4, context=16, layers=1,
        heads=2, width=16, batch=4, threads=1, eval_every=2, eval_tokens=64, sample_every=0, save_every=2,
        vocab_size=400 if tokenizer == "bpe" else None, separator="水",
    )  # fmt: skip
    for name, most in {"small": 1 << 25, "large": 0}.items():
        monkeypatch.setattr(run_config, "IN_MEMORY", most)
        *_, last = Run.start(config, tmp_path / name).train()
        assert last == Finished(4)
    assert (tmp_path / "cache" / "tokens").exists()
    whole = (tmp_path / "small" / "metrics.jsonl").read_bytes()
    assert (tmp_path / "large" / "metrics.jsonl").read_bytes() == whole
    *_, last = Run.resume(tmp_path / "small" / "step-000002").train()
    assert (tmp_path / "small" / "metrics.jsonl").read_bytes() == whole
    # Another text is refused.
    (tmp_path / "b.txt").write_text(TEXT.replace("end", "dne"))
    with pytest.raises(BadArgument, match="text: expected the text of the run in"):
        Run.resume(tmp_path / "large")


@given(st.integers(1, 3000), st.integers(0, 1 << 55))
def test_a_permutation_has_every_number_once(count: int, seed: int):
    found = permuted(torch.arange(count), count, seed)
    assert found.sort().values.tolist() == list(range(count))


def test_permutations_look_random():
    """Every place is equally likely for every number, and neighbours do not stay together."""
    count, seeds = 8, 800
    table = torch.zeros(count, count)
    for seed in range(seeds):
        table[torch.arange(count), permuted(torch.arange(count), count, seed * 0x9E3779B97F4A7C15 % (1 << 56))] += 1
    # Each entry is binomial with mean 100 and standard deviation 9.
    assert (table - seeds / count).abs().max() < 6 * 9.4
    long = permuted(torch.arange(100_000), 100_000, seed=7)
    assert float((long.diff().abs() == 1).float().mean()) < 1e-3
    assert abs(float(torch.corrcoef(torch.stack([long[:-1].double(), long[1:].double()]))[0, 1])) < 0.02


def test_the_order_of_a_large_text_is_computed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batches, "MOST_IN_MEMORY", 10)
    corpus = Corpus.of(["".join(chr(97 + n % 26) for n in range(400))], ByteTokenizer())
    found = Batches(corpus, context=10, batch=3, seed=1)
    begins = found._order(0)
    assert begins.sort().values.diff().unique().tolist() == [10]
    assert not torch.equal(begins, found._order(1))
    rows = batches.Rows(corpus, 10).at(torch.cat([found._order(0), found._order(1)])[38:41])
    # The 39 windows of an epoch end in the middle of a batch.
    assert torch.equal(torch.cat([found[12].tokens, found[13].tokens])[2:5], rows.tokens)


MEMORY = """
import resource, sys
from pathlib import Path
from rearview.training import Run, RunConfig, run_config, text_files
run_config.IN_MEMORY = 0
def peak(text, out):
    config = RunConfig(text=text, tokenizer=sys.argv[2], steps=2, context=16, layers=1, heads=2, width=16, batch=2,
                       threads=1, eval_tokens=64, sample_every=0, vocab_size=300 if sys.argv[2] == "bpe" else None)
    for event in Run.start(config, out).train(): pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
folder = Path(sys.argv[1])
line = "".join(f"Line {n} of a text that repeats itself.\\n" for n in range(1000))
(folder / "small.txt").write_text(line * 2)
with (folder / "large.txt").open("w") as file:
    for n in range(int(sys.argv[3])): file.write(line)
before = peak(str(folder / "small.txt"), folder / "small")
print(peak(str(folder / "large.txt"), folder / "large") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is in kilobytes on Linux only")
@pytest.mark.parametrize(("tokenizer", "copies"), [("bytes", 1500), ("bpe", 100)])
def test_memory_does_not_grow_with_the_text(tokenizer: str, copies: int, tmp_path: Path):
    """55 MB as bytes would take 220 MB as int32; 3.7 MB of subwords took 800 MB in one piece."""
    environment = {**os.environ, "REARVIEW_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path), tokenizer, str(copies)],
        capture_output=True, text=True, env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100, f"{done.stdout} MB more than a small text"
