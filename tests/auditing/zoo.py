"""A zoo of small models: those that peek, each in a way that some real project shipped, and those that do not.

Every leaking model marks the line where it peeks with `# here`, and the auditor has to name that line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rearview import causal, chunks, documents, prefix, window
from rearview.masks import Mask

VOCAB, DIM, HEADS, TIME, BATCH = 29, 12, 3, 16, 2


def tokens(batch: int = BATCH, time: int = TIME) -> Tensor:
    return torch.randint(VOCAB, (batch, time), generator=torch.Generator().manual_seed(1))


def signal(batch: int = BATCH, time: int = TIME, dim: int = DIM) -> Tensor:
    return torch.randn(batch, time, dim, generator=torch.Generator().manual_seed(1))


def lower(time: int, offset: int = 0) -> Tensor:
    return torch.ones(time, time, dtype=torch.bool).tril(offset)


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and what the auditor is to say of it."""

    build: Callable[[], Any]
    inputs: Callable[[], Any] = tokens
    contract: Mask = field(default_factory=causal)
    options: dict[str, Any] = field(default_factory=dict)
    hint: str = ""
    """A part of the hint."""
    check: str = "who heard whom"
    """A check that must find it."""
    module: str = ""
    marked: bool = True
    """Is the line marked, or does the leak come from a torch module called on it?"""


class LM(nn.Module):
    """Embedding, some mixing layers with a residual, and a head."""

    def __init__(self, *mixers: nn.Module):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.mixers = nn.ModuleList(mixers)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for mixer in self.mixers:
            h = h + mixer(h)
        return self.head(h)


class Heads(nn.Module):
    """Queries, keys and values of several heads; a subclass says what to do with them."""

    def __init__(self, kv_heads: int = HEADS):
        super().__init__()
        self.size, self.kv_heads = DIM // HEADS, kv_heads
        self.q = nn.Linear(DIM, DIM)
        self.kv = nn.Linear(DIM, 2 * kv_heads * self.size)
        self.out = nn.Linear(DIM, DIM)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, time, _ = x.shape
        q = self.q(x).view(batch, time, HEADS, self.size).transpose(1, 2)
        k, v = self.kv(x).view(batch, time, 2, self.kv_heads, self.size).permute(2, 0, 3, 1, 4)
        return q, k, v

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2) / math.sqrt(self.size)

    def join(self, x: Tensor) -> Tensor:
        return self.out(x.transpose(1, 2).flatten(2))


