"""The tree is the architecture: imports point one way, `import rearview` is light, public names explain themselves."""

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rearview
from rearview import attention, masks
from rearview.masks import exchange

ROOT = Path(rearview.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Data flows down this list, imports point up it only; parts on one line do not know each other.
ORDER = [
    {"errors"},
    {"masks"},
    {"attention"},
    {"integrations.transformers"},  # a part of its own: what observes a model reads its masks
    {"explain"},
    {"text"},
    {"models"},
    {"generation"},
    {"training"},
    {"audit", "observe"},
    {"testing"},
    {"rearview"},  # the public map itself
    {"integrations"},
    {"cli"},
]
LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}

files = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def part_of(module: str) -> str:
    """`rearview.masks.spans` -> masks."""
    if module.startswith("rearview.integrations.transformers"):
        return "integrations.transformers"
    return module.split(".")[:2][-1]


def module_of(path: Path) -> str:
    names = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imported(path: Path) -> Iterator[str]:
    """Every module of the house that a file imports, wherever the import stands."""
    package = module_of(path) if path.stem == "__init__" else module_of(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            names = [".".join([*above, *([node.module] if node.module else [])])]
            # `from rearview import masks` names a part, not a value.
            if names == ["rearview"]:
                names = [f"rearview.{alias.name}" if alias.name in LEVEL else "rearview" for alias in node.names]
        yield from (name for name in names if name.split(".")[0] == "rearview")


def test_every_part_has_its_place():
    parts = {part_of(module_of(path)) for path in FILES}
    assert {"errors", "masks", "attention", "cli"} <= parts
    assert parts <= set(LEVEL), "say in ORDER where the new part stands"


@files
def test_imports_point_one_way(path: Path):
    part = part_of(module_of(path))
    for module in imported(path):
        other = part_of(module)
        assert other == part or LEVEL[other] < LEVEL[part], f"{module_of(path)} imports {module}, which stands below it"


def test_the_importer_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # The check above is worth something only if it sees imports of every form.
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path / "rearview")
    path = tmp_path / "rearview" / "masks" / "bad.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import rearview.cli\nfrom rearview import models, causal\nfrom ..attention import plan\nfrom . import spans\n"
        "def late():\n    from rearview.audit.proof import prove\n    import torch\n"
    )
    assert list(imported(path)) == [
        "rearview.cli",
        "rearview.models",
        "rearview",
        "rearview.attention",
        "rearview.masks",
        "rearview.audit.proof",
    ]


@files
def test_every_file_names_its_idea(path: Path):
    assert path.stem not in ("utils", "util", "common", "helpers", "misc")
    assert ast.get_docstring(ast.parse(path.read_text())), "a module says what it is"


@files
def test_nothing_is_evaluated_or_unpickled(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__"), f"line {node.lineno}"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
            assert not {name.split(".")[0] for name in names} & forbidden, f"line {node.lineno}"
        # torch.load unpickles.
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("torch", "load"), f"line {node.lineno}"


# What loads only where it is used. torch brings numpy along by itself, where it is installed.
HEAVY = ["rich", "typer", "matplotlib", "transformers", "tokenizers", "safetensors", "torch._dynamo", "torch._inductor"]


def test_importing_needs_torch_only():
    """Neither extras nor the compiler; and it works where no extra, and no numpy, is installed."""
    script = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {[name for name in HEAVY if "." not in name] + ["numpy"]}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import warnings
with warnings.catch_warnings():
    # torch says that it found no numpy.
    warnings.simplefilter("ignore")
    import torch
before = set(sys.modules)
import rearview
x = torch.ones(1, 2, 5, 4)
for engine in ("auto", "reference", "sdpa", "blocks"):
    rearview.attend(x, x, x, mask=rearview.causal() & rearview.window(3), engine=engine)
print(rearview.plan(x, x, x))
print(rearview.causal().show("I love sushi"))
loaded = [name for name in {HEAVY} if name in sys.modules and name not in before]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "sdpa" in done.stdout


def public() -> list[tuple[str, object]]:
    names = [(f"rearview.{name}", getattr(rearview, name)) for name in rearview.__all__]
    return names + [(f"rearview.masks.exchange.{name}", getattr(exchange, name)) for name in exchange.__all__]


@pytest.mark.parametrize(("name", "value"), public(), ids=[name for name, _ in public()])
def test_public_names_explain_themselves(name: str, value: object):
    text = inspect.getdoc(value) or ""
    assert text.strip()
    assert not text.startswith(f"{name.rpartition('.')[2]}("), "the docstring that dataclass makes up is none"
    if inspect.isfunction(value):
        assert ">>>" in text, "a public function shows how it is called"
        assert value.__annotations__.get("return") is not None


def test_the_maps_are_complete():
    for module in (rearview, masks, attention, exchange):
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert hasattr(module, name)
    # What the package shows is what its parts show.
    for name in rearview.__all__:
        owner = inspect.getmodule(getattr(rearview, name))
        assert owner is not None
        assert getattr(importlib.import_module(owner.__name__), name) is getattr(rearview, name)
