"""What perturbation, gradients or NaN miss, one by one: the proof denies none of it, and accuses nobody clean."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right

from rearview.auditing.proof import prove
from tests.auditing.proof.search import CAUSAL

T, SIZE = 8, 4


def topk_gate(x):
    return x * torch.zeros(x.shape[:2]).scatter(1, x.sum(-1).topk(3, dim=1).indices, 1.0)[..., None]


def quantised(x):
    return x + torch.round(0.01 * x.mean(1, keepdim=True))


class ZeroInit(nn.Module):
    """A path from the future with weight 0 today: a fresh LoRA or ReZero."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(SIZE))

    def forward(self, x):
        return x + self.gate * x.mean(1, keepdim=True)


class ZeroProjection(ZeroInit):
    def forward(self, x):
        return x + F.linear(x.mean(1, keepdim=True), torch.diag(self.gate))


class ZeroNumber(ZeroInit):
    def forward(self, x):
        return x + self.gate[0].item() * x.mean(1, keepdim=True)


class ZeroBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("gate", torch.zeros(SIZE))

    def forward(self, x):
        return x + self.gate * x.mean(1, keepdim=True)


LEAKS = {
    "off by one": lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
    "instance norm": lambda x: F.instance_norm(x.transpose(1, 2)).transpose(1, 2),
    "top-k gate over time": topk_gate,
    "argmax gate": lambda x: x + x.argmax(dim=1, keepdim=True),
    "detached": lambda x: x + x.detach().mean(1, keepdim=True),
    "where on a global mean": lambda x: torch.where(x.mean() > 0, x, -x),
    "sign of a global mean": lambda x: x * torch.sign(x.mean()),
    "nan_to_num on a pooled value": lambda x: x + torch.nan_to_num(x.mean(1, keepdim=True)),
    "dead relu on a pooled value": lambda x: x + torch.relu(x.mean(1, keepdim=True) - 100),
    "quantised pooled value": quantised,
    "zero gate": ZeroInit(),
    "zero projection": ZeroProjection(),
    "zero gate as a number": ZeroNumber(),
    "zero gate in a buffer": ZeroBuffer(),
    "only beyond a chunk": lambda x: torch.cat([x[:, :6], x[:, 6:].mean(1, keepdim=True).expand(-1, 2, -1)], 1),
    "two-sided convolution": (lambda c: lambda x: c(x.transpose(1, 2)).transpose(1, 2))(
        nn.Conv1d(SIZE, SIZE, 3, padding=1)
    ),
    "fft": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.linspace(1, 0, T // 2 + 1)[:, None], n=T, dim=1),
    "bidirectional rnn": (lambda r: lambda x: r(x)[0])(nn.LSTM(SIZE, 2, batch_first=True, bidirectional=True)),
    "batch norm in training": (lambda n: lambda x: n(x.transpose(1, 2)).transpose(1, 2))(nn.BatchNorm1d(SIZE)),
    "expert choice": lambda x: torch.zeros_like(x).index_add(1, x[0].sum(-1).topk(2).indices, x[:, :2]),
    "scale of the whole tensor": lambda x: torch.round(x / x.abs().max() * 127) * x.abs().max() / 127,
    "if on a value": lambda x: x if x[:, -1].sum() > 0 else -x,
    "a shape from values": lambda x: x + (x > 0).nonzero().shape[0],
    "tolist": lambda x: x + sum(x.flatten().tolist()),
    "numpy": lambda x: x + float(x.numpy().sum()),
}


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
def test_no_leak_is_proven_away(leak):
    assert not prove(leak, torch.randn(1, T, SIZE)).within(CAUSAL[T])


def causal_conv(x, conv=nn.Conv1d(SIZE, SIZE, 3, dilation=2)):  # noqa: B008
    return conv(F.pad(x.transpose(1, 2), (4, 0))).transpose(1, 2)


def made(x, layer=nn.Linear(T, T)):  # noqa: B008
    return F.linear(x.transpose(1, 2), layer.weight * torch.ones(T, T).tril(), layer.bias).transpose(1, 2)


def token_mixture(x, gate=nn.Linear(SIZE, 3), experts=nn.Parameter(torch.randn(3, SIZE, SIZE))):  # noqa: B008
    weight, chosen = gate(x).softmax(-1).topk(2, dim=-1)
    return (weight[..., None] * torch.einsum("btf,btkfg->btkg", x, experts[chosen])).sum(2)


def lstm_cell(x, cell=nn.LSTMCell(SIZE, SIZE)):  # noqa: B008
    state, out = None, []
    for t in range(T):
        state = cell(x[:, t], state)
        out.append(state[0])
    return torch.stack(out, 1)


def lower_triangle(x):
    return torch.eye(T) + 0.1 * (x @ x.transpose(1, 2)).tril(-1)


def gradient_of_a_norm(x, norm=nn.LayerNorm(SIZE)):  # noqa: B008
    with torch.enable_grad():
        h = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(norm(h).pow(3).sum(), h)
    return gradient.cumsum(1)


def talking_heads(x, before=nn.Linear(2, 2, bias=False), after=nn.Conv2d(2, 2, 1, bias=False)):  # noqa: B008
    q = x.unflatten(-1, (2, 2)).transpose(1, 2)
    scores = torch.einsum("bhij,gh->bgij", q @ q.transpose(-1, -2), before.weight)
    weights = scores.masked_fill(~CAUSAL[T], float("-inf")).softmax(-1)
    return (after(weights) @ q).transpose(1, 2).flatten(2)


def rare_experts(x, gate=nn.Linear(SIZE, 64), experts=nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(64))):  # noqa: B008
    """Most experts get no token."""
    rows = x.flatten(0, 1)
    weight, chosen = gate(rows).softmax(-1).topk(2)
    out = torch.zeros_like(rows)
    for number, expert in enumerate(experts):
        row, slot = torch.where(chosen == number)
        out[row] += weight[row, slot, None] * expert(rows[row])
    return out.view(x.shape)