class NoMask(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = self.scores(q, k).softmax(-1)  # here
        return self.join(weights @ v)


class NoMaskFused(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.join(F.scaled_dot_product_attention(q, k, v))  # here


class InvertedBool(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        blocked = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        blocked[-1, -1] = True
        return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=blocked))  # here


class OffByOne(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = self.scores(q, k).masked_fill(~lower(x.shape[1], 1), -math.inf)
        return self.join(scores.softmax(-1) @ v)  # here


class SoftmaxOverQueries(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = self.scores(q, k).masked_fill(~lower(x.shape[1]), -math.inf)
        return self.join(scores.softmax(-2) @ v)  # here


class MaskAfterSoftmax(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = self.scores(q, k).softmax(-1)  # here
        return self.join(weights.masked_fill(~lower(x.shape[1]), 0.0) @ v)


class MaskMultiplies(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = self.scores(q, k) * lower(x.shape[1])
        return self.join(scores.softmax(-1) @ v)  # here


class MaskBeforeScaling(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = (q @ k.transpose(-1, -2)).masked_fill(~lower(x.shape[1]), -10.0) / math.sqrt(self.size)
        return self.join(scores.softmax(-1) @ v)  # here


class TanhAfterMask(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = self.scores(q, k).masked_fill(~lower(x.shape[1]), -math.inf)
        scores = 5 * torch.tanh(scores / 5)
        return self.join(scores.softmax(-1) @ v)  # here


class FiniteFill(Heads):
    """-1e4 was enough until the scores grew."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = 3e5 * self.scores(q, k)
        scores = scores.masked_fill(~lower(x.shape[1]), -1e4)
        return self.join(scores.softmax(-1) @ v)  # here


class TopLeft(Heads):
    """Memory tokens stand before the keys, and is_causal does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.Parameter(torch.randn(1, HEADS, 3, self.size))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        memory = self.memory.expand(len(x), -1, -1, -1)
        k, v = torch.cat([k, memory], 2), torch.cat([v, memory], 2)
        ones = torch.ones(x.shape[1], k.shape[2], dtype=torch.bool)
        return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=ones.tril(3)))  # here


class LinearAttention(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.exp() for part in self.split(x))
        state = k.transpose(-1, -2) @ v  # here
        return self.join(q @ state / TIME)


class InstanceNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)  # here


class GlobalNorm(nn.Module):
    """The layer norm of a causal ConvTasNet that was not."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((1, 2), keepdim=True)  # here
        return (x - mean) / (x.var(2, keepdim=True) + 1e-5).sqrt()


class Conv(nn.Module):
    def __init__(self, **options: Any):
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, 3, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.transpose(1, 2)).transpose(1, 2)  # here


class PadsRight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, 4)

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x.transpose(1, 2), (2, 1))
        return self.conv(padded).transpose(1, 2)  # here


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase], both: bool):
        super().__init__()
        self.rnn: Any = kind(DIM, DIM // 2 if both else DIM, batch_first=True, bidirectional=both)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]  # here


class TopKGate(nn.Module):
    """Mixture of depths: the best half of the tokens of a sequence are worked on."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.work = nn.Linear(DIM, 1), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).squeeze(-1).topk(x.shape[1] // 2, dim=1).indices  # here
        index = chosen.unsqueeze(-1).expand(-1, -1, DIM)
        return torch.zeros_like(x).scatter(1, index, self.work(x.gather(1, index)))


class ArgmaxGate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        best = x.sum(-1).argmax(1)  # here
        return x * (best.unsqueeze(-1) == torch.arange(x.shape[1])).unsqueeze(-1)


class Detached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.detach().mean(1, keepdim=True).sigmoid()  # here


class SignGate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(1, keepdim=True)  # here
        return torch.where(pooled > 0, x, -x)


class ExpertChoice(nn.Module):
    """Each expert picks its tokens from the whole sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(DIM, 4)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        affinity = self.router(x).softmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            gate, chosen = affinity[..., number].topk(5, dim=1)  # here
            index = chosen.unsqueeze(-1).expand(-1, -1, DIM)
            out = out.scatter_add(1, index, gate.unsqueeze(-1) * expert(x.gather(1, index)))
        return out


class ZeroGate(nn.Module):
    """ReZero: closed until the first step of training."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) + self.gate * x.mean(1, keepdim=True)  # here


class LowRank(nn.Module):
    """LoRA on a path over time, with B = 0."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(TIME, 4, bias=False), nn.Linear(4, TIME, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) + self.b(self.a(x.transpose(1, 2))).transpose(1, 2)  # here


class DeadUnit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Linear(DIM, DIM)
        nn.init.constant_(self.pool.bias, -100.0)

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) + self.pool(x.mean(1, keepdim=True)).relu()  # here


class ByLength(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) / x.shape[1]  # here


class BlockMeans(nn.Module):
    """Summaries of blocks, given back to every position of the block."""

    def __init__(self, size: int = 4):
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        batch, time, dim = x.shape
        blocks = x.view(batch, time // self.size, self.size, dim)
        means = blocks.mean(2, keepdim=True)
        return means.expand_as(blocks).reshape(x.shape)  # here


class ChunkState(nn.Module):
    """A scan in chunks, in which a chunk starts from its own final state."""

    def forward(self, x: Tensor) -> Tensor:
        batch, time, dim = x.shape
        parts = x.view(batch, time // 4, 4, dim)
        inside = parts.cumsum(2)
        states = parts.sum(2).cumsum(1)
        return (inside + states.unsqueeze(2)).reshape(x.shape)  # here


class MeanPool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True).expand_as(x)  # here


class Fourier(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x, dim=1).real  # here


class Flip(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(1).cumsum(1).flip(1)  # here


class Roll(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.roll(-1, 1)  # here


class Shift(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, 1:], x[:, -1:]], 1)  # here


class CountsTokens(nn.Module):
    """Divides by the number of real tokens, and token 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.lm = LM(Causal())

    def forward(self, x: Tensor) -> Tensor:
        real = (x != 0).sum(1)  # here
        return self.lm(x) / real.view(-1, 1, 1)


class Quantised(nn.Module):
    """Dynamic int8: one scale for all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax((1, 2), keepdim=True) / 127  # here
        return (x / scale).round() * scale


class ViewForTranspose(nn.Module):
    """[time, heads, size] read as [heads, time, size]."""

    def forward(self, x: Tensor) -> Tensor:
        batch, time, dim = x.shape
        mixed = x.reshape(batch, HEADS, time, dim // HEADS)  # here
        return mixed.cumsum(2).transpose(1, 2).reshape(x.shape)


class TimeMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(TIME, TIME)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x.transpose(1, 2)).transpose(1, 2)  # here


class ReadsAScalar(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        largest = x.abs().amax()  # here
        return x / largest.item()


class WritesBack(nn.Module):
    """A loop that fills its result from the end."""

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        state = torch.zeros_like(x[:, 0])
        for t in reversed(range(x.shape[1])):
            state = state + x[:, t]  # here
            out[:, t] = state
        return out


class DropsMaskInTraining(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        if self.training:
            return self.join(F.dropout(self.scores(q, k).softmax(-1), 0.1) @ v)  # here
        return self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class BatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)  # here


class BatchMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) - x.mean(0, keepdim=True)  # here


class Causal(Heads):
    """Attention in its usual forms: `how` names one."""

    def __init__(self, how: str = "eager", kv_heads: int = HEADS, width: int = 0):
        super().__init__(kv_heads)
        self.how, self.width = how, width

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        time = x.shape[1]
        heard = lower(time)
        if self.width:
            heard &= ~lower(time, -self.width)
        if self.kv_heads != HEADS:
            k, v = (part.repeat_interleave(HEADS // self.kv_heads, 1) for part in (k, v))
        if self.how == "rope":
            q, k = rotated(q), rotated(k)
        if self.how == "flags":
            return self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        if self.how == "dense":
            return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=heard))
        if self.how == "additive":
            mask = torch.zeros(time, time).masked_fill(~heard, torch.finfo(torch.float32).min)
            return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        scores = self.scores(q, k)
        if self.how == "alibi":
            slope = 2.0 ** -torch.arange(1, HEADS + 1).view(-1, 1, 1)
            scores = scores + slope * (torch.arange(time) - torch.arange(time).unsqueeze(-1))
        if self.how == "softcap":
            scores = 5 * torch.tanh(scores / 5)
        fill = -1e9 if self.how == "finite" else -math.inf
        return self.join(F.dropout(scores.masked_fill(~heard, fill).softmax(-1), 0.1, self.training) @ v)


def rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2]).unsqueeze(-1) * 10.0 ** -torch.arange(half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class PrefixLM(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        heard = lower(x.shape[1]) | (torch.arange(x.shape[1]) < 6)
        return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=heard))


class Packed(Heads):
    """Documents side by side; `leaky` forgets the boundary."""

    def __init__(self, leaky: bool):
        super().__init__()
        self.leaky = leaky

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        ids = torch.tensor(DOCUMENTS)
        heard = lower(x.shape[1]) & ((ids == ids.unsqueeze(-1)) | self.leaky)
        return self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=heard))  # here


DOCUMENTS = [0] * 6 + [1] * 5 + [2] * 5


class CausalConv(nn.Module):
    def __init__(self, dilation: int = 1):
        super().__init__()
        self.reach = 2 * dilation
        self.conv = nn.Conv1d(DIM, DIM, 3, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x.transpose(1, 2), (self.reach, 0))).transpose(1, 2)


class Scan(nn.Module):
    """A state-space scan: h = a h + b x."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.1, 0.9, DIM))

    def forward(self, x: Tensor) -> Tensor:
        state, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = self.decay * state + x[:, t]
            out.append(state)
        return torch.stack(out, 1)


class ChunkedScan(nn.Module):
    """The same idea in chunks, done right: a chunk starts from the state before it."""

    def forward(self, x: Tensor) -> Tensor:
        batch, time, dim = x.shape
        parts = x.view(batch, time // 4, 4, dim)
        ends = parts.sum(2).cumsum(1)
        before = F.pad(ends, (0, 0, 1, 0))[:, :-1]
        return (parts.cumsum(2) + before.unsqueeze(2)).reshape(x.shape)


class TokenChoice(nn.Module):
    """A mixture of experts in which each token picks; experts gather their tokens."""

    def __init__(self, k: int = 2):
        super().__init__()
        self.k = k
        self.router = nn.Linear(DIM, 4)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, DIM)
        gate, chosen = self.router(flat).softmax(-1).topk(self.k, -1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            row, slot = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, row, gate[row, slot].unsqueeze(-1) * expert(flat[row]))
        return out.view(x.shape)


class DropoutInExperts(TokenChoice):
    """How many numbers an expert draws depends on how many tokens it got."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(DIM, DIM), nn.Dropout(0.3)) for _ in range(4))


class DropsSomeTokens(nn.Module):
    """Dropout of a half, the default of torch, in some of the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[..., 0] > 0
        x = x.clone()
        x[chosen] = F.dropout(x[chosen], 0.5, self.training)
        return x


class RandomSlopes(nn.Module):
    """A leaky ReLU that draws a slope for each negative number, and dropout after it."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes, self.dropout = nn.RReLU(), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.slopes(x))


class FaintPool(nn.Module):
    """A leak in training that is much smaller than what dropout in experts does by chance."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1e-3 * x.mean(1, keepdim=True) if self.training else x  # here


class CumulativeMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1).view(-1, 1)


class Norms(nn.Module):
    """Normalisations that are fine: over features."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rms = nn.LayerNorm(DIM), nn.RMSNorm(DIM)
        self.mix = Causal()

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.rms(self.norm(x)))


class ZeroInit(Causal):
    """As nanochat does: the output projection starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)


class Lookahead(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        ahead = F.pad(x, (0, 0, 0, 2))
        return x.cumsum(1) + ahead[:, 2:] + ahead[:, 1:-1]


class TorchEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(DIM, HEADS, 24, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layer(x, src_mask=mask, is_causal=True)


LEAKING: dict[str, Case] = {
    "no mask": Case(lambda: LM(NoMask()), hint="no mask reaches"),
    "no mask, fused": Case(lambda: LM(NoMaskFused()), hint="no mask reaches"),
    "inverted bool mask": Case(lambda: LM(InvertedBool()), hint="inverted"),
    "off by one": Case(lambda: LM(OffByOne()), hint="off by one"),
    "softmax over queries": Case(lambda: LM(SoftmaxOverQueries()), hint="softmax over queries"),
    "mask after softmax": Case(lambda: LM(MaskAfterSoftmax()), hint="after the softmax"),
    "mask multiplies": Case(lambda: LM(MaskMultiplies()), hint="multiplies"),
    "mask before scaling": Case(lambda: LM(MaskBeforeScaling()), hint="something (tanh, a clamp) follows the mask"),
    "tanh after mask": Case(lambda: LM(TanhAfterMask()), hint="something (tanh, a clamp) follows the mask"),
    "finite fill outweighed": Case(lambda: LM(FiniteFill()), hint="finite number"),
    "mask off beside memory": Case(lambda: LM(TopLeft())),
    "linear attention without mask": Case(lambda: LM(LinearAttention()), hint="over the time axis"),
    "instance norm": Case(lambda: LM(InstanceNorm()), hint="normalization over time: "),
    "global layer norm": Case(lambda: LM(GlobalNorm()), hint="normalization over time: "),
    "same-padded convolution": Case(lambda: LM(Conv(padding=1)), hint="pads the future"),
    "dilated same padding": Case(lambda: LM(Conv(padding=2, dilation=2)), hint="reaches 2 steps ahead"),
    "convolution padded right": Case(lambda: LM(PadsRight()), hint="pads the future"),
    "bidirectional GRU": Case(lambda: LM(Recurrent(nn.GRU, True)), hint="bidirectional", module="mixers.0.rnn"),
    "bidirectional LSTM": Case(lambda: LM(Recurrent(nn.LSTM, True)), hint="bidirectional", module="mixers.0.rnn"),
    "top-k gate": Case(lambda: LM(TopKGate()), hint="top-k"),
    "argmax gate": Case(lambda: LM(ArgmaxGate()), hint="argmax"),
    "detached path": Case(lambda: LM(Detached()), hint="a mean"),
    "sign gate": Case(lambda: LM(SignGate()), hint="a mean"),
    "expert choice": Case(lambda: LM(ExpertChoice()), hint="top-k"),
    "zero gate": Case(lambda: LM(ZeroGate()), check="redrawn zeros", hint="a mean"),
    "zero low-rank path": Case(lambda: LM(LowRank()), check="redrawn zeros"),
    "dead unit": Case(lambda: LM(DeadUnit()), check="redrawn weights", options={"mode": "full"}, hint="a mean"),
    "depends on length": Case(lambda: LM(ByLength()), check="truncation", hint="length"),
    "block means": Case(lambda: LM(BlockMeans()), hint="within blocks of 4"),
    "chunk starts from its own end": Case(lambda: LM(ChunkState())),
    "mean pooling": Case(lambda: LM(MeanPool()), hint="a mean"),
    "Fourier": Case(lambda: LM(Fourier()), hint="Fourier"),
    "flipped sum": Case(lambda: LM(Flip()), hint="wrong end"),
    "roll": Case(lambda: LM(Roll()), hint="a roll: positions wrap around, or each one holds the next"),
    "shift": Case(lambda: LM(Shift()), hint="exactly the next one"),
    "counts the padding": Case(lambda: CountsTokens(), check="suffix swap", hint="a sum"),
    "quantised by one scale": Case(lambda: LM(Causal(), Quantised()), check="suffix swap", hint="maximum"),
    "view for transpose": Case(lambda: LM(ViewForTranspose()), hint="without a transpose"),
    "mixer over time": Case(lambda: LM(TimeMixer()), hint="over the time axis"),
    "reads a scalar": Case(lambda: LM(ReadsAScalar()), check="batch isolation"),
    "fills from the end": Case(lambda: LM(WritesBack())),
    "one layer of several": Case(lambda: LM(Causal(), NoMask(), Causal("flags")), module="mixers.1"),
    "every layer": Case(lambda: LM(NoMask(), NoMask(), NoMask()), module="mixers.0"),
    "two faults": Case(lambda: LM(NoMask(), InstanceNorm())),
    "mask dropped in training": Case(lambda: LM(DropsMaskInTraining()), check="train mode", hint="only in train mode"),
    "batch norm in training": Case(lambda: LM(Causal(), BatchNorm()).train(), check="train mode", hint="batch normal"),
    "mean over the batch": Case(lambda: LM(BatchMean()), check="batch isolation", hint="batch"),
    "window too wide": Case(lambda: LM(Causal("dense", width=5)), contract=causal() & window(4), marked=False),
    "documents leak": Case(
        lambda: LM(Packed(leaky=True)), contract=causal() & documents(DOCUMENTS), hint="forbidden pairs"
    ),
    "prefix under causal": Case(lambda: LM(PrefixLM()), marked=False),
    "lookahead too far": Case(lambda: LM(Lookahead()), contract=causal() | window(1, ahead=1), marked=False),
    "no mask beside dropout in experts": Case(lambda: LM(DropoutInExperts(), NoMask()).train(), module="mixers.1"),
    "a faint leak beside dropout in experts": Case(
        lambda: LM(Causal(), FaintPool(), DropoutInExperts()).train(), check="train mode", module="mixers.1"
    ),
    "float input, no mask": Case(lambda: NoMask(), inputs=signal, hint="no mask reaches"),
}

CLEAN: dict[str, Case] = {
    "eager attention": Case(lambda: LM(Causal())),
    "fused attention, flag": Case(lambda: LM(Causal("flags"))),
    "fused attention, bool mask": Case(lambda: LM(Causal("dense"))),
    "fused attention, additive mask": Case(lambda: LM(Causal("additive"))),
    "finite fill": Case(lambda: LM(Causal("finite"))),
    "grouped queries": Case(lambda: LM(Causal(kv_heads=1))),
    "ALiBi": Case(lambda: LM(Causal("alibi"))),
    "RoPE": Case(lambda: LM(Causal("rope"))),
    "softcap": Case(lambda: LM(Causal("softcap"))),
    "several layers": Case(lambda: LM(Norms(), Causal("flags"), Norms())),
    "sliding window": Case(lambda: LM(Causal("dense", width=4)), contract=causal() & window(4)),
    "sliding window, causal": Case(lambda: LM(Causal("dense", width=4))),
    "causal convolution": Case(lambda: LM(CausalConv())),
    "dilated causal convolution": Case(lambda: LM(CausalConv(2), CausalConv(4))),
    "GRU": Case(lambda: LM(Recurrent(nn.GRU, False))),
    "LSTM": Case(lambda: LM(Recurrent(nn.LSTM, False))),
    "scan": Case(lambda: LM(Scan())),
    "chunked scan": Case(lambda: LM(ChunkedScan())),
    "token-choice experts": Case(lambda: LM(Causal(), TokenChoice())),
    "top-1 experts": Case(lambda: LM(Causal(), TokenChoice(1))),
    "dropout, in train mode": Case(lambda: LM(Causal(), Norms()).train()),
    "dropout in experts, in train mode": Case(lambda: LM(Causal(), DropoutInExperts()).train()),
    "dropout in experts, in eval mode": Case(lambda: LM(Causal(), DropoutInExperts()).eval()),
    "dropout in some tokens": Case(lambda: LM(Causal(), DropsSomeTokens()).train()),
    "random slopes and dropout": Case(lambda: LM(Causal(), RandomSlopes()).train()),
    "prefix-LM": Case(lambda: LM(PrefixLM()), contract=causal() | prefix(6)),
    "packed documents": Case(lambda: LM(Packed(leaky=False)), contract=causal() & documents(DOCUMENTS)),
    "cumulative mean": Case(lambda: LM(CumulativeMean())),
    "zero-initialised projections": Case(lambda: LM(ZeroInit())),
    "batch norm in eval": Case(lambda: LM(Causal(), BatchNorm()).eval()),
    "look-ahead of two": Case(lambda: LM(Lookahead()), contract=causal() | window(1, ahead=2)),
    "torch encoder layer": Case(lambda: LM(TorchEncoder())),
    "float input": Case(lambda: Causal(), inputs=signal),
    "block-causal": Case(lambda: LM(BlockMeans(4)), contract=chunks(4)),
    "bf16": Case(lambda: LM(Causal("flags"), Norms()).bfloat16()),
    "dict inputs": Case(lambda: Named(), inputs=lambda: {"tokens": tokens(), "scale": 2.0}),
}


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lm = LM(Causal())

    def forward(self, tokens: Tensor, scale: float) -> dict[str, Tensor]:
        return {"loss": torch.zeros(()), "logits": self.lm(tokens) * scale}
