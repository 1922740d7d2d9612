"""Where the attention modules of transformers look up their attention function, and temporary replacements there.

    >>> from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
    >>> sorted({slot.implementation for slot in slots_of(GPT2Attention)} & {"eager", "sdpa"})
    ['eager', 'sdpa']

A module looks up the function of its implementation in the attention interface; eager attention is a function in the
file of the model. The name of the implementation is not changed: models branch on it, and a name that the mask
interface does not know silently gets no mask.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any, NamedTuple

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
# Some files have several such functions, for example "vision_eager_attention_forward".
EAGER = "eager_attention_forward"

Function = Callable[..., Any]
# (function, implementation) -> the function that takes its place
MakeFunction = Callable[[Function, str], Function]


class FunctionSlot(NamedTuple):
    """An entry `names[key]` from which the function of an implementation is read; it holds `function`."""

    names: dict[str, Any]
    key: str
    function: Function
    implementation: str


def uses_interface(kind: type) -> bool:
    """Whether the `forward` of a class looks up its function in the attention interface."""
    return _forward_with_interface(kind) is not None


def slots_of(kind: type) -> list[FunctionSlot]:
    """The slots from which a class reads its attention function, for all implementations."""
    found = _forward_with_interface(kind)
    if found is None:
        return []
    scope, code = found
    own = [name for name in code.co_names if name.endswith(EAGER) and name in scope]
    return [*entries_of(scope[INTERFACE]), *(FunctionSlot(scope, name, scope[name], "eager") for name in own)]


def entries_of(interface: Any) -> list[FunctionSlot]:
    """The slots of an interface of transformers. An entry of the instance takes precedence over that of the class."""
    return [FunctionSlot(interface._local_mapping, name, interface[name], name) for name in interface]


def _forward_with_interface(kind: type) -> tuple[dict[str, Any], CodeType] | None:
    """The globals and the code of the `forward` that uses the interface, or None."""
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
# The number of users of each replacement, by the slot and the function that makes it.
_users: dict[tuple[int, str, MakeFunction], int] = {}
_lock = threading.Lock()


class Replacement:
    """The function in a replaced slot, who made it, and what the slot held before."""

    def __init__(self, make: MakeFunction, slot: FunctionSlot):
        self.make, self.original = make, slot.names.get(slot.key, _NOTHING)
        self.function = make(slot.function if self.original is _NOTHING else self.original, slot.implementation)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@contextmanager
def replaced(slots: Iterable[FunctionSlot], make: MakeFunction) -> Iterator[None]:
    """Replace each slot by `make(function, implementation)`.

    Users with the same `make` share one replacement, which the last of them removes. Those with another one are nested.
    """
    with ExitStack() as stack:
        for slot in {(id(slot.names), slot.key): slot for slot in slots}.values():
            _replace(slot, make)
            stack.callback(_restore, slot, make)
        yield


def _replace(slot: FunctionSlot, make: MakeFunction) -> None:
    user = (id(slot.names), slot.key, make)
    with _lock:
        if not _users.get(user):
            slot.names[slot.key] = Replacement(make, slot)
        _users[user] = _users.get(user, 0) + 1


def _restore(slot: FunctionSlot, make: MakeFunction) -> None:
    user = (id(slot.names), slot.key, make)
    with _lock:
        _users[user] -= 1
        if _users[user]:
            return
        del _users[user]
        outer, now = None, slot.names.get(slot.key)
        while isinstance(now, Replacement) and now.make is not make:
            outer, now = now, now.original
        if not isinstance(now, Replacement):
            # Other code has assigned the slot in the meantime; its function stays.
            return
        if outer is not None:
            # The outer function still calls the inner one, which does nothing for modules without a user.
            outer.original = now.original
        elif now.original is _NOTHING:
            del slot.names[slot.key]
        else:
            slot.names[slot.key] = now.original
