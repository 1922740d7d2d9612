"""Seeing every attention of a transformers model as it happens, while the model's own kernel computes it.

    >>> import torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2)).eval()
    >>> modules = [module for _, module in attention_modules(model)]
    >>> with watching(modules, lambda module, happened: print(happened.call.mask, happened.at)):
    ...     logits = model(torch.tensor([[1, 2, 3]])).logits
    causal() 0
    causal() 0

While a module is watched, the functions that it may be answered with (`seams`) are functions which call those, return
what they return, and show the call. The functions that make masks are watched as well, as they know where queries and
keys stand (`made`).
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from rearview.attention.outside import outside_graphs
from rearview.errors import Unsupported
from rearview.integrations.transformers import made
from rearview.integrations.transformers.call import Call
from rearview.integrations.transformers.seams import Function, asks, entries_of, replaced, seams_of

# What a module calls the sequence that it hears, where that is not its own.
OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
# Module, query, key, value and mask: what every attention function takes first.
BEFORE_OPTIONS = 5


@dataclass(frozen=True, eq=False)
class Happened:
    """One attention.

    Args:
        call: what was attended, over the keys that are there.
        is_cross: are the keys of another sequence?
        at: the position of the first query in its sequence; None where nobody told, and the keys tell it.
        dropped: keys of the sequence that a sliding cache has let go, all before those that are there.
    """

    call: Call
    is_cross: bool
    at: int | None
    dropped: int


See = Callable[[nn.Module, Happened], None]


def attention_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that go through the attention interface, by name, in the order of the model."""
    return [(name, module) for name, module in model.named_modules() if asks(type(module))]


def is_watched(model: nn.Module) -> bool:
    """Is a part of it being watched now?"""
    return any(module in _watchers for module in model.modules())


@contextmanager
def watching(modules: Iterable[nn.Module], see: See) -> Iterator[None]:
    """Show each attention of these modules to `see`, after it was computed.

    `Unsupported` at once where the implementation cannot be read, and at the end where a module ran without asking the
    interface, or in two threads at once.
    """
    modules = list(modules)
    for module in modules:
        _check(module)
    running: set[int] = set()
    calls = {module: _Calls(module, see, running) for module in modules}
    with ExitStack() as stack:
        stack.callback(lambda: _watchers or made.forget())
        for module, own in calls.items():
            stack.enter_context(_hooked(module, own))
            _watchers[module] = own
            stack.callback(_watchers.pop, module, None)
        # All of them, as the model may be given another implementation meanwhile.
        stack.enter_context(replaced((seam for kind in set(map(type, modules)) for seam in seams_of(kind)), _attention))
        stack.enter_context(replaced(entries_of(_masks()), _mask))
        yield
    if blind := sorted({type(module).__name__ for module, own in calls.items() if own.is_blind}):
        reasons = [f"{name} ran without asking the attention interface" for name in blind]
        raise Unsupported("This model cannot be watched", reasons)
    if any(own.is_torn for own in calls.values()):
        raise Unsupported(
            "What was seen cannot be told apart",
            ["the model ran in several threads at once, and its layers saw now this run, now that"],
            advice="Watch one run at a time, or give each thread a model of its own.",
        )


def _check(module: nn.Module) -> None:
    name = _name(module)
    reasons = []
    if name is None:
        reasons.append("its configuration names no attention implementation")
    elif "flash" in name or "paged" in name:
        reasons.append(f"{name!r} gets a part of the mask only; the rest lies in arguments of its own")
    if reasons:
        advice = 'Use model.set_attn_implementation("sdpa") for the time of watching.'
        raise Unsupported(f"{type(module).__name__} cannot be watched", reasons, advice=advice)


def _name(module: nn.Module) -> Any:
    return getattr(getattr(module, "config", None), "_attn_implementation", None)


class _Calls:
    """What is known of a module while it runs; `running` are the threads in which one of the watched modules does."""

    def __init__(self, module: nn.Module, see: See, running: set[int]):
        self.see, self.is_blind, self.is_torn = see, False, False
        self._parameters = list(inspect.signature(type(module).forward).parameters)[1:]
        self._running = running
        # Of the call in this thread.
        self.now = threading.local()

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        self.now.seen, self.now.is_cross = False, any(given.get(name) is not None for name in OTHER_SEQUENCE)
        self._running.add(threading.get_ident())
        self.is_torn |= len(self._running) > 1

    def after(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        self._running.discard(threading.get_ident())
        # A call that failed returns nothing.
        self.is_blind |= out is not None and not self.now.seen


class _Hook:
    """A hook of a module. In a copy of the module, or in a file, it is one that does nothing."""

    def __init__(self, function: Function):
        self.function = outside_graphs(function)

    def __call__(self, *args: Any) -> None:
        self.function(*args)

    def __reduce__(self) -> Any:
        # It takes anything, and whoever opens the file has it.
        return getattr, (nullcontext(), "__exit__")


@contextmanager
def _hooked(module: nn.Module, own: _Calls) -> Iterator[None]:
    handles = [
        module.register_forward_pre_hook(_Hook(own.before), with_kwargs=True),
        module.register_forward_hook(_Hook(own.after), always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# Who watches which module.
_watchers: weakref.WeakKeyDictionary[nn.Module, _Calls] = weakref.WeakKeyDictionary()


def _attention(original: Function, name: str) -> Function:
    show = outside_graphs(_show)

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **options: Any
    ) -> Any:
        out = original(module, query, key, value, attention_mask, *args, **options)
        show(module, name, query, key, value, attention_mask, _named(original, args, behind=BEFORE_OPTIONS) | options)
        return out

    return attention


def _named(function: Callable[..., Any], args: tuple[Any, ...], *, behind: int = 0) -> dict[str, Any]:
    """Arguments that a model gives by their place, behind so many others."""
    names = list(inspect.signature(function).parameters)[behind:] if args else []
    return dict(zip(names, args, strict=False))


def _show(
    module: nn.Module,
    implementation: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    options: dict[str, Any],
) -> None:
    own = _watchers.get(module)
    if own is None:
        return
    own.now.seen = True
    place, structured = (None, None) if own.now.is_cross else made.place_of(module, mask, query, key)
    if structured is not None:
        mask = structured
    if place is not None and getattr(module, "is_causal", True):
        # What a static cache has room for and has not been filled yet.
        filled = place.frame.q_end
        key, value = key[:, :, :filled], value[:, :, :filled]
        mask = mask[..., :filled] if isinstance(mask, Tensor) else mask
        bias = options.get("position_bias")
        if isinstance(bias, Tensor):
            options = {**options, "position_bias": bias[..., :filled]}
    call = Call.of(module, query, key, value, mask, implementation=implementation, **options)
    if place is None:
        own.see(module, Happened(call, own.now.is_cross, None, 0))
        return
    # Counted from the first key that is there: a mask from SDPA's None counts from 0 for one query over many keys.
    if call.q_start is None or call.q_start != place.frame.q_start:
        natural = call.key.shape[2] - call.query.shape[2] == place.frame.q_start
        call = call if natural and call.q_start is None else replace(call, q_start=place.frame.q_start)
    own.see(module, Happened(call, own.now.is_cross, place.q_offset, place.kv_offset))


def _mask(original: Function, name: str) -> Function:
    remember = outside_graphs(made.remember)

    def making(*args: Any, **options: Any) -> Any:
        mask = original(*args, **options)
        remember(mask, _named(original, args) | options)
        return mask

    return making


def _masks() -> Any:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    return ALL_MASK_ATTENTION_FUNCTIONS
