"""The engines: each computes a call exactly or says why it cannot. A new engine joins with one line here.

>>> from rearview.attention.engines import ENGINES
>>> [name for name, engine in ENGINES.items() if "GPU" in engine.where]
['hopper', 'decode', 'flex']

An engine is a module that has what `Engine` lists. All that is said about an engine is said by the engine. Which one
is the fastest on a GPU is in `gpu_choice`.

An engine may also have a function `prepared(call)`, for calls that are repeated (see `attention/prepared.py`).
"""

from typing import Protocol

from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines import blocks, decode, flex, hopper, native, reference, sdpa


class Engine(Protocol):
    """What a module must have to be an engine."""

    name: str
    """The name for `engine=`."""
    summary: str
    """What it is, in a few words."""
    where: str
    """The devices that it runs on, in a few words."""

    def refusals(self, call: Call) -> list[str]:
        """The reasons why it cannot compute this call exactly, one sentence each; an empty list where it can."""
        ...

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """The output [batch, heads, q_len, dim], and the log-sum-exp where `call.needs_lse`; sinks are counted in."""
        ...

    def reason_to_take(self, call: Call) -> str | None:
        """Why `engine="auto"` should take it for this call; None where it should ask the next engine.

        On a GPU, `gpu_choice` is asked before the engines are.
        """
        ...

    def reason_not_taken(self, call: Call, taken: str) -> str:
        """Why another engine was taken for this call, which this one could compute too."""
        ...

    def memory(self, call: Call) -> int:
        """An estimate of the bytes beyond inputs and output that grow with the length."""
        ...


# In the order in which `engine="auto"` asks them on a CPU, and on a GPU after those of `gpu_choice`.
ENGINES: dict[str, Engine] = {
    native.name: native,
    hopper.name: hopper,
    decode.name: decode,
    flex.name: flex,
    sdpa.name: sdpa,
    blocks.name: blocks,
    reference.name: reference,
}
"""The engines by name."""

__all__ = ["ENGINES", "Engine"]
