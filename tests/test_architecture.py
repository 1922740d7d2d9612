"""The tree is the architecture: imports point one way, `import rearview` is light, public names are documented."""

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rearview
from rearview import attention, masks
from rearview.masks import exchange

ROOT = Path(rearview.__file__).parent
REPOSITORY = ROOT.parents[1]
FILES = sorted(ROOT.rglob("*.py"))

# Data flows down this list, and imports point up only. Parts on one line do not import each other.
ORDER = [
    {"errors"},
    {"files"},
    {"drawing"},  # knows nothing about attention; every part that draws uses it
    {"codec"},  # dataclasses in .json and .npz files
    {"masks"},
    {"attention"},
    {"parallel"},  # before models and training, which run on it
    {"integrations.transformers"},  # a separate part: observation reads the masks of transformers models
    {"explanation"},
    {"text"},
    {"models"},
    {"generation"},
    {"training"},
    {"auditing", "observation"},
    {"comparison", "intervention", "text_model"},
    {"webapp"},
    {"testing"},
    {"rearview"},  # the public map itself
    {"integrations"},
    {"cli"},
    {"__main__"},  # python -m rearview
]
LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def part_of(module: str) -> str:
    """`rearview.masks.spans` -> masks."""
    if module.startswith("rearview.integrations.transformers"):
        return "integrations.transformers"
    return module.split(".")[:2][-1]


def module_of(path: Path) -> str:
    names = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imported(path: Path) -> Iterator[str]:
    """Every module of this package that a file imports, anywhere in the file."""
    package = module_of(path) if path.stem == "__init__" else module_of(path).rpartition(".")[0]
    for node in ast.walk(tree_of(path)):
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


def test_every_part_is_in_the_order():
    parts = {part_of(module_of(path)) for path in FILES}
    assert {"errors", "masks", "attention", "cli"} <= parts
    assert parts <= set(LEVEL), "say in ORDER where the new part stands"


def test_imports_point_one_way():
    for path in FILES:
        part = part_of(module_of(path))
        for module in imported(path):
            other = part_of(module)
            below = f"{module_of(path)} imports {module}, which stands below it"
            assert other == part or LEVEL[other] < LEVEL[part], below


@pytest.mark.parametrize(
    "package", [path.parent for path in FILES if path.stem == "__init__"], ids=lambda path: path.name
)
def test_no_module_has_the_name_of_a_public_value(package: Path):
    """`import rearview.x as x` must give the module, and type checkers must agree."""
    modules = {path.stem for path in package.iterdir()} - {"__init__"}
    shown = getattr(importlib.import_module(module_of(package / "__init__.py")), "__all__", [])
    assert not modules & set(shown)
    # No package has the name of a public function of `rearview`.
    functions = {name for name in rearview.__all__ if inspect.isfunction(getattr(rearview, name))}
    assert package.name not in functions or package.parent.name == "cli"


def families_asked_for(path: Path) -> Iterator[str]:
    """The families of masks whose class a file asks for: `isinstance(mask, Documents)`."""
    families = {cls.__name__ for cls in subclasses(masks.Mask)} - {"Paths"}  # `along(paths)` takes only these
    for node in ast.walk(tree_of(path)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            yield from families & {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
            yield from families & {node.cls.id}


def subclasses(cls: type) -> Iterator[type]:
    for below in cls.__subclasses__():
        yield below
        yield from subclasses(below)


def test_a_family_of_masks_owns_its_behaviour():
    """Nothing outside of masks/ asks for the class of a mask, so a new family is one class."""
    assert {path.name for path in FILES if part_of(module_of(path)) == "masks" and list(families_asked_for(path))}
    others = [path for path in FILES if part_of(module_of(path)) != "masks"]
    assert [(path, name) for path in others for name in families_asked_for(path)] == []


def test_imports_of_every_form_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # The check above is meaningful only if it finds imports of every form.
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path / "rearview")
    path = tmp_path / "rearview" / "masks" / "bad.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import rearview.cli\nfrom rearview import models, causal\nfrom ..attention import plan\nfrom . import spans\n"
        "def late():\n    from rearview.auditing.proof import prove\n    import torch\n"
    )
    assert list(imported(path)) == [
        "rearview.cli",
        "rearview.models",
        "rearview",
        "rearview.attention",
        "rearview.masks",
        "rearview.auditing.proof",
    ]


