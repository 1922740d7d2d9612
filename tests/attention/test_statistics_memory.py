"""Memory is linear in the length: the bytes of live tensors are counted."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rearview import Mask, causal, documents, full, prefix, where, window
from rearview.attention import statistics, weights_tile
from rearview.attention.stats import links, strips
from rearview.masks.inspection import hearing


class Peak(TorchDispatchMode):
    """The peak number of bytes of the tensors that are created inside."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, list[int]] = {}
        self.now = self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        held = self.live.setdefault(storage.data_ptr(), [0, storage.nbytes()])
        if held[0] == 0:
            self.now += held[1]
            self.most = max(self.most, self.now)
        held[0] += 1
        weakref.finalize(tensor, self._drop, storage.data_ptr())

    def _drop(self, place: int) -> None:
        held = self.live[place]
        held[0] -= 1
        if held[0] == 0:
            self.now -= held[1]
            del self.live[place]


def peak_of(call) -> int:
    with Peak() as peak:
        call()
    return peak.most


def test_the_counter_counts():
    def call() -> None:
        for _ in range(3):
            a = torch.zeros(1000)
            b = a.view(10, 100)
            del a
            b.add_(torch.ones(1000).view(10, 100))

    assert peak_of(call) == 8000


MASKS = {
    "causal": lambda t: causal(),
    "full": lambda t: full(),
    "sinks and window": lambda t: causal() & (window(64) | prefix(4)),
    "documents": lambda t: causal() & documents(torch.arange(t) // 100),
    "where": lambda t: where(lambda i, j: (i + j) % 3 > 0),
}


@pytest.mark.parametrize("name", MASKS)
def test_memory_is_linear(name: str, monkeypatch: pytest.MonkeyPatch):
    # Small strips, so that only the parts that grow with the length matter.
    monkeypatch.setattr(strips, "PAIRS_AT_ONCE", {"cpu": 2**14, "cuda": 2**14})
    monkeypatch.setattr(strips, "FEWEST_ROWS", 8)
    monkeypatch.setattr(links, "PAIRS_AT_ONCE", 2**14)
    monkeypatch.setattr(hearing, "PAIRS_PER_STRIP", 2**14)

    def peak(length: int) -> int:
        mask: Mask = MASKS[name](length)
        query, key = torch.randn(2, 1, 1, length, 8)
        return peak_of(lambda: statistics(query, key, mask=mask, links=8, map_size=16))

    short, long = peak(1024), peak(4096)
    assert long < 4.4 * short
    assert long < 4 * 4096 * 4096 / 8, "an eighth of one matrix of weights"


def test_a_tile_holds_no_matrix(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strips, "PAIRS_AT_ONCE", {"cpu": 2**14, "cuda": 2**14})
    query, key = torch.randn(2, 1, 1, 4096, 8)
    assert peak_of(lambda: weights_tile(query, key, slice(0, 4096), slice(0, 4))) < 4 * 4096 * 4096 / 8


def test_options_that_are_off_use_no_memory():
    query, key = torch.randn(2, 1, 2, 300, 8)

    def calls(**options) -> list[str]:
        class Names(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                names.append(str(func))
                return func(*args, **(kwargs or {}))

        names: list[str] = []
        with Names():
            statistics(query, key, **options)
        return names

    assert any("topk" in name for name in calls())
    assert not any("topk" in name for name in calls(links=0))
    assert len(calls(map_size=None)) < len(calls())
