"""The number of threads of a training: as many as torch uses, and one for a small model.

>>> from rearview.training import RunConfig
>>> threads_for(RunConfig(context=16, layers=1, width=32))
1

Threads wait for each other at every operation. Operations on tiny tensors take less time than that on a busy machine.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

from rearview.masks.frame import whole_number

# Up to this many multiplications for the forward pass of a step one thread is as fast as two.
SMALL = 1 << 26

Event = TypeVar("Event")


class Sizes(Protocol):
    """The settings that the number of threads depends on."""

    @property
    def threads(self) -> int | None: ...
    @property
    def layers(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def context(self) -> int: ...


def threads_for(sizes: Sizes) -> int:
    """The number that was given, which is then set for the whole process; otherwise by the work of a step."""
    if sizes.threads is not None:
        torch.set_num_threads(whole_number(sizes.threads, "threads", at_least=1))
        return sizes.threads
    # The weights of a layer are 12 width^2, and each is multiplied once per position.
    multiplications = 12 * sizes.layers * sizes.width**2 * sizes.batch * sizes.context
    return 1 if multiplications <= SMALL else torch.get_num_threads()


@contextmanager
def running_on(threads: int | None) -> Iterator[None]:
    """Run on this number of threads (None: no change). The number is restored on exit."""
    before = torch.get_num_threads()
    if threads is not None and threads != before:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def events_on(threads: int | None, events: Generator[Event, None, None]) -> Generator[Event, None, None]:
    """The events, which are made on this number of threads."""
    with running_on(threads):
        yield from events
