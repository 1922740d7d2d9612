"""The number of threads of an audit: one for a small model, whose tensors are too small to be shared among several.

>>> import torch
>>> from rearview.auditing.model.threads import threads_for
>>> before = torch.get_num_threads()
>>> with threads_for(torch.nn.Linear(4, 4), positions=32):
...     torch.get_num_threads()
1
>>> torch.get_num_threads() == before
True

Threads wait for each other at every op. On a busy machine (`pytest -n auto`, a shared runner) this made the audit of a
tiny model up to 70 times slower than with one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

# Up to this many multiplications for a forward pass one thread is at least as fast.
SMALL = 1 << 30


@contextmanager
def threads_for(model: object, *, positions: int) -> Iterator[None]:
    """One thread where a forward pass over that many positions is small; the number is restored on exit."""
    parameters = sum(parameter.numel() for parameter in model.parameters()) if isinstance(model, nn.Module) else 0
    before = torch.get_num_threads()
    if before > 1 and max(1, parameters) * positions <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
