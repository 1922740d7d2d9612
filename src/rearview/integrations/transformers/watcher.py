"""Watching a transformers model: every attention call is reported, and the model's own kernel computes it.

    >>> import torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2)).eval()
    >>> modules = [module for _, module in attention_modules(model)]
    >>> with watching(modules, lambda one: print(one.call.mask, one.position)):
    ...     logits = model(torch.tensor([[1, 2, 3]])).logits
    causal() 0
    causal() 0

While a module is watched, each attention function that it may call (`function_slots`) is replaced by one that calls the
original, returns its result, and reports the call. The functions that make masks are watched as well, as they know the
positions of queries and keys (`recent_masks`).
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from rearview.attention.graph_break import outside_graphs
from rearview.attention.layer_call import LayerCall
from rearview.attention.mask_edits import edited, edits_of
from rearview.errors import Unsupported
from rearview.integrations.transformers import recent_masks
from rearview.integrations.transformers.call import call_of
from rearview.integrations.transformers.edited_attention import edited_attention
from rearview.integrations.transformers.function_slots import (
    Function,
    Replacement,
    entries_of,
    replaced,
    slots_of,
    uses_interface,
)

# The arguments by which a module receives another sequence to attend to.
OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
# The number of arguments that every attention function takes first: module, query, key, value and mask.
BEFORE_OPTIONS = 5


See = Callable[[LayerCall], None]


def attention_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that use the attention interface, with their names, in the order of the model."""
    return [(name, module) for name, module in model.named_modules() if uses_interface(type(module))]


def is_watched(model: nn.Module) -> bool:
    """Whether a part of the model is being watched now."""
    return any(module in _watchers for module in model.modules())


@contextmanager
def watching(modules: Iterable[nn.Module], see: See) -> Iterator[None]:
    """Report each attention call of these modules to `see`, after it was computed.

    Raises `Unsupported` immediately if the implementation cannot be read, and at the end if a module ran without using
    the attention interface, or in two threads at once.
    """
    modules = list(modules)
    for module in modules:
        _check(module)
    running: set[int] = set()
    calls = {module: _Calls(module, see, running) for module in modules}
    with ExitStack() as stack:
        stack.callback(lambda: _watchers or recent_masks.forget())
        for module, own in calls.items():
            stack.enter_context(_hooked(module, own))
            _watchers[module] = own
            stack.callback(_watchers.pop, module, None)
        # All implementations, because the model may be switched to another one while it is watched.
        stack.enter_context(replaced((slot for kind in set(map(type, modules)) for slot in slots_of(kind)), _attention))
        stack.enter_context(replaced(entries_of(mask_interface()), remembering))
        yield
    if unseen := sorted({type(module).__name__ for module, own in calls.items() if own.ran_unseen}):
        reasons = [f"{name} ran without using the attention interface" for name in unseen]
        raise Unsupported("This model cannot be watched", reasons)
    if any(own.ran_concurrently for own in calls.values()):
        raise Unsupported(
            "The runs cannot be told apart",
            ["the model ran in several threads at once, and its layers saw calls of all of them"],
            advice="Watch one run at a time, or use a separate model in each thread.",
        )


def _check(module: nn.Module) -> None:
    name = _name(module)
    reasons = []
    if name is None:
        reasons.append("its configuration names no attention implementation")
    elif "flash" in name or "paged" in name:
        reasons.append(f"{name!r} receives only a part of the mask; the rest is in arguments of its own")
    if reasons:
        advice = 'Use model.set_attn_implementation("sdpa") while the model is watched.'
        raise Unsupported(f"{type(module).__name__} cannot be watched", reasons, advice=advice)


def _name(module: nn.Module) -> Any:
    return getattr(getattr(module, "config", None), "_attn_implementation", None)


