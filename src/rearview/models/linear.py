"""A linear layer that uses all threads even for a few rows, as in a step of generation.

    >>> import torch
    >>> layer, x = Linear(512, 1024), torch.randn(1, 1, 512)
    >>> with torch.no_grad():
    ...     few = layer(x)
    >>> torch.allclose(few, layer(x), atol=1e-5)
    True

A product with a few rows is bound by the time to read the weight, and the BLAS of torch reads it with one thread. Here
the weight is split into pieces: a batch of products, which runs on all threads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rearview.attention.engines.native import rows

# With more rows than this, the usual product uses all threads itself.
FEW_ROWS = 4
# A smaller weight is read before another thread has started.
LARGE_WEIGHT = 1 << 16


class Linear(nn.Linear):
    """`nn.Linear`, with the same results up to rounding."""

    # Set by `GPT.batch_invariant`.
    batch_invariant = False

    def forward(self, input: Tensor) -> Tensor:
        if self.batch_invariant:
            return rows.linear(input, self.weight, self.bias)
        pieces = self._pieces(input)
        if pieces == 1:
            return F.linear(input, self.weight, self.bias)
        flat = input.reshape(-1, self.in_features)
        flat = flat.expand(pieces, *flat.shape)
        cut = self.weight.view(pieces, -1, self.in_features).transpose(1, 2)  # [pieces, in, out / pieces]
        if self.bias is None:
            out = torch.bmm(flat, cut)
        else:
            out = torch.baddbmm(self.bias.view(pieces, 1, -1), flat, cut)
        return out.transpose(0, 1).reshape(*input.shape[:-1], self.out_features)

    def _pieces(self, x: Tensor) -> int:
        """The number of pieces: one per thread where that is faster, otherwise 1."""
        if torch.is_grad_enabled() or not 0 < x.numel() <= FEW_ROWS * self.in_features:
            return 1
        weight = self.weight
        plain = x.dtype == weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.is_contiguous()
        if not plain or weight.numel() < LARGE_WEIGHT or torch.compiler.is_compiling():
            return 1
        if torch.is_autocast_enabled("cpu"):
            return 1
        threads = torch.get_num_threads()
        return next(count for count in range(threads, 0, -1) if self.out_features % count == 0)
