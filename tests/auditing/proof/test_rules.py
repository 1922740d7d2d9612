"""Each rule by itself against brute force: never less than what is heard; and exactly that, unless said otherwise."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from rearview.auditing.proof import prove
from tests.auditing.proof.search import heard_by

B, T, SIZE = 2, 5, 4


def turned(run):
    """An op on [batch, channels, time]."""
    return lambda x: run(x.transpose(1, 2)).transpose(1, 2)


def kernel(*shape: int) -> Tensor:
    return nn.Parameter(torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))


def packed(x: Tensor) -> Tensor:
    sequence = pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
    return pad_packed_sequence(sequence._replace(data=sequence.data * 2), batch_first=True)[0]


def out_of(x: Tensor) -> Tensor:
    out = torch.empty(B, T, SIZE, dtype=x.dtype)
    torch.add(x, x.flip(1), out=out)
    return out


def resized(x: Tensor) -> Tensor:
    y = x.clone()
    y.unsqueeze_(0).squeeze_(0).transpose_(1, 2)
    return y.transpose(1, 2)


def complex_rotation(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (2, 2)).contiguous())
    turn = torch.polar(torch.ones(T, dtype=x.dtype), torch.arange(T, dtype=x.dtype))
    return torch.view_as_real(pairs * turn[:, None]).flatten(2)


def chunked_delta(x: Tensor) -> Tensor:
    """The inverse of a unit lower triangular matrix of scores, as in gated delta rules."""
    scores = (x @ x.transpose(1, 2)).tril(-1)
    return torch.linalg.solve_triangular(torch.eye(T, dtype=x.dtype) + scores, x, upper=False, unitriangular=True)


def below(limit: Tensor) -> Tensor:
    torch.manual_seed(0)
    return torch.randint_like(torch.zeros(1), high=(limit.abs() * 1e4).long() + 1)


SOURCE = torch.arange(T)
EXACT = {
    "addcmul": lambda x: torch.addcmul(x, x.flip(1), torch.ones(SIZE, dtype=x.dtype), value=0.5),
    "lerp": lambda x: torch.lerp(x, x.roll(1, 1), 0.3),
    "clamp by tensor": lambda x: torch.clamp(x, min=x.roll(1, 1)),
    "glu over time": lambda x: F.glu(x[:, :4], dim=1),
    "prelu": lambda x: F.prelu(x, kernel(1).abs()),
    "logsigmoid": F.logsigmoid,
    "complex": complex_rotation,
    "floor_divide": lambda x: (x * 9) // 2,
    "logic with constants": lambda x: ((x > 0) & (SOURCE > 2)[:, None]).double(),
    "times a mask": lambda x: x * (SOURCE > 2)[:, None],
    "zero divided": lambda x: (SOURCE > 2)[:, None] / (x.abs() + 1),
    "unfold": lambda x: x.unfold(1, 2, 2).flatten(2),
    "as_strided": lambda x: x.contiguous().as_strided((B, 2, 2, SIZE), (T * SIZE, 2 * SIZE, SIZE, 1)).flatten(2),
    "diagonal": lambda x: (x[:, :4].unsqueeze(1) * torch.ones(4, 1, 1)).diagonal(dim1=1, dim2=2).transpose(1, 2),
    "movedim": lambda x: x.movedim(1, 0).contiguous().movedim(0, 1),
    "view merges time": lambda x: x.contiguous().view(B, 2, 10),
    "view as another tensor": lambda x: x.flatten().view_as(x),
    "swapped and flat": lambda x: x.transpose(1, 2).flatten(1)[:, :T],
    "view as other type": lambda x: x.contiguous().view(torch.int64).view(torch.float64),
    "roll without axis": lambda x: x.roll(3),
    "rot90": lambda x: x.rot90(2, (1, 2)),
    "tile": lambda x: x.tile(1, 2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "repeat_interleave by counts": lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 1, 1]), dim=1),
    "reflection pad": turned(lambda x: F.pad(x, (1, 1), mode="reflect")),
    "replication pad": turned(lambda x: F.pad(x, (2, 0), mode="replicate")),
    "circular pad": turned(lambda x: F.pad(x, (1, 0), mode="circular")),
    "constant pad": lambda x: F.pad(x, (0, 0, 1, 1), value=3.0),
    "crop by a negative pad": lambda x: F.pad(x, (0, 0, -1, 1)),
    "nearest": turned(lambda x: F.interpolate(x, scale_factor=2)),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 2, 4),
    "diag_embed": lambda x: torch.diag_embed(x.sum(-1)),
    "hstack": lambda x: torch.hstack([x[:, 3:], x[:, :3]]),
    "stack": lambda x: torch.stack([x[:, 0], x[:, 2]], 1),
    "amax": lambda x: x.amax(2, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, dim=2, keepdim=True)[0],
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "cumulative from the end": lambda x: x.flip(1).cumsum(1).flip(1),
    "cumprod": lambda x: x.cumprod(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "diff": lambda x: x.diff(dim=1),
    "rms_norm": lambda x: F.rms_norm(x, (SIZE,), kernel(SIZE)),
    "group norm over channels": lambda x: F.group_norm(x.flatten(0, 1), 2, kernel(SIZE)).view(x.shape),
    "conv1d": turned(lambda x: F.conv1d(x, kernel(3, SIZE, 2), kernel(3))),
    "strided conv": turned(lambda x: F.conv1d(x, kernel(3, SIZE, 2), stride=2, padding=1)),
    "depthwise conv": turned(lambda x: F.conv1d(x, kernel(SIZE, 1, 2), groups=SIZE, padding=1)),
    "transposed conv": turned(lambda x: F.conv_transpose1d(x, kernel(SIZE, 2, 3), stride=2)),
    "conv2d": lambda x: F.conv2d(x[:, None], kernel(2, 1, 2, 3), padding=(1, 1)).transpose(1, 2),
    "masked kernel": turned(
        lambda x: F.conv1d(x, kernel(3, SIZE, 3) * torch.tensor([1.0, 0, 1], dtype=x.dtype), padding=1)
    ),
    "average pool": turned(lambda x: F.avg_pool1d(x, 2, stride=1)),
    "max pool": turned(lambda x: F.max_pool1d(x.abs() + 1, 2, stride=1)),
    "bmm": lambda x: torch.bmm(torch.tril(torch.ones(B, T, T, dtype=x.dtype)), x),
    "einsum": lambda x: torch.einsum("ts,bsf->btf", torch.ones(T, T, dtype=x.dtype).triu(1), x),
    "mv": lambda x: (x @ kernel(SIZE))[..., None],
    "weight with certain zeros": lambda x: F.linear(
        x.transpose(1, 2), kernel(T, T) * torch.ones(T, T, dtype=x.dtype).tril()
    ).transpose(1, 2),
    "triangular solve": chunked_delta,
    "index": lambda x: x[:, [3, 0, 0]],
    "index on two axes": lambda x: x[:, [3, 0], [1, 2]][..., None],
    "index with None between": lambda x: x[[1, 0], :, [0, 1]],
    "index_select": lambda x: x.index_select(1, torch.tensor([4, 4, 1])),
    "take_along_dim": lambda x: x.take_along_dim(torch.tensor([4, 0, 1])[None, :, None], dim=1),
    "boolean index": lambda x: x[:, SOURCE % 2 == 0],
    "embedding": lambda x: F.embedding((x.sum(-1) > 0).long(), kernel(2, 3)),
    "one_hot": lambda x: F.one_hot((x.sum(-1) > 0).long(), 2).double(),
    "scatter": lambda x: torch.zeros(B, T, SIZE, dtype=x.dtype).scatter(
        1, SOURCE.flip(0)[None, :, None].expand(B, T, SIZE), x
    ),
    "smaller scatter": lambda x: torch.zeros(B, 7, SIZE, dtype=x.dtype).scatter(
        1, torch.tensor([6, 0])[None, :, None].expand(B, 2, SIZE), x
    ),
    "scatter_reduce": lambda x: x.abs().scatter_reduce(
        1, (SOURCE // 2)[None, :, None].expand(B, T, SIZE), x.abs(), "sum"
    ),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([1, 2]), 0.0),
    "index_put": lambda x: x.index_put((torch.tensor([0, 1]), torch.tensor([2, 3])), x[:, 0]),
    "index_put accumulates": lambda x: x.index_put((torch.tensor([0]), torch.tensor([2])), x[:1, 4], accumulate=True),
    "assigned by a mask of values": lambda x: torch.where(x > 0, x, 0.0),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0, 1], dtype=x.dtype)).double(),
    "out=": out_of,
    "in-place views": resized,
    "packed sequences": packed,
    "certain -inf in a maximum": lambda x: x.masked_fill((SOURCE > 2)[:, None], float("-inf")).amax(1, keepdim=True),
}
WIDER = {
    "bool logic": lambda x: ((x > 0) & (x.roll(1, 1) > 0)).double(),
    "masked_fill by values": lambda x: x.masked_fill(x.roll(1, 1) > 0, 0.0),
    "fft over features": lambda x: torch.fft.fft(x, dim=2).real,
    "conv with groups": turned(lambda x: F.conv1d(x, kernel(2, 2, 2), groups=2)),
    "sort": lambda x: x.sort(dim=1)[0],
    "median": lambda x: x.median(dim=1, keepdim=True)[0],
    "kthvalue": lambda x: x.kthvalue(2, dim=1, keepdim=True)[0],
    "argsort": lambda x: x.argsort(dim=1).double(),
    "topk": lambda x: x.topk(2, dim=1)[0],
    "cummax": lambda x: x.cummax(1)[0],
    "fft": lambda x: torch.fft.rfft(x, dim=1).abs(),
    "linear interpolation": turned(lambda x: F.interpolate(x, size=9, mode="linear")),
    "inverse": lambda x: torch.linalg.inv(x @ x.transpose(1, 2) + 9 * torch.eye(T, dtype=x.dtype)),
    "cdist": lambda x: torch.cdist(x, x),
    "searchsorted": lambda x: torch.searchsorted(x[..., 0].sort(-1)[0], x[..., 1].contiguous())[..., None].double(),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flip(1)),
    "instance norm": turned(F.instance_norm),
    "batch norm": turned(lambda x: F.batch_norm(x, None, None, training=True)),
    "gather by values": lambda x: x.gather(1, (x.abs() * 3).long() % T),
    "scatter by values": lambda x: torch.zeros_like(x).scatter_add(1, (x.abs() * 3).long() % T, x),
    "index_put by values": lambda x: x.index_put((torch.tensor(0), (x[0, 0, 0].abs() * 7).long() % T), x[0, 1, 0]),
    "index_add by values": lambda x: x.index_add(1, (x[0, :, 0].abs() * 3).long() % T, x),
    "assigned by a mask of values": lambda x: (y := x.clone()).masked_fill_(y > 0, 1.0) + (y[:, :1] > 0),
    "adaptive pool": turned(lambda x: F.adaptive_avg_pool1d(x, 2)),
    "attention with a mask of values": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=(x @ x.mT) > -9),
    "noise": lambda x: x + torch.rand(1, dtype=x.dtype) * 0,
    "trapezoid": lambda x: torch.trapezoid(x, dim=1)[:, None],
    "quantile": lambda x: x.sort(1).values.mean(1, keepdim=True),
    "matrix power": lambda x: torch.linalg.matrix_power(x[:, :4] @ x[:, :4].mT, 2),
    "softmax over time": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "linspace between values": lambda x: x + torch.linspace(x[0, 3, 0], x[0, 1, 0].exp(), 3)[:1],
    "logspace from a value": lambda x: x + torch.logspace(x[0, 3, 0], 1.0, 3)[:1],
    "random below a value": lambda x: x + below(x[0, 3, 0]),
    "elements by address": lambda x: torch.as_strided_copy(x.mT.contiguous().mT, (B, T, SIZE), (T * SIZE, SIZE, 1)),
    "elements beyond a view": lambda x: (
        x + torch.as_strided_copy(x.clone()[:, :2], (B, 1, 1), (T * SIZE, 1, 1), 3 * SIZE)
    ),
    "scattered by address": lambda x: torch.as_strided_scatter(
        torch.zeros(B, SIZE, T, dtype=x.dtype).mT, x, (B, T, SIZE), (T * SIZE, SIZE, 1)
    ),
}


def example() -> Tensor:
    return torch.randn(B, T, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("run", EXACT.values(), ids=EXACT)
def test_exactly_what_is_heard(run):
    proof = prove(run, example())
    assert not proof.unknown_ops
    assert not proof.value_escapes
    found = heard_by(lambda x, _: run(x), example(), seed=0, draws=9)
    # The proof keeps which items and which times were heard, each by itself.
    widened = found.any(dim=-1, keepdim=True) & found.any(dim=-2, keepdim=True)
    assert torch.equal(proof.hears, widened)


def test_interpolation_has_the_neighbors_of_its_precision():
    """In float32 the place of an element between two others is rounded, and may lie beside one instead of on it."""
    stretched = turned(lambda x: F.interpolate(x, size=9, mode="linear"))
    x = torch.zeros(1, 3, 1)
    found = heard_by(lambda x, _: stretched(x), x, seed=0, draws=3)
    assert not (found & ~prove(stretched, x).hears).any()


@pytest.mark.parametrize("run", WIDER.values(), ids=WIDER)
def test_never_less_than_is_heard(run):
    proof = prove(run, example())
    assert not proof.value_escapes
    found = heard_by(lambda x, _: run(x), example(), seed=0, draws=9)
    assert found.any()
    assert not (found & ~proof.hears).any()
