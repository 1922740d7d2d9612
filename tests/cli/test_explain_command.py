"""rearview explain: what it prints, what it writes, how it exits."""

import json
import re
from pathlib import Path

import pytest
import torch

from rearview import Trace, causal, window
from rearview.explanation.examples import EXAMPLES, FOUR_SPEAKERS, I_LOVE
from rearview.models import GPT, GPTConfig
from rearview.text import ByteTokenizer

ANSI = re.compile(r"\x1b\[[0-9;]*m")
INF = float("inf")
HEADS = [[[1, 0], [0, 1]], [[2, 0], [0, 2]]]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"query": HEADS, "key": HEADS, "value": HEADS, "labels": "I love", "title": "Mine"}))
    return path


def test_without_arguments_it_lists_the_examples(rearview):
    done = rearview("explain")
    assert (done.code, done.err) == (0, "")
    for name, example in EXAMPLES.items():
        assert re.search(rf"^  {name} +{re.escape(example.title)}$", done.out, re.MULTILINE)
    assert "rearview explain my.json" in done.out
    assert '{"x": [[1, 0], [0, 1]], "w_q": ..., "w_k": ..., "w_v": ...}' in done.out


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_prints_the_trace(rearview, name: str):
    assert rearview("explain", name) == (0, f"{EXAMPLES[name].trace().show()}\n", "")


@pytest.mark.parametrize(
    ("stage", "printed"),
    [
        ("scores", [[21.888, 6.362, 6.030, 11.557], [6.276, 2.297, 3.032, 3.695], [5.079, 2.479, 4.165, 3.489],
                    [11.559, 3.810, 4.426, 6.468]]),
        ("mask", [[0, -INF, -INF, -INF], [0, 0, -INF, -INF], [0, 0, 0, -INF], [0, 0, 0, 0]]),
        ("masked", [[21.888, -INF, -INF, -INF], [6.276, 2.297, -INF, -INF], [5.079, 2.479, 4.165, -INF],
                    [11.559, 3.810, 4.426, 6.468]]),
        ("weights", [[1, 0, 0, 0], [0.982, 0.018, 0, 0], [0.678, 0.050, 0.271, 0], [0.993, 0, 0.001, 0.006]]),
        ("output", [[3.963, 2.121, 1.743], [3.934, 2.103, 1.755], [3.243, 1.650, 2.147], [3.951, 2.112, 1.744]]),
    ],
)  # fmt: skip
def test_the_tables_of_the_restaurant_as_printed(rearview, stage: str, printed: list[list[float]]):
    out = rearview("explain", "restaurant", "--stage", stage).out
    for person, figures in zip(FOUR_SPEAKERS.labels, printed, strict=True):
        # With the mask comes first.
        line = next(line for line in out.splitlines() if line.startswith(f" {person} "))
        cells = [float(cell.replace("∞", "inf")) for cell in line.split()[1 : 1 + len(figures)]]
        assert cells == pytest.approx(figures, abs=0.005)


def test_stages_are_printed_in_the_order_of_the_steps(rearview):
    done = rearview("explain", "love", "-s", "weights", "-s", "q")
    assert done == (0, f"{I_LOVE.trace().show(stages=['q', 'weights'])}\n", "")
    assert done.out.index("Q = X' W_Q") < done.out.index("A = softmax(S + M)")
    for absent in ("S + M\n", "K = X' W_K", "Read aloud"):
        assert absent not in done.out


def test_another_mask_and_no_mask(rearview):
    other = rearview("explain", "restaurant", "--mask", "causal() & window(2)")
    assert other == (0, f"{FOUR_SPEAKERS.trace(mask=causal() & window(2)).show()}\n", "")
    without = rearview("explain", "restaurant", "--no-mask")
    assert without == (0, f"{FOUR_SPEAKERS.trace().show(masked=False)}\n", "")
    assert without.out != rearview("explain", "restaurant").out


def test_your_own_file_and_its_heads(rearview, mine: Path):
    first, second = rearview("explain", str(mine)), rearview("explain", str(mine), "--head", "1", "-m", "window(1)")
    assert (first.code, second.code) == (0, 0)
    assert first.out.startswith("Mine\ncausal()")
    assert "head 0 of 2" in first.out
    assert "head 1 of 2" in second.out
    assert "love — 100.0 % itself" in second.out


