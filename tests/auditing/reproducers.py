"""Models on which an auditor is easily wrong about the line.

Time is padded, prepended, sorted, or cut into chunks, and lengths equal another size of the model.

`# here` marks the line that mixes positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.auditing.zoo import Case

VOCAB, WIDTH = 61, 16


def tokens(time: int, batch: int = 2) -> Callable[[], Tensor]:
    return lambda: torch.randint(VOCAB, (batch, time), generator=torch.Generator().manual_seed(1))


class Decoder(nn.Module):
    """An embedding, one mixer without a residual, and a head."""

    def __init__(self, mixer: nn.Module, width: int = WIDTH):
        super().__init__()
        self.embed, self.mixer, self.head = nn.Embedding(VOCAB, width), mixer, nn.Linear(width, VOCAB)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mixer(self.embed(x)))


class Attention(nn.Module):
    """Four heads of eight; `attend` says what to do with them."""

    def __init__(self, width: int = 32, heads: int = 4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError


class OffByOneFused(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)  # here


class TorchAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]  # here


class RolledSum(nn.Module):
    """The length may equal the width."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.cumsum(1) + x.roll(-1, 1)  # here


class MemoryTokens(nn.Module):
    """Learned tokens before the sequence hear all of it, and everyone hears them."""

    def __init__(self, count: int = 3):
        super().__init__()
        self.memory, self.count = nn.Parameter(torch.randn(1, count, WIDTH)), count

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.memory.expand(len(x), -1, -1), x], 1)
        time = x.shape[1]
        seen = torch.ones(time, time, dtype=torch.bool).tril()
        seen[: self.count] = True
        for _ in range(2):
            scores = (x @ x.transpose(1, 2) / 4).masked_fill(~seen, -math.inf)
            x = x + scores.softmax(-1) @ x  # here
        return x[:, self.count :]


class PrependedNoMask(nn.Module):
    """A prompt before the sequence, and no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(1, 5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.prompt.expand(len(x), -1, -1), x], 1)
        weights = (x @ x.transpose(1, 2) / 4).softmax(-1)  # here
        return (weights @ x)[:, 5:]


class PaddedToABlock(nn.Module):
    """Padded to a multiple of eight, mixed without a mask, and cut again."""

    def forward(self, x: Tensor) -> Tensor:
        time = x.shape[1]
        padded = F.pad(x, (0, 0, 0, -time % 8))
        mixed = padded.flip(1).cumsum(1).flip(1)  # here
        return mixed[:, :time]


class PaddedLeft(nn.Module):
    """As HTransformer does: padded in front, then attention without a mask within blocks."""

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        padded = F.pad(x, (0, 0, -time % 4, 0))
        blocks = padded.view(batch, -1, 4, width)
        weights = (blocks @ blocks.transpose(-1, -2)).softmax(-1)  # here
        return (weights @ blocks).view(batch, -1, width)[:, -time:]


class Landmarks(nn.Module):
    """As the Nystromformer does: means of segments stand for the keys."""

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        padded = F.pad(x, (0, 0, 0, -time % 4))
        marks = padded.view(batch, 4, -1, width).mean(2)
        weights = (padded @ marks.transpose(1, 2)).softmax(-1)  # here
        return (weights @ marks)[:, :time]  # here


class LocalWindows(nn.Module):
    """Attention in chunks of four that also hear the chunk before, without a mask within the chunk."""

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        chunks = x.reshape(batch, time // 4, 4, width)
        before = F.pad(chunks, (0, 0, 0, 0, 1, 0))[:, :-1]
        keys = torch.cat([before, chunks], 2)
        weights = (chunks @ keys.transpose(-1, -2)).softmax(-1)  # here
        return (weights @ keys).reshape(batch, time, width)


class NextChunk(nn.Module):
    """The chunk after is heard instead of the one before."""

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        chunks = x.reshape(batch, time // 4, 4, width).sum(2)
        later = chunks.roll(-1, 1)
        return x + later.repeat_interleave(4, 1)  # here


class SortedBuckets(nn.Module):
    """As Reformer and Sinkhorn do: positions are sorted into buckets, and attend within them."""

    def __init__(self) -> None:
        super().__init__()
        self.hash = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        order = self.hash(x).squeeze(-1).argsort(1)  # here
        index = order.unsqueeze(-1).expand_as(x)
        mixed = x.gather(1, index).cumsum(1)  # here
        return torch.zeros_like(x).scatter(1, index, mixed)


class KeysInPieces(nn.Module):
    """As ring attention does: the keys come in pieces, and none is masked."""

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        norm = torch.zeros_like(x[..., :1])
        for part in x.split(5, 1):
            weights = (x @ part.transpose(1, 2) / 4).exp()
            total = total + weights @ part  # here
            norm = norm + weights.sum(-1, keepdim=True)  # here
        return total / norm


class CountingGate(nn.Module):
    """As ST-MoE did: the share of tokens that an expert got, over all of the sequence, scales the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.Parameter(torch.randn(4, WIDTH, WIDTH) / 4)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).softmax(-1)
        chosen = F.one_hot(gates.argmax(-1), 4).to(x.dtype)
        share = chosen.mean(1, keepdim=True)  # here
        combine = gates * chosen * share
        worked = torch.einsum("btd,edf->btef", x, self.experts)
        return torch.einsum("bte,btef->btf", combine, worked)


