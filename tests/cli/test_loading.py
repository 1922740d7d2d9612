"""What a command imports: the parts that it needs, and no others."""

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

import rearview as package
from rearview.cli.verbs import VERBS

PARTS = {
    "errors",
    "files",
    "codec",
    "drawing",
    "masks",
    "attention",
    "explanation",
    "text",
    "models",
    "generation",
    "training",
}
PARTS |= {"auditing", "observation", "comparison", "integrations"}


# What no help and no drawing of a mask needs: each takes longer to load than the command takes to run.
HEAVY = {"transformers", "matplotlib", "tokenizers", "safetensors", "torch._dynamo", "torch._inductor", "jinja2"}


def loaded(code: str) -> tuple[set[str], bool]:
    """The parts of the package that a program imports, and whether it imports torch."""
    code += f"""
import json, sys
parts = {{name.split(".")[1] for name in sys.modules if name.startswith("rearview.")}}
heavy = {sorted(HEAVY)!r}
assert not [name for name in heavy if name in sys.modules], "heavy modules"
print(json.dumps([sorted(parts), "torch" in sys.modules]), file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    parts, torch = json.loads(done.stderr.splitlines()[-1])
    assert set(parts) <= PARTS | {"cli"}
    return set(parts) - {"cli"}, torch


@pytest.mark.parametrize(
    ("arguments", "parts", "torch"),
    [
        (["--help"], {"errors", "drawing"}, False),
        (["--version"], {"errors", "files", "drawing", "codec", "masks", "attention", "explanation"}, True),
        (["mask", "causal()"], {"errors", "files", "drawing", "masks"}, True),
        (["explain", "restaurant"], {"errors", "files", "codec", "drawing", "masks", "attention", "explanation"}, True),
        *(([verb, "--help"], {"errors", "drawing"}, False) for verb in VERBS),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_verb_imports_only_what_it_needs(arguments: list[str], parts: set[str], torch: bool):
    found, with_torch = loaded(f"from rearview.cli import run\nassert run({arguments!r}) == 0")
    assert found <= parts
    assert with_torch == torch


def test_importing_the_package_imports_nothing_else():
    assert loaded("import rearview") == (set(), False)
    parts, torch = loaded("from rearview import causal")
    assert parts <= {"masks", "errors", "files", "drawing"}
    assert torch


def test_a_model_is_loaded_without_the_compiler_of_torch(tmp_path: Path):
    code = f"""
import sys
from rearview.models import GPT, GPTConfig
from rearview.models.checkpoint import load, save
save(GPT(GPTConfig(vocab_size=9, context=8, layers=1, heads=1, width=8)), {str(tmp_path)!r})
load({str(tmp_path)!r})
assert "torch._dynamo" not in sys.modules"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there_and_lists_itself():
    for name in package.__all__:
        assert name in dir(package)
        assert getattr(package, name).__name__ == name
    from rearview import audit

    assert audit is import_module("rearview.auditing").audit
    with pytest.raises(AttributeError, match="module 'rearview' has no attribute 'cauzal'"):
        package.cauzal  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_parts_need_no_import_of_their_own():
    code = "import rearview\nassert rearview.masks.causal is rearview.causal\nassert rearview.training.TrainConfig"
    assert {"masks", "training"} <= loaded(code)[0]


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_line_is_the_first_line_of_the_verb(verb: str):
    command = get_command(import_module(f"rearview.cli.{verb}").app)
    assert (command.help or "").splitlines()[0] == VERBS[verb]


@pytest.mark.parametrize("verb", [*VERBS, "mask diff"])
def test_flags_are_shown_without_a_type(verb: str, rearview):
    done = rearview(*verb.split(), "--help")
    assert done.code == 0
    assert "bool" not in done.out
    assert "list[" not in done.out


def test_a_misspelt_verb_gets_a_suggestion(rearview):
    done = rearview("tran")
    assert done.code == 2
    assert "No such command 'tran'. Did you mean 'train'?" in done.err


@pytest.mark.skipif(os.name == "nt", reason="signals are sent")
def test_ctrl_c_ends_a_command_while_torch_imports_numpy(tmp_path: Path):
    """torch takes an interrupted import for a numpy that does not work, and would go on."""
    pytest.importorskip("numpy")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'numpy' and 'torch' in sys.modules:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "rearview", "mask", "causal()", "--length", "2"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