def test_npz(rearview, tmp_path: Path):
    numpy = pytest.importorskip("numpy")
    unit = numpy.eye(2)
    numpy.savez(tmp_path / "mine.npz", x=unit, w_q=unit, w_k=unit, w_v=unit, labels=["I", "love"], positions="rotary")
    done = rearview("explain", str(tmp_path / "mine.npz"), "--stage", "q_turned")
    assert (done.code, done.err) == (0, "")
    assert "Q' = R Q" in done.out


def test_out_writes_files_and_names_them(rearview, tmp_path: Path):
    paths = [str(tmp_path / f"love{ending}") for ending in (".html", ".json", ".tex")]
    done = rearview("explain", "love", *(word for path in paths for word in ("--out", path)))
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{I_LOVE.trace().show()}\n\n" + "".join(f"wrote {path}\n" for path in paths)
    page, saved, paper = (Path(path).read_text(encoding="utf-8") for path in paths)
    assert "I love ___" in page
    assert Trace.from_json(saved).title == I_LOVE.title
    assert r"\begin{document}" in paper
    # What was saved can be shown again.
    assert rearview("explain", paths[1]).out == f"{I_LOVE.trace().show()}\n"


@pytest.mark.parametrize(("ending", "begins"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF-")])
def test_out_writes_pictures(rearview, tmp_path: Path, ending: str, begins: bytes):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"love{ending}"
    done = rearview("explain", "love", "--stage", "weights", "-o", str(path))
    assert done.code == 0, done.err
    assert done.out.endswith(f"\nwrote {path}\n")
    assert path.read_bytes().startswith(begins)


def test_json_for_pipes(rearview, tmp_path: Path):
    path = tmp_path / "love.html"
    done = rearview("explain", "love", "--json", "--mask", "window(2)", "--out", str(path))
    assert (done.code, done.err) == (0, f"wrote {path}\n")
    assert done.out == I_LOVE.trace(mask=window(2)).to_json()
    assert json.loads(done.out)["mask"] == "window(2)"


def test_latex_to_paste(rearview, tmp_path: Path):
    path = tmp_path / "love.csv"
    done = rearview("explain", "love", "--latex", "-s", "weights", "--decimals", "2", "--out", str(path))
    assert (done.code, done.err) == (0, f"wrote {path}\n")
    assert done.out == I_LOVE.trace().to_latex(stages=["weights"], decimals=2, document=False)
    assert path.read_text() == I_LOVE.trace().to_csv()
    assert rearview("explain", "love", "--decimals", "1").out == f"{I_LOVE.trace().show(decimals=1)}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["restaurnt"], "rearview: EXAMPLE|FILE: expected one of restaurant, love, five-tokens, or a file that ends in "
                        ".json or .npz, got 'restaurnt'. Did you mean restaurant?\n"),
        (["xyz"], "rearview: EXAMPLE|FILE: expected one of restaurant, love, five-tokens, or a file that ends in .json "
                  "or .npz, got 'xyz'.\n"),
        (["--head", "1"], "rearview: EXAMPLE|FILE: expected an example or a file, got --head alone.\n"),
        (["--out", "a.html"], "rearview: EXAMPLE|FILE: expected an example or a file, got --out alone.\n"),
        (["love", "--head", "1"], "rearview: head: expected a head from 0 to 0, got 1.\n"),
        (["love", "--head", "-1"], "rearview: head: expected a head from 0 to 0, got -1.\n"),
        (["love", "--stage", "weight"], "rearview: stage: expected one of x, p, x_positioned, q, k, v, scores, mask, "
                                        "masked, weights, output, got 'weight'.\n"),
        (["love", "--mask", "causal"], "rearview: `causal` must be called: write causal()\n  causal\n  ^\n"),
        (["love", "--mask", "padding([1, 2])"], "rearview: mask: expected a mask for batch 1"),
        (["love", "--mask", "documents([0])"], "rearview: documents(ids): expected an id for each of the 3 positions"),
        (["love", "--json", "--stage", "q"],
         "rearview: --json: expected no option that chooses what to print: JSON has all, got --stage.\n"),
        (["love", "--json", "--latex"],
         "rearview: --json: expected no option that chooses what to print: JSON has all, got --latex.\n"),
        (["love", "--latex", "--no-mask"],
         "rearview: --latex: expected no --no-mask: it has both, with the mask and without it, got --no-mask.\n"),
        (["love", "--decimals", "0"], "rearview: decimals: expected an integer from 1 to 17, got 0.\n"),
        (["absent.json"], "rearview: absent.json: there is no such file\n"),
        (["absent/restaurant"], "rearview: absent/restaurant: expected a name that ends in .json or .npz, got "),
        (["."], "rearview: .: expected a name that ends in .json or .npz, got 'no ending'\n"),
    ],
)  # fmt: skip
def test_errors_are_a_message_and_exit_code_2(rearview, arguments: list[str], message: str):
    done = rearview("explain", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(message)
    assert "Traceback" not in done.err


def test_a_bad_file_name_is_refused_before_anything_is_written(rearview, tmp_path: Path):
    good, bad = tmp_path / "love.html", tmp_path / "love.gif"
    done = rearview("explain", "love", "-o", str(good), "-o", str(bad))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        "rearview: path: expected a name that ends in .html, .json, .csv, .tex, .svg, .png or .pdf, got '.gif'"
    )
    assert not good.exists()


