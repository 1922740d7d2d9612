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
# The number of users of each replaced slot, who share one replacement.
_users: dict[tuple[int, str], int] = {}
_lock = threading.Lock()


class _Replacement:
    """The function in a replaced slot, and the original entry of the slot."""

    def __init__(self, function: Function, original: Any):
        self.function, self.original = function, original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@contextmanager
def replaced(slots: Iterable[FunctionSlot], make: Callable[[Function, str], Function]) -> Iterator[None]:
    """Replace each slot by `make(function, implementation)`; the last user to leave restores the original."""
    with ExitStack() as stack:
        for slot in {(id(slot.names), slot.key): slot for slot in slots}.values():
            _replace(slot, make)
            stack.callback(_restore, slot)
        yield


def _replace(slot: FunctionSlot, make: Callable[[Function, str], Function]) -> None:
    place = (id(slot.names), slot.key)
    with _lock:
        if not _users.get(place):
            original = slot.names.get(slot.key, _NOTHING)
            slot.names[slot.key] = _Replacement(make(slot.function, slot.implementation), original)
        _users[place] = _users.get(place, 0) + 1


def _restore(slot: FunctionSlot) -> None:
    place = (id(slot.names), slot.key)
    with _lock:
        _users[place] -= 1
        if _users[place]:
            return
        del _users[place]
        now = slot.names.get(slot.key)
        # Other code may have assigned the slot in the meantime; its function stays.
        if isinstance(now, _Replacement):
            if now.original is _NOTHING:
                del slot.names[slot.key]
            else:
                slot.names[slot.key] = now.original
