"""Launches that are repeated: with the addresses of the new tensors, and only where the old ones say what to do."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rearview.attention.engines import raw_launch
from rearview.attention.engines.hopper import launcher, recording
from rearview.attention.engines.hopper.launcher import Compiled, TensorMap, Tiled
from rearview.attention.engines.hopper.recording import Recording


class Launched:
    """Stands for a launcher below Triton's Python: what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, programs: tuple[int, ...], stream: int, arguments: Sequence[Any]) -> None:
        self.calls.append((programs, stream, tuple(arguments)))

    def map_of(self, place: int, described: TensorMap) -> list[object]:
        return [(place, described.base.data_ptr()), *described.shape, *described.strides]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    found = Launched()
    monkeypatch.setattr(launcher, "direct_launch", lambda kernel: found)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)

    def launch(kernel: object, programs: object, arguments: object, constants: dict) -> Compiled | None:
        return None if kernel == "first" else Compiled(kernel, tuple(constants.values()))

    monkeypatch.setattr(recording, "launch", launch)
    return found


def test_a_repeated_pass_has_the_addresses_of_its_tensors(launched: Launched):
    query, table = torch.zeros(2, 3, 8, 8), torch.zeros(4)
    recorded = Recording([query], [table])
    out = recorded.made(torch.empty(2, 3, 8, 8).transpose(1, 2))
    recorded.launch("kernel", (5,), (Tiled(query, (1, 1, 8, 8)), out, table, 11, 0.5), {"WIDTH": 64})
    repeat = recorded.repetition()
    assert repeat is not None
    other = torch.ones_like(query)
    (made,) = repeat([other]) or []
    assert (made.shape, made.stride()) == (out.shape, out.stride())
    assert launched.calls == [
        ((5,), 7, ((0, other.data_ptr()), 2, 3, 8, 8, 192, 64, 8, 1, made.data_ptr(), table.data_ptr(), 11, 0.5, 64))
    ]
    # The map of an address is made once.
    assert repeat([other]) is not None
    assert launched.calls[1][2][0] is launched.calls[0][2][0]


def test_a_repetition_keeps_no_tensor_of_a_call(launched: Launched):
    import weakref

    query = torch.zeros(16)
    recorded = Recording([query], [])
    out = recorded.made(torch.empty(16))
    recorded.launch("kernel", (1,), (query, out), {})
    repeat, gone = recorded.repetition(), [weakref.ref(query), weakref.ref(out)]
    del query, out, recorded
    assert repeat is not None
    assert [each() for each in gone] == [None, None]


def test_a_tensor_in_two_roles_is_the_first_of_them(launched: Launched):
    lse, d_out = torch.zeros(16), torch.zeros(16)
    recorded = Recording([lse, d_out], [])
    # Without a gradient of the log-sum-exp, the log-sum-exp stands in for it.
    recorded.launch("kernel", (1,), (d_out, lse, lse), {})
    repeat = recorded.repetition()
    assert repeat is not None
    others = [torch.zeros(16), torch.zeros(16)]
    repeat(others)
    assert launched.calls[0][2] == (others[1].data_ptr(), others[0].data_ptr(), others[0].data_ptr())


def test_what_cannot_be_repeated(launched: Launched):
    query, unknown = torch.zeros(16), torch.zeros(16)
    recorded = Recording([query], [])
    recorded.launch("kernel", (1,), (query, unknown), {})
    assert recorded.repetition() is None

    recorded = Recording([query], [])
    recorded.launch("first", (1,), (query,), {})
    assert recorded.repetition() is None

    recorded = Recording([query[1:]], [])
    recorded.launch("kernel", (1,), (query[1:],), {})
    assert recorded.repetition() is None


class Run:
    """Triton's launcher of a compiled kernel, as versions 3.5 and 3.6 have it: a function around the one in C."""

    launch_cooperative_grid, launch_pdl = False, True
    global_scratch_size = profile_scratch_size = 0

    def __init__(self, called: list[tuple[Any, ...]]) -> None:
        def launcher(*arguments: Any) -> None:
            called.append(arguments)

        def inner(*arguments: Any) -> None:
            launcher("with maps", *arguments)

        self.launch = inner


@pytest.mark.parametrize("version", ["3.6.0", "3.9.0"])
def test_the_launcher_below_triton(version: str, monkeypatch: pytest.MonkeyPatch):
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "__version__", version)
    called: list[tuple[Any, ...]] = []
    compiled = SimpleNamespace(
        run=Run(called), function="handle", packed_metadata="packed", metadata=SimpleNamespace(tensordesc_meta=[{}])
    )
    direct = raw_launch.direct_launch(compiled)
    if version == "3.9.0":
        assert direct is None
        return
    assert direct is not None
    direct((4, 2), 7, ("map", 11, 0.5))
    assert called == [(4, 2, 1, 7, "handle", False, True, None, None, "packed", None, None, None, "map", 11, 0.5)]
    # Without maps there is no function around it.
    compiled.metadata.tensordesc_meta = None
    direct = raw_launch.direct_launch(compiled)
    assert direct is not None
    direct((4,), 7, ())
    assert called[1][:4] == ("with maps", 4, 1, 1)
    compiled.run.global_scratch_size = 8
    assert raw_launch.direct_launch(compiled) is None


def test_tensors_that_a_kernel_was_not_compiled_for(launched: Launched, monkeypatch: pytest.MonkeyPatch):
    query: Tensor = torch.zeros(16)
    recorded = Recording([query], [])
    recorded.launch("kernel", (1,), (query,), {})
    repeat = recorded.repetition()
    assert repeat is not None
    assert repeat([torch.zeros(17)[1:]]) is None
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1)
    assert repeat([query]) is None
    assert not launched.calls
