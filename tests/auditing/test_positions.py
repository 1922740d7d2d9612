"""Positions are followed through every op that moves data: held against data that are their own positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rearview.auditing.model.dispatch import EveryOp
from rearview.auditing.place.positions import Maps, PositionTracker, compact, joined

TIME = 6


class Following(EveryOp):
    """Follows positions through whatever runs."""

    def __init__(self, tracker: PositionTracker):
        super().__init__()
        self.tracker = tracker

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        outputs = [out] if isinstance(out, Tensor) else list(out)
        self.tracker.follow(func, args, kwargs or {}, outputs)
        return out


def maps_of(run, x: Tensor, *, ordered: bool = True) -> tuple[Tensor, Maps | None]:
    tracker = PositionTracker(x, axis=1, batch=len(x), ordered=ordered)
    with Following(tracker):
        out = run(x)
    return out, tracker.of(out)


MOVES = {
    "transpose": lambda x: x.transpose(-1, -2),
    "reverse the axes": lambda x: x.permute(*reversed(range(x.ndim))),
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll(1, 0),
    "drop the first": lambda x: x[1:] if len(x) > 1 else x,
    "every second": lambda x: x[..., ::2],
    "split": lambda x: torch.cat(x.split(2, -1)[::-1], -1),
    "flatten": lambda x: x.reshape(-1, x.shape[-1]),
    "cut": lambda x: x.unflatten(-1, (-1, 2)) if x.shape[-1] % 2 == 0 else x,
    "repeat": lambda x: x.repeat_interleave(2, -1),
    "pad": lambda x: F.pad(x, (2, 1), value=-1.0),
    "look up": lambda x: x[..., torch.tensor([0, 0]) % x.shape[-1]],
    "a new axis": lambda x: x.unsqueeze(0),
    "windows": lambda x: x.unfold(-1, 2, 1) if x.shape[-1] > 1 else x,
    "copy": lambda x: (x * 1.0).contiguous(),
}


@given(st.lists(st.sampled_from(list(MOVES)), max_size=5), st.integers(1, 2))
def test_moves(names: list[str], batch: int):
    x = torch.arange(float(TIME)).view(1, TIME, 1).repeat(batch, 1, 4)

    def run(x: Tensor) -> Tensor:
        for name in names:
            x = MOVES[name](x)
        return x

    out, maps = maps_of(run, x, ordered=False)
    assert maps is not None
    assert len(maps) == 1
    assert torch.equal(maps[0].expand(out.shape).double(), out.double())


def test_an_axis_as_long_as_the_input_is_read_in_order():
    x = torch.randn(1, TIME, TIME)
    for run in (lambda x: x.roll(1, 1), lambda x: x.flip(1), lambda x: torch.cat([x[:, 1:], x[:, :1]], 1)):
        _, maps = maps_of(run, x)
        assert maps is not None
        assert [one.flatten().tolist() for one in maps] == [list(range(TIME))]
    # A cut and a permutation by a value are not.
    _, maps = maps_of(lambda x: x[:, 2:], x)
    assert maps is not None
    assert maps[0].flatten().tolist() == [2, 3, 4, 5]
    order = torch.tensor([3, 1, 0, 2, 5, 4])
    hidden = order.view(1, TIME, 1).expand(1, TIME, TIME)
    _, maps = maps_of(lambda x: x.gather(1, hidden + (x * 0).long()), x)
    assert maps is not None
    assert maps[0].flatten().tolist() == order.tolist()


def test_scores_have_two_maps_and_their_product_one():
    x = torch.randn(2, TIME, TIME)
    scores, maps = maps_of(lambda x: (x @ x.transpose(1, 2)).softmax(-1), x)
    assert maps is not None
    assert sorted(tuple(one.shape) for one in maps) == [(1, 1, TIME), (1, TIME, 1)]
    _, maps = maps_of(lambda x: (x @ x.transpose(1, 2)) @ x, x)
    assert maps is not None
    assert [tuple(one.shape) for one in maps] == [(1, TIME, 1)]


def test_time_is_lost_where_it_is_summed():
    x = torch.randn(2, TIME, TIME)
    for run in (
        lambda x: x.mean(1),
        lambda x: x.transpose(1, 2) @ x,
        lambda x: x.topk(3, 1).values,
        lambda x: x.sum(),
        lambda x: torch.fft.rfft(x, dim=1),
    ):
        assert maps_of(run, x)[1] == ()
    # The mean of a chunk stands for the last position of it.
    _, maps = maps_of(lambda x: x.view(2, 3, 2, TIME).mean(2), x)
    assert maps is not None
    assert maps[0].flatten().tolist() == [1, 3, 5]


def test_memory_and_padding_have_no_position():
    x = torch.randn(1, TIME, 4)
    _, maps = maps_of(lambda x: torch.cat([torch.zeros(1, 2, 4), F.pad(x, (0, 0, 0, 1))], 1), x)
    assert maps is not None
    assert maps[0].flatten().tolist() == [-1, -1, 0, 1, 2, 3, 4, 5, -1]


def test_memory_read_in_another_way():
    x = torch.randn(1, TIME, 4).transpose(1, 2).contiguous().transpose(1, 2)
    out, maps = maps_of(lambda x: x.as_strided((4, TIME - 1, 2), (TIME, 1, 1)), x)
    assert maps is not None
    assert maps[0].expand(out.shape)[0].tolist() == [[t, t + 1] for t in range(TIME - 1)]


def test_batch_items_are_followed_through_time_first_layouts():
    x = torch.randn(2, 2, 2)
    tracker = PositionTracker(x, axis=0, ordered=False)
    with Following(tracker):
        out = x.transpose(0, 1).reshape(4, 2)
    maps = tracker.of(out)
    assert maps is not None
    assert maps[0].flatten().tolist() == [0, 1, 0, 1]


def test_joined_maps():
    column, row = torch.tensor([[0], [1]]), torch.tensor([[0, 1]])
    assert [one.shape for one in joined([(column,), (row,)])] == [(2, 1), (1, 2)]
    both = torch.tensor([[0, 1], [2, 3]])
    assert joined([(both,), (column,)]) == (both,)
    assert joined([(torch.tensor([[4]]),), (torch.tensor([[5]]),)]) == ()
    assert compact(both).shape == (2, 2)