def test_every_file_is_named_and_documented():
    for path in FILES:
        assert path.stem not in ("utils", "util", "common", "helpers", "misc"), path
        assert ast.get_docstring(tree_of(path)), f"{path} does not say what it is"


def files_in(folder: Path) -> set[str]:
    """The files of a folder, without hidden ones, its own page, and the `__init__` of a package."""
    found = {path.name for path in folder.iterdir() if path.is_file() and path.name[0] != "."}
    return found - {"README.md", "__init__.py"}


def folders() -> list[Path]:
    """Every folder of the repository that holds code, tests or measurements."""
    tops = [REPOSITORY / name for name in ("src", "tests", "bench", "native", "website")]
    found = [folder for top in tops for folder in (top, *top.rglob("*")) if folder.is_dir()]
    return sorted(folder for folder in found if folder.name != "__pycache__" and folder.name[0] != ".")


@functools.cache
def names_of_files() -> set[str]:
    """The names of all files of the repository."""
    return {path.name for folder in (REPOSITORY, REPOSITORY / "docs", *folders()) for path in folder.iterdir()}


LARGE = [folder for folder in folders() if len(files_in(folder)) > 10]


@pytest.mark.parametrize("folder", LARGE, ids=lambda folder: str(folder.relative_to(REPOSITORY)))
def test_a_large_folder_has_a_page_about_itself(folder: Path):
    """More than ten files: what it is, the path of the data, what may be changed on its own."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert 150 < len(text.split()) < 2500
    assert text.startswith("# ")
    # A file that the page names exists, in this folder or in another one.
    named = set(re.findall(r"(?<![\w>*])(\w+\.(?:py|js|css|html|md|hpp|cpp|h))\b", text))
    assert named - names_of_files() == set()


def test_large_folders_are_found():
    assert {"masks", "page", "suites", "gallery", "src"} <= {folder.name for folder in LARGE}


def test_nothing_is_evaluated_or_unpickled():
    for path, node in [(file, node) for file in FILES for node in ast.walk(tree_of(file))]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__"), f"{path}:{node.lineno}"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
            assert not {name.split(".")[0] for name in names} & forbidden, f"{path}:{node.lineno}"
        # torch.load unpickles.
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("torch", "load"), f"{path}:{node.lineno}"


# Packages that are imported only where they are used. torch imports numpy itself if it is installed.
HEAVY = ["rich", "typer", "matplotlib", "transformers", "tokenizers", "safetensors", "torch._dynamo", "torch._inductor"]
# torch needs sympy, and imports it in some of its functions, which takes seconds.
SLOW = ["sympy"]


def test_importing_needs_torch_only():
    """Neither extras, the compiler nor sympy are imported, and it works without any extra and without numpy."""
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
print((rearview.causal() & rearview.documents([0, 0, 1])).show("I love sushi"))
print(rearview.per_head([rearview.causal(), rearview.tree([-1, 0, 0])]).spans(3).columns)
loaded = [name for name in {HEAVY + SLOW} if name in sys.modules and name not in before]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "sdpa" in done.stdout


def test_packages_need_no_import_of_their_own():
    """`rearview.masks` works after `import rearview`, also in tools that list the names of a module."""
    packages = {path.parent.name for path in FILES if path.stem == "__init__" and path.parents[1] == ROOT}
    assert packages - rearview._PARTS == {"cli", "codec"}, "add the new package to _PARTS"
    for name in rearview._PARTS:
        assert inspect.ismodule(getattr(rearview, name))


def public() -> list[tuple[str, object]]:
    names = [(f"rearview.{name}", getattr(rearview, name)) for name in rearview.__all__]
    return names + [(f"rearview.masks.exchange.{name}", getattr(exchange, name)) for name in exchange.__all__]


@pytest.mark.parametrize(("name", "value"), public(), ids=[name for name, _ in public()])
def test_public_names_are_documented(name: str, value: object):
    text = inspect.getdoc(value) or ""
    assert text.strip()
    assert not text.startswith(f"{name.rpartition('.')[2]}("), "the docstring that dataclass makes up is none"
    if inspect.isfunction(value):
        assert ">>>" in text, "a public function shows how it is called"
        assert value.__annotations__.get("return") is not None


# Packages whose public functions, methods and attributes all have types that say more than Any.
TYPED = [
    "rearview",
    "rearview.attention",
    "rearview.attention.engines",
    "rearview.attention.stats",
    "rearview.auditing",
    "rearview.auditing.proof",
    "rearview.codec",
    "rearview.comparison",
    "rearview.explanation",
    "rearview.generation",
    "rearview.integrations.transformers",
    "rearview.intervention",
    "rearview.masks",
    "rearview.masks.exchange",
    "rearview.models",
    "rearview.models.checkpoint",
    "rearview.observation",
    "rearview.parallel",
    "rearview.testing",
    "rearview.text",
    "rearview.training",
    "rearview.training.checkpoint",
    "rearview.training.objectives",
    "rearview.webapp",
]


def annotations_of(value: object) -> Iterator[tuple[str, object]]:
    """The annotations of a public function, or of a class with its bases in this package and their public members."""
    if inspect.isclass(value):
        for owner in (base for base in value.__mro__ if base.__module__.startswith("rearview")):
            own = vars(owner).get("__annotations__", {})
            yield from ((f"{owner.__name__}.{name}", hint) for name, hint in own.items() if not name.startswith("_"))
            for name, member in vars(owner).items():
                if not name.startswith("_") or name in ("__init__", "__call__"):
                    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                    yield from ((f"{owner.__name__}.{name}", hint) for _, hint in annotations_of(function))
    elif inspect.isfunction(value):
        yield from ((f"{value.__name__}({name})", hint) for name, hint in value.__annotations__.items())


def has_any(hint: object) -> bool:
    if isinstance(hint, str):
        return re.search(r"\bAny\b", hint) is not None
    parts = hint if isinstance(hint, list) else typing.get_args(hint)
    return hint is Any or any(map(has_any, parts))


@pytest.mark.parametrize("module", TYPED)
def test_no_public_signature_says_any(module: str):
    package = importlib.import_module(module)
    found = [(name, hint) for shown in package.__all__ for name, hint in annotations_of(getattr(package, shown))]
    assert found
    assert [name for name, hint in found if has_any(hint)] == []


def test_any_is_found_wherever_it_is_written():
    class Shown:
        field: "dict[str, Any]"

        def method(self, callback: Callable[[Any], int]) -> None: ...

        @property
        def value(self) -> list[Any]: ...

        @classmethod
        def of(cls, *values: Any) -> None: ...

    Shown.__module__ = "rearview"
    found = [name for name, hint in annotations_of(Shown) if has_any(hint)]
    assert found == ["Shown.field", "Shown.method", "Shown.value", "Shown.of"]
    assert not has_any("dict[str, Anyone]")


def test_type_checkers_read_the_package():
    assert (ROOT / "py.typed").read_text() == ""


def test_a_class_name_exists_once():
    """Private names, with an underscore, may repeat, since they are used in one file only."""
    names = Counter(
        node.name
        for path in FILES
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()


def test_the_maps_are_complete():
    for module in (rearview, masks, attention, exchange):
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert hasattr(module, name)
    # What the package exports is what its parts export.
    for name in rearview.__all__:
        owner = inspect.getmodule(getattr(rearview, name))
        assert owner is not None
        assert getattr(importlib.import_module(owner.__name__), name) is getattr(rearview, name)
