"""The tiles that a program visits, as runs: those that every query hears in full, and those that need the mask.

    >>> from rearview import causal
    >>> from rearview.masks import Frame
    >>> visits = of_query_blocks(causal(), Frame.of(64), torch.device("cpu"), queries=16, keys=16)
    >>> visits.plain.rows()    # the keys that every query of the block hears, as tiles of 16
    [[], [(0, 1)], [(0, 2)], [(0, 3)]]
    >>> visits.compared.rows()
    [[(0, 1)], [(1, 2)], [(2, 3)], [(3, 4)]]

Tiles that no query hears are in no run, so they cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.attention.stats.bins import first_position
from rearview.masks import Frame, Mask, Spans
from rearview.masks.tiles import FULL, SKIPPED, Tiles


@dataclass(frozen=True, eq=False)
class Visits:
    """For each block of one side, runs of tiles of the other: [batch or 1, heads or 1, block, run]."""

    plain: Spans
    compared: Spans


def of_query_blocks(mask: Mask, frame: Frame, device: torch.device, *, queries: int, keys: int) -> Visits:
    """For each block of queries, its tiles of keys. Plain tiles are heard in full and hold no padding."""
    kind = _kinds(mask, frame, device, queries, keys)
    return _visits(kind == FULL, kind)


def of_key_blocks(mask: Mask, frame: Frame, device: torch.device, *, queries: int, keys: int, bin_width: int) -> Visits:
    """For each block of keys, its tiles of queries. Plain tiles lie in one bin of distance and one row of the map.

    >>> from rearview import full
    >>> of_key_blocks(full(), Frame.of(128), torch.device("cpu"), queries=16, keys=16, bin_width=0).plain.rows()[:2]
    [[(3, 4), (5, 8)], [(0, 1), (4, 5), (6, 8)]]
    """
    kind = _kinds(mask, frame, device, queries, keys)
    first_query = torch.arange(0, frame.q_len, queries, device=device).unsqueeze(-1)
    last_query = (first_query + queries).clamp(max=frame.q_len) - 1
    first_key = torch.arange(0, frame.k_len, keys, device=device)
    nearest, furthest = first_query - (first_key + keys - 1), last_query - first_key
    plain = (kind == FULL) & (_distance_bin(nearest + frame.q_start) == _distance_bin(furthest + frame.q_start))
    if bin_width:
        shift = frame.q_start - first_position(frame)
        plain &= (first_query + shift) // bin_width == (last_query + shift) // bin_width
    return _visits(plain.transpose(-1, -2), kind.transpose(-1, -2))


def _distance_bin(distance: Tensor) -> Tensor:
    """0 for the future, 1 for the position itself, 2 for 1, 3 for 2 and 3, 4 for 4 to 7, ..."""
    return torch.where(distance < 0, 0, torch.frexp(distance.double()).exponent + 1)


def _kinds(mask: Mask, frame: Frame, device: torch.device, queries: int, keys: int) -> Tensor:
    kind = Tiles.of(mask, frame, block=(queries, keys), device=device).kind
    if not frame.k_len % keys:
        return kind
    # The keys end within a tile, where comparing with the ranges excludes the padding.
    return torch.cat([kind[..., :-1], kind[..., -1:].clamp(max=FULL - 1)], dim=-1)


def _visits(plain: Tensor, kind: Tensor) -> Visits:
    return Visits(Spans.from_bool(plain), Spans.from_bool((kind != SKIPPED) & ~plain))
