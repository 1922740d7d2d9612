"""What is measured: a mask, the sizes it is measured at, and how a user without rearview would say it.

>>> from bench.cases import BASE_CPU, cases
>>> [case.name for case in cases(BASE_CPU)][:3]
['causal', 'window', 'documents']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from rearview import Mask, causal, documents, padding, prefix, window

# May query row q hear key k? A FlexAttention mask_mod: rows count from 0, wherever the queries stand.
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# Lengths of uneven documents, as shares of 64; most are short, as in real text.
UNEVEN = (3, 1, 9, 2, 17, 1, 5, 12, 2, 4, 8)
# Real tokens of the items of a padded batch, as shares of 8.
RAGGED = (8, 5, 3, 6)


@dataclass(frozen=True)
class Size:
    batch: int
    heads: int
    length: int
    dim: int

    def __str__(self) -> str:
        return f"B{self.batch} H{self.heads} L{self.length} D{self.dim}"


BASE_CPU = Size(batch=1, heads=8, length=2048, dim=64)
BASE_CUDA = Size(batch=4, heads=16, length=4096, dim=64)


@dataclass(frozen=True, eq=False)
class Case:
    """`make_mask` makes a new mask each time, so that a first call is a first call."""

    name: str
    make_mask: Callable[[], Mask]
    rule: Rule
    batch: int
    heads: int
    q_len: int
    k_len: int
    dim: int
    # SDPA's own arguments where they can say this mask with no tensor.
    plain: dict[str, bool] | None = None
    # The rows whose answer somebody reads, bool [batch, q_len]; padding's is nobody's. None: all.
    read: Tensor | None = None
    differs_by_item: bool = False
    trains: bool = True
    # Long cases take few rounds.
    is_long: bool = False

    @property
    def sizes(self) -> str:
        lengths = f"L{self.k_len}" if self.q_len == self.k_len else f"Q{self.q_len} K{self.k_len}"
        return f"B{self.batch} H{self.heads} {lengths} D{self.dim}"

    def dense(self, device: torch.device) -> Tensor:
        """The rule written out, as a user of SDPA does: bool, True = may be heard."""
        b = torch.arange(self.batch, device=device).view(-1, 1, 1, 1)
        h = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
        q = torch.arange(self.q_len, device=device).view(1, 1, -1, 1)
        k = torch.arange(self.k_len, device=device).view(1, 1, 1, -1)
        return self.rule(b, h, q, k).contiguous()


def cases(size: Size, *, device: str = "cpu", long: bool = False) -> list[Case]:
    """All cases at a base size; those with a size in their name do not follow it."""
    found = [*_square(size, device), *_batched(size, device), *_decoding(size, device), *_small(device)]
    return found + (_long(device) if long else [])


def _square(size: Size, device: str, suffix: str = "", is_long: bool = False) -> list[Case]:
    back, each = min(128, max(2, size.length // 4)), min(256, max(2, size.length // 4))
    shape = (size.batch, size.heads, size.length, size.length, size.dim)

    def case(name: str, make_mask: Callable[[], Mask], rule: Rule, plain: dict[str, bool] | None = None) -> Case:
        return Case(name + suffix, make_mask, rule, *shape, plain=plain, is_long=is_long)

    ids = torch.arange(size.length) // each
    uneven = _uneven_ids(size.length)
    first = size.length // 4
    return [
        case("causal", causal, lambda b, h, q, k: k <= q, {"is_causal": True}),
        case("window", lambda: causal() & window(back), lambda b, h, q, k: (k <= q) & (q - k < back)),
        case("documents", lambda: causal() & documents(ids), _same_document(ids.to(device))),
        case("uneven documents", lambda: causal() & documents(uneven), _same_document(uneven.to(device))),
        case("prefix-LM", lambda: causal() | prefix(first), lambda b, h, q, k: (k <= q) | (k < first)),
        case(
            "sinks + window",
            lambda: causal() & (window(back) | prefix(4)),
            lambda b, h, q, k: (k <= q) & ((q - k < back) | (k < 4)),
        ),
    ]


def _batched(size: Size, device: str) -> list[Case]:
    """Items that differ: padded on either side, and packed each in its own way."""
    length, batch = max(8, size.length // 2), len(RAGGED) * size.batch
    shape = (batch, size.heads, length, length, size.dim)
    lengths = torch.tensor([share * length // 8 for share in RAGGED] * size.batch)
    position = torch.arange(length)
    right, left = position < lengths[:, None], position >= length - lengths[:, None]
    ids = torch.stack([_uneven_ids(length, start=item) for item in range(batch)])

    def case(name: str, mask: Callable[[], Mask], rule: Rule, real: Tensor | None = None) -> Case:
        return Case(name, mask, rule, *shape, read=real, differs_by_item=True)

    # With padding on the right no real query can hear it anyway, so is_causal alone serves its reader.
    padded_right = case("padding right", lambda: causal() & padding(lengths), _causal_and_real(right.to(device)), right)
    return [
        replace(padded_right, plain={"is_causal": True}),
        case("padding left", lambda: causal() & padding(left), _causal_and_real(left.to(device)), left),
        case("packed batch", lambda: causal() & documents(ids), _same_document_of_item(ids.to(device))),
    ]


def _decoding(size: Size, device: str) -> list[Case]:
    """One new token over a cache."""
    length, back, batch = size.length, min(128, max(2, size.length // 4)), 2 * len(RAGGED) * size.batch
    shape = (1, length, size.dim)
    lengths = torch.tensor([share * length // 8 for share in RAGGED] * (2 * size.batch))
    real = torch.arange(length) >= length - lengths[:, None]
    on_device = real.to(device)
    return [
        Case("decode", causal, lambda b, h, q, k: k >= 0, size.batch, size.heads, *shape, plain={}, trains=False),
        Case(
            "decode window",
            lambda: causal() & window(back),
            lambda b, h, q, k: k >= length - back,
            size.batch,
            size.heads,
            *shape,
            trains=False,
        ),
        Case(
            "decode ragged",
            lambda: causal() & padding(real),
            lambda b, h, q, k: on_device[b, k],
            batch,
            size.heads,
            *shape,
            differs_by_item=True,
            trains=False,
        ),
    ]


def _small(device: str) -> list[Case]:
    """Sizes where calls cost more than numbers: what "auto" takes here is a rule of its own."""
    found = []
    for batch, heads, length, dim in ((12, 4, 64, 32), (8, 4, 128, 32), (8, 6, 256, 64), (4, 8, 512, 64)):
        size = Size(batch, heads, length, dim)
        by_name = {case.name: case for case in _square(size, device, suffix=f" L{length}")}
        found += [by_name[f"{name} L{length}"] for name in ("causal", "window", "documents")]
        if length == 256:
            packed = next(case for case in _batched(Size(2, heads, 2 * length, dim), device) if "packed" in case.name)
            found.append(replace(packed, name="packed batch L256"))
    return found


def _long(device: str) -> list[Case]:
    chosen = ("causal L8192", "window L8192", "documents L8192")
    everything = _square(Size(1, 4, 8192, 64), device, suffix=" L8192", is_long=True)
    return [case for case in everything if case.name in chosen]


def _uneven_ids(length: int, start: int = 0) -> Tensor:
    """A document id for each position; `start` turns the list of lengths."""
    shares = UNEVEN[start % len(UNEVEN) :] + UNEVEN[: start % len(UNEVEN)]
    edges = torch.tensor([length * share // sum(UNEVEN) for share in accumulate(shares)])
    return torch.bucketize(torch.arange(length), edges, right=True)


def _same_document(ids: Tensor) -> Rule:
    return lambda b, h, q, k: (k <= q) & (ids[q] == ids[k])


def _same_document_of_item(ids: Tensor) -> Rule:
    return lambda b, h, q, k: (k <= q) & (ids[b, q] == ids[b, k])


def _causal_and_real(real: Tensor) -> Rule:
    return lambda b, h, q, k: (k <= q) & real[b, k]
