"""rearview observe: what it prints, what it writes, how it exits."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rearview import causal, window
from rearview.models import BERT, GPT, T5, BERTConfig, GPTConfig, T5Config
from rearview.observation import Observation, observe
from rearview.text import BPETokenizer, ByteTokenizer, load_tokenizer

TEXT = "To be, or not to be, that is the question"


def awake(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "gpt"
    model = awake(GPT(GPTConfig(vocab_size=257, context=64, layers=2, heads=3, width=24)))
    model.save_pretrained(folder)
    ByteTokenizer().save(folder)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "other"
    model = awake(GPT(GPTConfig(vocab_size=257, context=64, layers=2, heads=3, width=24)))
    with torch.no_grad():
        model.tokens.weight += 0.2
    model.save_pretrained(folder)
    ByteTokenizer().save(folder)
    return folder


def of_model(folder: Path, text: str = TEXT, **options) -> Observation:
    from rearview.models.checkpoint import load

    model, tokenizer = load(folder), load_tokenizer(folder)
    with observe(model, **options) as seen, torch.inference_mode():
        model(torch.tensor([tokenizer.encode(text)]))
    return seen


def same(one: Observation, two: Observation) -> bool:
    return all(torch.allclose(a.statistics.received, b.statistics.received, atol=1e-5)
               for a, b in zip(one.layers, two.layers, strict=True))  # fmt: skip


def test_it_prints_all_heads_and_keeps_the_run(rearview, gpt: Path, tmp_path: Path):
    saved = tmp_path / "seen.npz"
    done = rearview("observe", str(gpt), "--prompt", TEXT, "--out", str(saved))
    assert (done.code, done.err) == (0, f"rearview: wrote {saved}\n")
    assert done.out.splitlines()[0] == f"gpt  ·  2 layers, 6 heads  ·  {len(TEXT)} positions"
    seen = Observation.load(saved)
    assert same(seen, of_model(gpt))
    assert seen.labels is not None
    assert seen.labels[:4] == ["T", "o", "␣", "b"]
    # Opened again it prints the same.
    assert rearview("observe", str(saved)) == (0, done.out, "")
    for layer, row in enumerate(shares.tolist() for shares in seen.sinks(1)):
        assert re.search(rf"^ +{layer} +" + " +".join(f"{100 * x:.0f}" for x in row), done.out, re.MULTILINE)


def test_the_text_comes_from_a_file_or_the_standard_input(rearview, gpt: Path, tmp_path: Path, monkeypatch):
    book = tmp_path / "book.txt"
    book.write_text(TEXT)
    from_file = rearview("observe", str(gpt), "--text", str(book))
    monkeypatch.setattr(sys, "stdin", io.StringIO(TEXT))
    assert rearview("observe", str(gpt), "-t", "-") == from_file
    assert from_file == rearview("observe", str(gpt), "-p", TEXT)


def test_one_head_is_drawn_and_pictured(rearview, gpt: Path, tmp_path: Path):
    picture, text = tmp_path / "head.svg", tmp_path / "head.txt"
    done = rearview("observe", str(gpt), "-p", TEXT[:12], "--show", "1.2", "--scale", "expected",
                    "--out", str(picture), "--out", str(text))  # fmt: skip
    assert done.code == 0
    assert done.out.splitlines()[0] == "layer 1 head 2  ·  blocks.1.attention  ·  12 queries x 12 keys"
    assert "times what uniform attention would give" in done.out
    assert text.read_text() == done.out
    assert "Layer 1, head 2" in picture.read_text()


def test_layers_heads_and_length_are_picked(rearview, gpt: Path, tmp_path: Path):
    saved = tmp_path / "seen.npz"
    done = rearview("observe", str(gpt), "-p", TEXT, "--layers", "1", "--heads", "0,2", "-n", "10", "-o", str(saved))
    assert done.err.startswith(f"rearview: reading the first 10 of {len(TEXT)} tokens, because of --length\n")
    seen = Observation.load(saved)
    assert [(layer.index, layer.heads, layer.keys) for layer in seen.layers] == [(1, (0, 2), 10)]
    assert same(seen, of_model(gpt, TEXT[:10], layers=[1], heads=[0, 2]))
    long = rearview("observe", str(gpt), "-p", 3 * TEXT)
    assert long.err == f"rearview: reading the first 64 of {3 * len(TEXT)} tokens, because the model has 64 positions\n"
    assert long.out.splitlines()[0].endswith("64 positions")


def test_generated_tokens_are_observed_too(rearview, gpt: Path, tmp_path: Path):
    saved = tmp_path / "seen.npz"
    assert rearview("observe", str(gpt), "-p", "To be", "--generate", "6", "-o", str(saved)).code == 0
    seen = Observation.load(saved)
    # No query hears the last token that is generated.
    assert seen.length == len("To be") + 5
    assert seen.labels is not None
    assert "".join(seen.labels[:5]) == "To␣be"
    from rearview.generation import generate
    from rearview.models.checkpoint import load

    written = generate(load(gpt, GPT), list(b"To be"), max_new_tokens=6, temperature=0).finish().tokens[0]
    text = [*b"To be", *written][:-1]
    model = load(gpt)
    with observe(model) as whole, torch.inference_mode():
        model(torch.tensor([text]))
    assert same(seen, whole)


def test_two_models_and_two_runs_are_compared(rearview, gpt: Path, other: Path, tmp_path: Path):
    page, a, b = (tmp_path / name for name in ("changed.html", "a.npz", "b.npz"))
    done = rearview("observe", str(gpt), "-p", TEXT, "--against", str(other), "-o", str(page))
    assert done.code == 0
    assert done.out.splitlines()[0] == f"What changed from gpt to other  ·  2 layers, 6 heads  ·  {len(TEXT)} positions"
    assert '"kind":"diff"' in page.read_text()
    assert "What changed from gpt to other" in page.read_text()
    for folder, path in ((gpt, a), (other, b)):
        rearview("observe", str(folder), "-p", TEXT, "-o", str(path))
    assert rearview("observe", str(a), "--against", str(b)).out == done.out


def test_a_narrower_mask_is_compared(rearview, gpt: Path):
    done = rearview("observe", str(gpt), "-p", TEXT, "--mask", "window(4)", "--show", "0.1")
    assert done.code == 0
    from rearview.models.checkpoint import load

    model, ids = load(gpt, GPT), torch.tensor([list(TEXT.encode())])
    with observe(model) as narrow, torch.inference_mode():
        model(ids, mask=causal() & window(4))
    moved = float(of_model(gpt).diff(narrow).layers[0].moved[1])
    assert f"{100 * moved:.1f} % of the weight went to other keys." in done.out


def test_models_of_every_kind(rearview, tmp_path: Path):
    tokenizer = BPETokenizer.train([TEXT * 20], vocab_size=290)
    small: dict[str, Any] = {"vocab_size": 290, "layers": 1, "heads": 2, "width": 16}
    awake(BERT(BERTConfig(**small, context=64))).save_pretrained(tmp_path / "bert")
    awake(T5(T5Config(**small))).save_pretrained(tmp_path / "t5")
    for name in ("bert", "t5"):
        tokenizer.save(tmp_path / name)
    bert = rearview("observe", str(tmp_path / "bert"), "-p", TEXT)
    assert (bert.code, bert.err) == (0, "")
    t5 = rearview("observe", str(tmp_path / "t5"), "-p", TEXT, "--generate", "4", "-o", str(tmp_path / "t5.npz"))
    assert t5.code == 0
    assert re.search(r"^ +enc 0 .*\n +self 1 .*\n +cross 2 ", t5.out, re.MULTILINE)
    seen = Observation.load(tmp_path / "t5.npz")
    assert seen.source_labels is not None
    assert seen.key_labels(2) == seen.source_labels
    assert "".join(seen.source_labels).startswith("To␣be,")
    alone = rearview("observe", str(tmp_path / "t5"), "-p", TEXT)
    assert (alone.code, alone.out) == (2, "")
    assert "--generate N runs its decoder" in alone.err
    refused = rearview("observe", str(tmp_path / "bert"), "-p", TEXT, "--generate", "3")
    assert "--generate: expected a model that generates" in refused.err


def test_a_model_of_transformers(rearview, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=290, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = awake(transformers.LlamaForCausalLM(config))
    folder = tmp_path / "llama"
    model.save_pretrained(folder)
    tokenizer = BPETokenizer.train([TEXT * 20], vocab_size=290)
    tokenizer.save(folder)
    saved = tmp_path / "seen.npz"
    done = rearview("observe", str(folder), "-p", TEXT, "--generate", "5", "-o", str(saved))
    assert done.code == 0, done.err
    seen = Observation.load(saved)
    ids = tokenizer.encode(TEXT)
    assert seen.length == len(ids) + 4
    whole = model.generate(torch.tensor([ids]), max_new_tokens=5, do_sample=False, pad_token_id=0)
    weights = model.eval()
    weights.set_attn_implementation("eager")
    exact = weights(whole[:, :-1], output_attentions=True).attentions
    for n, layer in enumerate(seen.layers):
        torch.testing.assert_close(layer.statistics.received, exact[n].sum(2), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{gpt}"], "--text, --prompt: expected one of them: the text that the model reads, got neither"),
        (
            ["{gpt}", "-p", "a", "-t", "-"],
            "expected one of them: the text that the model reads, got both",
        ),
        (["{gpt}", "-t", "nowhere.txt"], "--text: expected a file of text, or -, got nowhere.txt: No such file"),
        (["{gpt}", "-p", ""], "--text: expected a text of at least one token, got an empty text"),
        (["{gpt}", "-p", "a", "--layers", "x"], "--layers: expected numbers and ranges such as 0,3-5, got 'x'"),
        (["{gpt}", "-p", "a", "--heads", ""], "--heads: expected numbers and ranges such as 0,3-5, got ''"),
        (["{gpt}", "-p", "a", "--layers", "5-3"], "--layers: expected numbers and ranges such as 0,3-5, got '5-3'"),
        (["{gpt}", "-p", "a", "--layers", "9"], "layers"),
        (
            ["{gpt}", "-p", "ab", "-n", "65"],
            "expected at most 64, the number of positions of the model, got 65",
        ),
        (["{gpt}", "-p", "a", "--scale", "root"], "scale: expected log, linear, without_first or expected, got 'root'"),
        (["{gpt}", "-p", "a", "--show", "a.b"], "--show: expected a layer, or a layer and a head: 2 or 2.1, got 'a.b'"),
        (["{gpt}", "-p", "a", "--show", "7"], "layer: expected a layer that was watched"),
        (["{gpt}", "-p", "a", "-o", "seen.gif"], "path: expected a name that ends in .html, .npz"),
        (["{gpt}", "-p", "a", "-o", "no/where.html"], "path: expected a folder that exists, got no"),
        (["{gpt}", "-p", "a", "--mask", "causal("], "causal("),
        (["{gpt}", "-p", "a", "--mask", "window(2)", "--against", "{gpt}"], "--against, --mask: expected one of them"),
        (
            ["{gpt}", "-p", "a", "--mask", "window(2)", "-o", "a.npz"],
            "expected another ending for a difference, got a.npz.",
        ),
        (["{gpt}", "-p", "a", "--mask", "window(2)", "--generate", "2"], "--mask"),
        (["{gpt}", "-p", "a", "--against", "a.npz"], "--against: expected a folder with a model"),
        (["nowhere"], "expected a folder with a model, or a .npz of an earlier run, got nowhere, which does not exist"),
        (["nowhere", "--prompt", "x"], "a .npz of an earlier run, got nowhere, which does not exist"),
        (["nowhere.npz"], "nowhere.npz"),
        (["{saved}", "-p", "a"], "--prompt: expected a folder with a model to run, got a saved run"),
        (["{saved}", "--map-size", "9"], "--map-size: expected a folder with a model to run"),
        (["{saved}", "--item", "3"], "item: expected a batch item from 0 to 0, got 3"),
    ],
)
def test_errors_are_one_line(rearview, gpt: Path, tmp_path: Path, arguments: list[str], said: str):
    saved = tmp_path / "seen.npz"
    if "{saved}" in arguments:
        of_model(gpt).save(saved)
    done = rearview("observe", *(each.format(gpt=gpt, saved=saved) for each in arguments))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_folder_without_a_model_is_refused(rearview, tmp_path: Path):
    done = rearview("observe", str(tmp_path), "-p", "a")
    assert done.code == 2
    assert "config.json" in done.err
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))
    done = rearview("observe", str(tmp_path), "-p", "a")
    assert done.code == 2
    assert "Traceback" not in done.err


def test_as_a_process_it_is_plain_in_a_pipe(process, gpt: Path):
    # ASCII is the least that a pipe can take.
    plain = process("observe", str(gpt), "-p", TEXT, "--show", "0.1", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert (plain.returncode, plain.stderr) == (0, b"")
    assert plain.stdout.startswith(b"layer 0 head 1  .  blocks.0.attention")
    assert b"\x1b" not in plain.stdout


def test_it_is_coloured_on_demand(rearview, gpt: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    assert "\x1b[38;2;" in rearview("observe", str(gpt), "-p", TEXT, "--show", "0.1").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in rearview("observe", str(gpt), "-p", TEXT, "--show", "0.1").out