def aligned_at_the_end(x):
    q = x[:, None]
    return F.scaled_dot_product_attention(q, q, q, attn_mask=causal_lower_right(T, T))[:, 0]


CLEAN = {
    "talking heads": talking_heads,
    "experts without tokens": rare_experts,
    "a triangular system": lambda x: torch.linalg.solve(lower_triangle(x), x),
    "a triangular inverse": lambda x: torch.linalg.inv(lower_triangle(x)) @ x,
    "gradient of a layer norm": gradient_of_a_norm,
    "causal_lower_right": aligned_at_the_end,
    "group norm of rows": lambda x: F.group_norm(x.flatten(0, 1), 2).view(x.shape),
    "group norm of single channels": lambda x: F.group_norm(x.transpose(1, 2).flatten(0, 1), T).view(-1, SIZE, T).mT,
    "no elements": lambda x: torch.cat([x[:, :0].cumsum(1).softmax(-1), x + x[:, :0].sum(1, keepdim=True)], 1),
    "cumsum": lambda x: x.cumsum(1),
    "running mean": lambda x: x.cumsum(1) / torch.arange(1, T + 1)[:, None],
    "causal convolution": causal_conv,
    "lstm": (lambda r: lambda x: r(x)[0])(nn.LSTM(SIZE, SIZE, num_layers=2, batch_first=True)),
    "gru": (lambda r: lambda x: r(x)[0])(nn.GRU(SIZE, SIZE, batch_first=True)),
    "rnn, time first": (lambda r: lambda x: r(x.transpose(0, 1))[0].transpose(0, 1))(nn.RNN(SIZE, SIZE)),
    "lstm cell": lstm_cell,
    "masked linear": made,
    "token-choice experts": token_mixture,
    "layer norm": nn.LayerNorm(SIZE),
    "batch norm in eval": (lambda n: lambda x: n(x.transpose(1, 2)).transpose(1, 2))(nn.BatchNorm1d(SIZE).eval()),
    "divided by the length": lambda x: x / x.shape[1],
    "rrelu in eval": nn.RReLU().eval(),
    "shifted": lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1],
    "blocks of the past": lambda x: F.pad(x, (0, 0, 2, 0)).unfold(1, 3, 1).mean(-1),
}


@pytest.mark.parametrize("clean", CLEAN.values(), ids=CLEAN)
@pytest.mark.parametrize("batch", [1, 2])
def test_clean_programs_are_proven(clean, batch: int):
    proof = prove(clean, torch.randn(batch, T, SIZE))
    assert proof.within(CAUSAL[T])
    assert proof.matrix().diagonal(-1).any() or proof.matrix().diagonal().any(), "something is heard"
    assert not proof.unknown_ops
