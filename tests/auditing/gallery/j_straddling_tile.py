"""A tile across the edge of a chunk.

fla-org/flash-linear-attention#1104 (J). A tile of keys that begins before a chunk of queries was treated as past in
full. At some sizes such a tile reaches into the chunk.
"""

import torch

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, tokens

PLACE = "mix"


class Leaks(Heads):
    def attend(self, q, k, v, chunk=8, tile=6):
        out = torch.zeros_like(v)
        for start in range(0, q.shape[1], chunk):
            rows = torch.arange(start, start + chunk)
            for left in range(0, start + chunk, tile):
                keys = torch.arange(left, min(left + tile, k.shape[1]))
                weights = q[:, rows] @ k[:, keys].transpose(1, 2)
                if left >= start:
                    weights = weights * (keys <= rows[:, None])
                out[:, rows] += weights @ v[:, keys]  # here
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
