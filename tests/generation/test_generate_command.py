"""`rearview generate`, in this process and as a shell starts it: texts, JSON, pipes, Ctrl-C, what is refused."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rearview.cli import run
from rearview.generation import complete
from rearview.models import BERT, BERTConfig
from rearview.text import ByteTokenizer, CharTokenizer
from tests.generation.models import loud, small_gpt, small_t5
from tests.native_kernel import needs_native

LETTERS = CharTokenizer("abcdefgh ", specials=("<end>", "<mask>"))


def saved(model, tokenizer, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root, vocab = tmp_path_factory.mktemp("models"), LETTERS.vocab_size
    other = CharTokenizer("abcxefgh ", specials=("<end>", "<mask>"))
    torch.manual_seed(0)
    bert = loud(BERT(BERTConfig(vocab_size=vocab, context=16, layers=1, heads=2, width=16)))
    return {
        "gpt": saved(small_gpt(context=16, vocab_size=vocab), LETTERS, root / "gpt"),
        "draft": saved(small_gpt(context=16, vocab_size=vocab, layers=1), LETTERS, root / "draft"),
        "other draft": saved(small_gpt(vocab_size=vocab), other, root / "other"),
        "small draft": saved(small_gpt(vocab_size=9), CharTokenizer("abcdefgh"), root / "small"),
        "t5": saved(small_t5(vocab_size=vocab, end_id=LETTERS.end_id), LETTERS, root / "t5"),
        "bert": saved(bert, LETTERS, root / "bert"),
        "large": saved(small_gpt(context=64, vocab_size=257, layers=8, width=128), ByteTokenizer(), root / "large"),
    }


@pytest.fixture
def rearview(capsys, monkeypatch, folders):
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(kind: str, *arguments: str) -> tuple[int, str, str]:
        code = run(["generate", str(folders.get(kind, kind)), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@needs_native
def test_batch_invariant_texts_are_the_same_together_and_alone(rearview):
    options = ("--max-tokens", "12", "--seed", "3", "--batch-invariant", "--json")
    code, together, _ = rearview("gpt", "--prompt", "abc", "--prompt", "d", *options)
    assert code == 0
    found = {each["prompt"]: each["tokens"] for each in map(json.loads, together.splitlines())}
    for prompt in ("abc", "d"):
        assert json.loads(rearview("gpt", "--prompt", prompt, *options)[1])["tokens"] == found[prompt]
    code, out, err = rearview("t5", "--prompt", "abc", "--batch-invariant")
    assert (code, out) == (2, "")
    assert "batch_invariant of a T5" in err


def test_a_gpt_goes_on_from_its_prompt(rearview):
    code, out, err = rearview("gpt", "--prompt", "abc", "--max-tokens", "10", "--seed", "3")
    (expected,) = complete(
        small_gpt(context=16, vocab_size=LETTERS.vocab_size), LETTERS, "abc", max_new_tokens=10, seed=3
    )
    assert (code, err) == (0, "")
    assert out == "abc" + expected.text + "\n"


def test_without_a_seed_every_text_is_new_and_its_seed_is_printed(rearview):
    options = ["--prompt", "abc", "--max-tokens", "40", "--when-full", "slide"]
    texts = set()
    for _ in range(3):
        code, out, err = rearview("gpt", *options)
        assert code == 0
        found = re.search(r"^rearview: to generate the same text again: --seed (\d{1,6})$", err, re.MULTILINE)
        assert found
        assert rearview("gpt", *options, "--seed", found[1])[1] == out
        texts.add(out)
    assert len(texts) > 1
    # A greedy text needs none, and JSON has it.
    assert "--seed" not in rearview("gpt", *options, "--greedy")[2]
    assert "--seed" not in rearview("gpt", *options, "--json")[2]


@pytest.mark.parametrize("more", [["--no-cache"], ["--prompt", "abc", "--prompt", "h"], ["--samples", "2"]])
def test_the_same_text_without_the_cache_and_in_a_batch(rearview, more):
    options = ["--prompt", "abc", "--max-tokens", "30", "--seed", "3", "--top-k", "5"]
    _, alone, _ = rearview("gpt", *options)
    _, other, _ = rearview("gpt", *options, *more)
    assert alone in other


def test_greedy_is_temperature_0(rearview):
    same = ["--prompt", "ab", "--max-tokens", "20"]
    assert rearview("gpt", *same, "--greedy") == rearview("gpt", *same, "--temperature", "0")


def test_several_texts_have_headings_in_their_order(rearview):
    _, out, _ = rearview("gpt", "-p", "ab", "-p", "cde", "--samples", "2", "--seed", "5", "--max-tokens", "4")
    lines = out.splitlines()
    assert lines[::2] == [f"--- prompt {p} of 2, seed {s}" for p in (1, 2) for s in (5, 6)]
    assert [line[:2] for line in lines[1::2]] == ["ab", "ab", "cd", "cd"]


def test_json_is_a_line_for_each_text(rearview):
    code, out, _ = rearview("gpt", "-p", "ab", "-p", "c", "--max-tokens", "30", "--json")
    found = sorted((json.loads(line) for line in out.splitlines()), key=lambda each: each["number"])
    assert [each["prompt"] for each in found] == ["ab", "c"]
    assert {*found[0]} == {"number", "prompt", "text", "tokens", "reason", "slid", "seed"}
    assert LETTERS.decode(found[0]["tokens"]) == found[0]["text"]
    assert code == 0


def test_a_full_context_is_told_beside_the_text(rearview):
    _, out, err = rearview("gpt", "-p", "abc", "--max-tokens", "60", "--seed", "9", "--repetition-penalty", "1.1")
    assert err == "rearview: the context of 16 tokens was full, and its oldest tokens were dropped\n"
    assert "context" not in out
    _, _, err = rearview("gpt", "-p", "abc", "--max-tokens", "60", "--seed", "9", "--when-full", "stop")
    assert err == "rearview: stopped: the context of 16 tokens is full\n"


@pytest.mark.parametrize("branches", ["1", "3"])
@pytest.mark.parametrize("output", [[], ["--json"]])
def test_a_draft_gives_the_same_text_and_its_figures(rearview, folders, branches, output):
    options = ["-p", "abc", "-p", "h", "--max-tokens", "12", "--greedy", *output]
    draft = ["--draft", str(folders["draft"]), "--draft-tokens", "6", "--draft-branches", branches]
    _, plain, nothing = rearview("gpt", *options)
    code, out, err = rearview("gpt", *options, *draft)
    assert (code, nothing) == (0, "")
    assert sorted(out.splitlines()) == sorted(plain.splitlines())
    assert re.fullmatch(
        r"rearview: \d+ tokens in \d+ passes of the model, [\d.]+ tokens/s; "
        r"\d+ of \d+ drafted tokens accepted \([\d.]+ %\)\n",
        err,
    )


@pytest.mark.parametrize(
    ("kind", "draft", "arguments", "message"),
    [
        ("gpt", None, ["--draft-tokens", "3"], "--draft-tokens: expected --draft as well, got no draft."),
        ("gpt", "no/such", [], "--draft: expected a run of rearview train, or a folder with config.json"),
        (
            "gpt",
            "other draft",
            [],
            "--draft: expected the vocabulary of the model, 11 characters, got 11 characters, which differ from "
            "token 3 on. Train both models with the same tokenizer.",
        ),
        (
            "gpt",
            "small draft",
            [],
            "--draft: expected the vocabulary of the model, 11 characters, got 9 characters, which differ from token 8",
        ),
        ("gpt", "t5", [], "draft: expected a GPT, got T5."),
        ("t5", "draft", [], "speculative decoding:\n  - the decoder of a T5 has relative positions, which count the"),
        ("bert", "draft", ["-p", "a[MASK]"], "--draft: expected options that apply to a BERT, got one that does not."),
        (
            "gpt",
            "draft",
            ["--draft-branches", "9"],
            "draft branches: expected at most 5, the number of draft tokens, got 9.",
        ),
        ("gpt", "draft", ["--max-tokens", "90"], "speculative decoding:\n  - the context of 16 tokens would slide"),
    ],
)
def test_errors_of_a_draft(rearview, folders, kind, draft, arguments, message):
    given = [] if draft is None else ["--draft", str(folders.get(draft, draft))]
    prompt = [] if "-p" in arguments else ["-p", "ab"]
    code, out, err = rearview(kind, *prompt, "--max-tokens", "9", *given, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"rearview: {message}")


def test_a_stop_string_ends_the_text(rearview):
    _, whole, _ = rearview("gpt", "-p", "abc", "--max-tokens", "10", "--seed", "3")
    stop = whole[5:7]
    _, cut, _ = rearview("gpt", "-p", "abc", "--max-tokens", "10", "--seed", "3", "--stop", stop)
    assert cut == whole[: whole.index(stop, 3)] + "\n"


def test_a_t5_answers(rearview):
    code, out, err = rearview("t5", "--prompt", "abc", "--max-tokens", "9", "--seed", "0")
    assert (code, err) == (0, "")
    assert out.endswith("\n")
    assert set(out) <= set("abcdefgh \n")


def test_a_bert_fills_in(rearview):
    code, out, _ = rearview("bert", "--prompt", "ab[MASK]c[MASK]", "--top", "2")
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "ab[MASK]c[MASK]"
    assert lines[1].startswith("  gap 1:  '")
    assert lines[2].count("%") == 2
    _, out, _ = rearview("bert", "--prompt", "ab[MASK]", "--json")
    assert len(json.loads(out)["gaps"][0]["candidates"]) == 5


def test_the_newest_checkpoint_of_a_run_is_taken(rearview, folders, tmp_path):
    saved(small_gpt(context=4, vocab_size=LETTERS.vocab_size), LETTERS, tmp_path / "run" / "step-000100")
    saved(small_gpt(context=16, vocab_size=LETTERS.vocab_size), LETTERS, tmp_path / "run" / "step-000200")
    same = ["--prompt", "abc", "--max-tokens", "10", "--greedy"]
    assert rearview(str(tmp_path / "run"), *same) == rearview("gpt", *same)


def test_no_prompt_starts_a_document(rearview):
    assert rearview("gpt", "--max-tokens", "5", "--greedy") == rearview(
        "gpt", "--prompt", "", "--max-tokens", "5", "--greedy"
    )


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (
            "no/such",
            [],
            "DIR: expected a run of rearview train, or a folder with config.json",
        ),
        ("gpt", ["-p", "xyz"], "text: expected the 9 characters of the tokenizer's alphabet, got 'x', 'y', 'z'."),
        ("gpt", ["--greedy", "--temperature", "1"], "--greedy: expected either --greedy or --temperature, got both."),
        ("gpt", ["--temperature", "-1"], "temperature: expected a number of at least 0, got -1.0."),
        ("gpt", ["--when-full", "burst"], 'when_full: expected "slide" or "stop", got \'burst\'.'),
        ("gpt", ["--samples", "0"], "samples: expected an integer of at least 1, got 0."),
        (
            "gpt",
            ["--top", "3"],
            "--top: expected options that apply to a model that is not a BERT, got one that does not.",
        ),
        ("bert", ["-p", "a[MASK]", "--top-k", "3"], "--top-k: expected options that apply to a BERT, got one"),
        ("bert", ["-p", "abc"], "text: expected at least one [MASK] to fill, got 'abc'."),
        ("gpt", ["-p", "a" * 17, "--when-full", "stop"], "prompt: expected at most 16 tokens, the model's context"),
    ],
)
def test_errors(rearview, kind, arguments, message):
    code, out, err = rearview(kind, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"rearview: {message}")


def test_a_folder_without_a_tokenizer(rearview, tmp_path):
    small_gpt().save_pretrained(tmp_path)
    code, _, err = rearview(str(tmp_path), "-p", "a")
    assert code == 2
    assert "has no tokenizer: neither rearview_tokenizer.json nor tokenizer.json" in err


def test_a_tokenizer_of_another_model(rearview, tmp_path):
    saved(small_gpt(vocab_size=5), LETTERS, tmp_path)
    code, _, err = rearview(str(tmp_path), "-p", "a")
    assert code == 2
    assert "a tokenizer of 11 tokens and a model of 5" in err


# As a process.

COMMAND = [sys.executable, "-c", "from rearview.cli import main; main()", "generate"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}


def test_a_prompt_from_the_standard_input(folders, rearview):
    same = ["--prompt", "-", "--max-tokens", "8", "--greedy"]
    done = subprocess.run(
        [*COMMAND, str(folders["gpt"]), *same], input=b"abc\n", capture_output=True, env=ENVIRONMENT, timeout=120
    )
    assert done.returncode == 0
    assert done.stdout.decode() == rearview("gpt", "--prompt", "abc", "--max-tokens", "8", "--greedy")[1]


@pytest.fixture
def speaking(folders) -> Iterator[subprocess.Popen[bytes]]:
    """A process that would speak for a long time, and has begun."""
    options = ["--prompt", "abc", "--max-tokens", "100000", "--greedy", "--repetition-penalty", "1.2"]
    process = subprocess.Popen(
        [*COMMAND, str(folders["large"]), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    )
    assert process.stdout is not None
    assert process.stdout.read(4)[:3] == b"abc"
    yield process
    process.communicate(timeout=60)


def test_it_streams_and_ctrl_c_keeps_what_was_said(speaking):
    time.sleep(0.3)
    speaking.send_signal(signal.SIGINT)
    out, err = speaking.communicate(timeout=60)
    assert speaking.returncode == 130
    assert out.endswith(b"\n")
    assert b"Traceback" not in err


def test_a_reader_that_leaves_is_no_error(speaking):
    speaking.stdout.close()
    assert speaking.wait(timeout=60) == 141
    assert speaking.stderr.read() == b""
