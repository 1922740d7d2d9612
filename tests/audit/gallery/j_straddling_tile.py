"""A tile across the edge of a chunk.

fla-org/flash-linear-attention#1104 (J). Keys that begin before a chunk of queries were taken to be past, all of the
tile; at some sizes a tile reaches into the chunk.
"""

import torch

from rearview.audit import Report, audit
from tests.audit.gallery.parts import Heads, Tiny, tokens

PLACE = "mix"


class Leaks(Heads):
    def attend(self, q, k, v, chunk=8, tile=6):
        out = torch.zeros_like(v)
        for start in range(0, q.shape[1], chunk):
            rows = torch.arange(start, start + chunk)
            for left in range(0, start + chunk, tile):
                keys = torch.arange(left, min(left + tile, k.shape[1]))
                weights = q[:, rows] @ k[:, keys].transpose(1, 2)  # here
                if left >= start:
                    weights = weights * (keys <= rows[:, None])
                out[:, rows] += weights @ v[:, keys]
        return out


class Fixed(Heads):
    def attend(self, q, k, v, chunk=8, tile=6):
        out = torch.zeros_like(v)
        for start in range(0, q.shape[1], chunk):
            rows = torch.arange(start, start + chunk)
            for left in range(0, start + chunk, tile):
                keys = torch.arange(left, min(left + tile, k.shape[1]))
                weights = q[:, rows] @ k[:, keys].transpose(1, 2)
                out[:, rows] += (weights * (keys <= rows[:, None])) @ v[:, keys]
        return out


def leaks() -> Report:
    return audit(Tiny(Leaks()), tokens)


def fixed() -> Report:
    return audit(Tiny(Fixed()), tokens)
