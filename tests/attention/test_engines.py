"""What an engine has to bring, shown by one that exists in this file only: it is planned, taken, held to the grid."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from rearview import Unsupported, attend, causal, plan, window
from rearview.attention.call import Call
from rearview.attention.engines import ENGINES, Engine, reference
from tests.attention import test_conformance as grid
from tests.docs.markdown import ROOT


def refusals(call: Call) -> list[str]:
    return ["it has no softcap"] if call.softcap is not None else []


@pytest.fixture
def toy() -> Iterator[SimpleNamespace]:
    """An engine that computes the definition, and takes all calls of an even length."""
    toy = SimpleNamespace(
        name="toy",
        summary="the definition again",
        where="anywhere",
        refusals=refusals,
        run=reference.run,
        reason_to_take=lambda call: "the length is even" if call.frame.q_len % 2 == 0 else None,
        reason_not_taken=lambda call, taken: f"the length is odd, so {taken} is as good",
        memory=lambda call: 3 * 2**20,
    )
    others = dict(ENGINES)
    # It is asked first. The order is part of what is restored, which monkeypatch would reverse.
    ENGINES.clear()
    ENGINES.update({toy.name: cast(Engine, toy), **others})
    yield toy
    ENGINES.clear()
    ENGINES.update(others)


def test_it_is_planned_and_taken(toy: SimpleNamespace):
    even, odd = torch.randn(1, 2, 16, 8), torch.randn(1, 2, 15, 8)
    made = plan(even, even, even)
    assert (made.engine, made.reason, made.memory) == ("toy", "the length is even", 3 * 2**20)
    assert "engine toy: the length is even; about 3.0 MiB beyond inputs and output" in str(made)
    other = plan(odd, odd, odd)
    assert other.engine != "toy"
    assert other.not_taken["toy"] == f"the length is odd, so {other.engine} is as good"
    assert plan(even, even, even, softcap=2.0).not_taken["toy"] == "cannot: it has no softcap"
    with pytest.raises(Unsupported, match=r"engine 'toy' cannot do this exactly:\n  - it has no softcap"):
        attend(odd, odd, odd, softcap=2.0, engine="toy")
    assert torch.equal(attend(odd, odd, odd, engine="toy"), attend(odd, odd, odd, engine="reference"))


def test_the_grid_holds_it_to_the_contract(toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    grid.test_forward("toy", "causal", torch.float32)
    grid.test_gradients("toy", "window", torch.float32)
    # Refusing what nothing said it may refuse is a failure, and so is computing what it should refuse.
    with pytest.raises(AssertionError, match="it has no softcap"):
        grid.test_options("toy", "causal", {"softcap": 1.5})
    monkeypatch.setitem(grid.REFUSALS, "toy", lambda call: ["it has no softcap"] if call.softcap else [])
    grid.test_options("toy", "causal", {"softcap": 1.5})
    toy.refusals = lambda call: []
    with pytest.raises(AssertionError, match="the engine has computed what it was expected to refuse"):
        grid.test_options("toy", "causal", {"softcap": 1.5})
    toy.run = lambda call: reference.run(Call.of(call.query, call.key, call.value, mask=causal() & window(2)))
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        grid.test_forward("toy", "causal", torch.float32)


def undocumented() -> list[str]:
    """The rows that the table of engines in docs/attend.md does not have."""
    page = (ROOT / "docs" / "attend.md").read_text(encoding="utf-8").splitlines()
    rows = [f"| `{name}` | {engine.summary} | {engine.where} |" for name, engine in ENGINES.items()]
    return [row for row in rows if row not in page]


def test_every_engine_is_documented():
    assert undocumented() == []


def test_a_new_engine_is_missed_in_the_documentation(toy: SimpleNamespace):
    assert undocumented() == ["| `toy` | the definition again | anywhere |"]