class MemoryKeys(nn.Module):
    """Learned keys and values before the others, and no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = (nn.Parameter(torch.randn(1, 2, WIDTH)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        keys, values = (torch.cat([part.expand(len(x), -1, -1), x], 1) for part in (self.keys, self.values))
        weights = (x @ keys.transpose(1, 2) / 4).softmax(-1)  # here
        return weights @ values


class Flexible(Attention):
    """FlexAttention that hears some positions ahead."""

    def __init__(self, ahead: int = 1):
        super().__init__()
        self.ahead = ahead

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        time = q.shape[2]
        block_mask = create_block_mask(lambda b, h, i, j: i + self.ahead >= j, None, None, time, time, device="cpu")
        return flex_attention(q, k, v, block_mask=block_mask)  # here  # pyright: ignore[reportReturnType]


class FarWidth(nn.Module):
    """A mean over time in a model whose width equals the length."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean(1, keepdim=True).tanh()  # here


class HeadsOfTheLength(nn.Module):
    """As many heads as positions, and no mask."""

    def __init__(self, heads: int = 8):
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        q = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        weights = (q @ q.transpose(-1, -2)).softmax(-1)  # here
        return (weights @ q).transpose(1, 2).reshape(x.shape)


class TwiceAsLong(nn.Module):
    """The sequence and its reverse, one after the other, as some encoders have it."""

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([x, x.flip(1)], 1).cumsum(1)  # here
        return both[:, x.shape[1] :]


class ShiftedChunks(nn.Module):
    """A summary of each chunk, moved by one chunk in the wrong direction."""

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        chunks = x.view(batch, time // 4, 4, width)
        summary = chunks.mean(2)
        heard = torch.cat([summary[:, 1:], torch.zeros_like(summary[:, :1])], 1)
        return (chunks + heard.unsqueeze(2)).view(x.shape)  # here


class LoopOverTime(nn.Module):
    """A recurrence that starts from the mean of the sequence."""

    def forward(self, x: Tensor) -> Tensor:
        state, out = x.mean(1), []  # here
        for t in range(x.shape[1]):
            state = 0.5 * state + x[:, t]
            out.append(state)
        return torch.stack(out, 1)


class StridedPooling(nn.Module):
    """Pooled over pairs, and spread again."""

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.avg_pool1d(x.transpose(1, 2), 2)
        return x + pooled.repeat_interleave(2, 2).transpose(1, 2)  # here


class Distances(nn.Module):
    """Weights by distance instead of a product, and no mask."""

    def forward(self, x: Tensor) -> Tensor:
        weights = (-torch.cdist(x, x)).softmax(-1)  # here
        return weights @ x


class CenteredWindows(nn.Module):
    """Windows that reach as far ahead as back."""

    def forward(self, x: Tensor) -> Tensor:
        windows = F.pad(x, (0, 0, 1, 1)).unfold(1, 3, 1)
        return x + windows.mean(-1)  # here


class NormOverTime(nn.Module):
    """A norm whose statistics, one for each channel, are about as many as positions."""

    def forward(self, x: Tensor) -> Tensor:
        return F.instance_norm(x.transpose(1, 2)).transpose(1, 2)  # here


class OtherItem(nn.Module):
    """Each item of the batch gets a part of another."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) + x.flip(0)  # here


class Interpolated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = x[:, ::2].transpose(1, 2)
        return F.interpolate(half, size=x.shape[1], mode="linear").transpose(1, 2)  # here


PLACES: dict[str, Case] = {
    **{
        f"{name}, {time} positions": Case(lambda mixer=mixer, width=width: Decoder(mixer(), width), tokens(time))
        for name, mixer, width, times in (
            ("roll in a model of width 16", RolledSum, 16, (12, 16)),
            ("attention of torch", TorchAttention, 16, (8, 12, 16)),
            ("mean in a model of width 16", FarWidth, 16, (7, 16)),
            ("off by one, four heads of eight", OffByOneFused, 32, (4, 5, 7, 8, 9, 12, 16, 32)),
            ("eight heads of two", HeadsOfTheLength, 16, (2, 8, 16)),
            ("memory tokens", MemoryTokens, 16, (12, 13, 16, 19)),
            ("a prompt", PrependedNoMask, 16, (11, 12, 16, 21)),
            ("padded to a block", PaddedToABlock, 16, (12, 13, 16)),
            ("padded in front", PaddedLeft, 16, (12, 13, 16)),
            ("landmarks", Landmarks, 16, (12, 14, 16)),
            ("local windows", LocalWindows, 16, (8, 12, 16)),
            ("chunks from the wrong side", ShiftedChunks, 16, (8, 12, 16)),
            ("the next chunk", NextChunk, 16, (8, 12, 16)),
            ("sorted buckets", SortedBuckets, 16, (12, 16)),
            ("keys in pieces", KeysInPieces, 16, (10, 12, 16)),
            ("a gate that counts", CountingGate, 16, (4, 12, 16)),
            ("memory keys", MemoryKeys, 16, (12, 14, 16)),
            ("twice as long", TwiceAsLong, 16, (8, 12, 16)),
            ("a loop over time", LoopOverTime, 16, (12, 16)),
            ("pooled over pairs", StridedPooling, 16, (8, 12, 16)),
            ("interpolated", Interpolated, 16, (8, 12, 16)),
            ("weights by distance", Distances, 16, (12, 16)),
            ("centered windows", CenteredWindows, 16, (12, 16)),
            ("a norm over time", NormOverTime, 16, (12, 13)),
            ("another item", OtherItem, 16, (12, 16)),
        )
        for time in times
    },
    "FlexAttention": Case(lambda: Decoder(Flexible(), 32), tokens(12)),
}