class _Calls:
    """The state of a module while it runs; `running` are the threads in which a watched module is running."""

    def __init__(self, module: nn.Module, see: See, running: set[int]):
        self.see, self.ran_unseen, self.ran_concurrently = see, False, False
        self._parameters = list(inspect.signature(type(module).forward).parameters)[1:]
        self._running = running
        # The call in this thread.
        self.now = threading.local()

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        self.now.seen, self.now.is_cross = False, any(given.get(name) is not None for name in OTHER_SEQUENCE)
        self._running.add(threading.get_ident())
        self.ran_concurrently |= len(self._running) > 1

    def after(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        self._running.discard(threading.get_ident())
        # A call that failed returns None.
        self.ran_unseen |= out is not None and not self.now.seen


class _Hook:
    """A hook of a module. In a copy of the module, or in a file, it becomes a hook that does nothing."""

    def __init__(self, function: Function):
        self.function = outside_graphs(function)

    def __call__(self, *args: Any) -> None:
        self.function(*args)

    def __reduce__(self) -> Any:
        # A function of the standard library that takes any arguments, so a file with it can be opened anywhere.
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


# The watcher of each module.
_watchers: weakref.WeakKeyDictionary[nn.Module, _Calls] = weakref.WeakKeyDictionary()


def _attention(original: Function, name: str) -> Function:
    report = outside_graphs(_report)

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **options: Any
    ) -> Any:
        named = positional_options(original, args) | options
        if edits_of(module):
            out: Any = edited_attention(module, name, query, key, value, attention_mask, named)
        else:
            out = original(module, query, key, value, attention_mask, *args, **options)
        report(module, name, query, key, value, attention_mask, named)
        return out

    return attention


def computes_edits(function: Function) -> bool:
    """Whether this is the function of a watched module, which computes the edits of masks itself."""
    return isinstance(function, Replacement) and function.make is _attention


def positional_options(function: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """The options of an attention function that were given by position, by name."""
    return _named(function, args, skip=BEFORE_OPTIONS)


def _named(function: Callable[..., Any], args: tuple[Any, ...], *, skip: int = 0) -> dict[str, Any]:
    """Positional arguments by name, after the first `skip` parameters."""
    names = list(inspect.signature(function).parameters)[skip:] if args else []
    return dict(zip(names, args, strict=False))


def _report(
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
    is_cross = own.now.is_cross
    place, structured = (None, None) if is_cross else recent_masks.placement_of(module, mask, query, key)
    if structured is not None:
        mask = structured
    if place is not None and getattr(module, "is_causal", True):
        # A static cache has room for keys that have not been written yet.
        filled = place.frame.q_end
        key, value = key[:, :, :filled], value[:, :, :filled]
        mask = mask[..., :filled] if isinstance(mask, Tensor) else mask
        bias = options.get("position_bias")
        if isinstance(bias, Tensor):
            options = {**options, "position_bias": bias[..., :filled]}
    call = call_of(module, query, key, value, mask, implementation=implementation, **options)
    if edits_of(module):
        call = replace(call, mask=edited(module, call.mask, heads=call.heads))
    if place is None:
        own.see(LayerCall(module, call, is_cross))
        return
    # Positions count from the first key that the cache holds. For one query over many keys, SDPA without a mask would
    # mean position 0.
    if call.frame.q_start != place.frame.q_start:
        call = replace(call, frame=replace(call.frame, q_start=place.frame.q_start))
    own.see(LayerCall(module, call, is_cross, position=place.q_offset, dropped_keys=place.kv_offset))


def remembering(original: Function, name: str) -> Function:
    """A function that makes masks and remembers the positions of their queries and keys."""
    remember = outside_graphs(recent_masks.remember)

    def make_and_remember(*args: Any, **options: Any) -> Any:
        mask = original(*args, **options)
        remember(mask, _named(original, args) | options)
        return mask

    return make_and_remember


def mask_interface() -> Any:
    """The functions of transformers that make masks, by implementation."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    return ALL_MASK_ATTENTION_FUNCTIONS
