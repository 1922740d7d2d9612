"""Reports name the user's line: neither torch, nor the auditor, nor the attention of this package."""

import importlib
import inspect
from pathlib import Path

import pytest
import torch
import typing_extensions

from rearview import MaskedSelfAttention, attend, causal, full
from rearview.attention import layer
from rearview.attention.engines import sdpa
from rearview.auditing import audit, user_code
from rearview.auditing.proof import prove

X = torch.randn(1, 8, 4, generator=torch.Generator().manual_seed(0))


def line_of(text: str) -> int:
    lines, start = inspect.getsourcelines(inspect.currentframe().f_back.f_code)  # pyright: ignore
    return start + next(n for n, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    "file",
    [torch.__file__, user_code.__file__, layer.__file__, inspect.__file__, typing_extensions.__file__, "<frozen x>"],
)
def test_not_the_users(file: str):
    assert not user_code.is_users(file)


@pytest.mark.parametrize("file", ["train.py", "<stdin>", "/usr/lib/python3/site-packages/other/contextlib_model.py"])
def test_the_users(file: str):
    assert user_code.is_users(file)


def test_the_line_that_calls_a_helper_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    installed = tmp_path / "site-packages"
    for name, text in {
        "einops/__init__.py": "from einops._backends import mean\n",
        "einops/_backends.py": "def mean(x):\n    return x.mean(1, keepdim=True)\n",
        "layers_with_einops.py": "from einops import mean\n\ndef pooled(x):\n    return x + mean(x)  # here\n",
    }.items():
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_text(text)
    monkeypatch.syspath_prepend(str(installed))
    pooled = importlib.import_module("layers_with_einops").pooled
    place = audit(pooled, X).place
    assert place is not None
    assert (place.op, place.source) == ("aten.mean.dim", "return x + mean(x)  # here")


def test_a_call_of_attend_is_the_users_line():
    def model(x):
        x = x[:, None]
        return attend(x, x, x, mask=full())[:, 0]  # here

    report = audit(model, X, causal())
    assert report.place is not None
    assert (report.place.file, report.place.line) == (__file__, line_of("# here"))


def test_the_proof_names_the_same_line():
    def model(x):
        x = x[:, None]
        return attend(x, x, x, mask=full())[:, 0]  # here

    origin = prove(model, X).origin(0, 7)
    assert origin is not None
    assert origin.line == f"{user_code.shown(__file__)}:{line_of('# here')}"


def test_a_model_of_the_package_alone_has_a_line_in_the_package():
    torch.manual_seed(0)
    report = audit(MaskedSelfAttention(4, 1, mask=full()), X, causal())
    assert report.place is not None
    assert report.place.file == layer.__file__


def test_every_harmless_function_of_transformers_exists():
    utils = pytest.importorskip("transformers.modeling_utils")
    for file, name in user_code.HARMLESS_ELSEWHERE:
        assert utils.__file__.endswith(file)
        assert hasattr(utils.PreTrainedModel, name)


def test_values_that_are_only_checked_do_not_escape():
    """A check for finite values counts as harmless, also where a generator expression in it reads them."""
    assert not prove(lambda x: x if sdpa._all_finite(x) else -x, X).value_escapes
    assert prove(lambda x: x if bool(x.isfinite().all()) else -x, X).value_escapes
