"""Where the attention modules of transformers find the function that attends, and putting another there for a while.

    >>> from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
    >>> sorted({seam.implementation for seam in seams_of(GPT2Attention)} & {"eager", "sdpa"})
    ['eager', 'sdpa']

A module asks the attention interface for the function that its implementation is called by; eager attention is a
function of the model's own file. The name of the implementation stays what it is: models decide by it, and a name that
the mask interface does not know gets no mask at all, without a word.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any, NamedTuple

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
# Some files have several: "vision_eager_attention_forward".
EAGER = "eager_attention_forward"

Function = Callable[..., Any]


class Seam(NamedTuple):
    """`names[key]` is where the function of an implementation is found; it is `function` now."""

    names: dict[str, Any]
    key: str
    function: Function
    implementation: str


def asks(kind: type) -> bool:
    """Does the `forward` of a class ask the attention interface?"""
    return _asking(kind) is not None


def seams_of(kind: type) -> list[Seam]:
    """Where a class that asks finds its attention, whichever its implementation is."""
    found = _asking(kind)
    if found is None:
        return []
    scope, code = found
    own = [name for name in code.co_names if name.endswith(EAGER) and name in scope]
    return [*entries_of(scope[INTERFACE]), *(Seam(scope, name, scope[name], "eager") for name in own)]


def entries_of(interface: Any) -> list[Seam]:
    """The functions of an interface of transformers. An entry of the instance hides that of the class."""
    return [Seam(interface._local_mapping, name, interface[name], name) for name in interface]


def _asking(kind: type) -> tuple[dict[str, Any], CodeType] | None:
    """The globals and the code of the `forward` that asks."""
    for each in kind.__mro__:
        if "forward" not in each.__dict__:
            continue
        function = inspect.unwrap(each.__dict__["forward"])
        code = getattr(function, "__code__", None)
        if code is None:
            return None
        if INTERFACE in code.co_names:
            return function.__globals__, code
        if "super" not in code.co_names:
            return None
    return None


_NOTHING = object()
# How many watch a seam. One replacement serves all.
_users: dict[tuple[int, str], int] = {}
_turn = threading.Lock()


class _Replacement:
    """The function that was made, and what stood in its place."""

    def __init__(self, function: Function, instead_of: Any):
        self.function, self.instead_of = function, instead_of

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@contextmanager
def replaced(seams: Iterable[Seam], make: Callable[[Function, str], Function]) -> Iterator[None]:
    """At each seam stands `make(function, implementation)`, until the last who replaced it leaves."""
    with ExitStack() as stack:
        for seam in {(id(seam.names), seam.key): seam for seam in seams}.values():
            _put(seam, make)
            stack.callback(_put_back, seam)
        yield


def _put(seam: Seam, make: Callable[[Function, str], Function]) -> None:
    place = (id(seam.names), seam.key)
    with _turn:
        if not _users.get(place):
            before = seam.names.get(seam.key, _NOTHING)
            seam.names[seam.key] = _Replacement(make(seam.function, seam.implementation), before)
        _users[place] = _users.get(place, 0) + 1


def _put_back(seam: Seam) -> None:
    place = (id(seam.names), seam.key)
    with _turn:
        _users[place] -= 1
        if _users[place]:
            return
        del _users[place]
        now = seam.names.get(seam.key)
        # Somebody else may have put his own there meanwhile.
        if isinstance(now, _Replacement):
            if now.instead_of is _NOTHING:
                del seam.names[seam.key]
            else:
                seam.names[seam.key] = now.instead_of
