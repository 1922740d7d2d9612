"""The engines: each does the mask exactly or says why not. A new one joins by one line here.

An engine is a module with `name`, `summary`, `refusals(request) -> reasons why it cannot` and
`run(request) -> (out, lse or None)`.
"""

from typing import Protocol

from torch import Tensor

from rearview.attention.engines import blocks, flex, native, reference, sdpa
from rearview.attention.request import Request


class Engine(Protocol):
    name: str
    summary: str

    def refusals(self, request: Request) -> list[str]: ...

    def run(self, request: Request) -> tuple[Tensor, Tensor | None]: ...


ENGINES: dict[str, Engine] = {
    reference.name: reference,
    sdpa.name: sdpa,
    blocks.name: blocks,
    native.name: native,
    flex.name: flex,
}

__all__ = ["ENGINES", "Engine"]