def test_help_has_the_options_and_examples(rearview):
    done = rearview("explain", "--help")
    assert done.code == 0
    text = ANSI.sub("", done.out)
    options = ("--mask", "--head", "--no-mask", "--stage", "--out", "--json")
    for part in (*options, "rearview explain restaurant\n", "my.json --head 1", ".npz"):
        assert part in re.sub(r" +\n", "\n", text)
    assert "explain" in rearview("--help").out


def test_colour_only_where_it_is_wanted(rearview, monkeypatch: pytest.MonkeyPatch):
    plain = rearview("explain", "love").out
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = rearview("explain", "love").out
    assert "\x1b[" in coloured
    assert ANSI.sub("", coloured) == plain


# As a process of its own: what a shell sees.


def test_the_process_says_where_a_file_is_wrong(process, tmp_path: Path):
    path = tmp_path / "wrong.json"
    path.write_text('{"query": [[1, 2]],\n "key": [[1, 2]]\n "value": [[1, 2]]}')
    done = process("explain", str(path))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines() == [
        f"rearview: {path}: line 3, column 2: this is not JSON: Expecting ',' delimiter",
        '   "value": [[1, 2]]}',
        "   ^",
    ]


def test_an_ascii_stream_gets_ascii(process):
    done = process("explain", "restaurant", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("ascii")
    assert "Emma - 98.2 % Frank, 1.8 % herself" in text
    assert "-inf" in text
    assert "?" not in text


@pytest.fixture
def model(tmp_path: Path) -> str:
    torch.manual_seed(0)
    tokenizer = ByteTokenizer()
    folder = tmp_path / "model"
    GPT(GPTConfig(vocab_size=tokenizer.vocab_size, context=16, layers=2, heads=2, width=16)).save_pretrained(folder)
    tokenizer.save(folder)
    return str(folder)


def test_a_layer_of_a_model(rearview, model: str, tmp_path: Path):
    out = tmp_path / "layer.json"
    done = rearview("explain", "--model", model, "--text", "I am", "--layer", "-1", "--head", "1", "--out", str(out))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Layer 1 of a GPT\ncausal()  ·  4 queries x 4 keys  ·  head 1 of 2\n")
    trace = Trace.from_json(out.read_text())
    assert trace.labels == ("I", "␣", "a", "m")
    narrow = rearview("explain", "--model", model, "--text", "I am", "--mask", "causal() & window(1)", "--json")
    weights = next(stage for stage in json.loads(narrow.out)["stages"] if stage["key"] == "weights")
    assert weights["matrix"]["values"][0][3] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "MODEL"],
            "expected both of them, without an example or a file, got --model alone",
        ),
        (["--text", "I"], "got --text alone"),
        (["love", "--model", "MODEL", "--text", "I"], "got an example with them"),
        (["love", "--layer", "1"], "--layer: expected --model with it, got 1 without a model"),
        (["--model", "MODEL", "--text", ""], "--text: expected a text of at least one token, got an empty text"),
        (["--model", "MODEL", "--text", "I", "--layer", "2"], "layer: expected a layer from 0 to 1, got 2"),
        (["--model", "MODEL", "--text", "I" * 17], "at most 16 positions, the model's context, got 17"),
        (["--model", "nowhere", "--text", "I"], "expected a folder with config.json and safetensors"),
    ],
)
def test_what_a_model_needs(rearview, model: str, arguments: list[str], message: str):
    done = rearview("explain", *(model if each == "MODEL" else each for each in arguments))
    assert (done.code, done.out) == (2, "")
    assert message in done.err
