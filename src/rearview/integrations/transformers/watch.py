"""Seeing every attention of a transformers model as it happens, while the model's own kernel computes it.

    >>> import torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2)).eval()
    >>> modules = [module for _, module in attention_modules(model)]
    >>> with watching(modules, lambda module, happened: print(happened.call.mask, happened.at)):
    ...     logits = model(torch.tensor([[1, 2, 3]])).logits
    causal() 0
    causal() 0

An attention module asks the attention interface for the function that its implementation is called by. While it is
watched, the answer is a function that calls that one, returns what it returns, and shows the call. The name of the
implementation stays as it is: models decide by it, and a name that the mask interface does not know gets no mask at
all, without a word. The function that makes the masks is watched as well, as it knows where queries and keys stand.
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from rearview.attention.outside import outside_graphs
from rearview.errors import Unsupported
from rearview.integrations.transformers.call import Call
from rearview.integrations.transformers.structure import Place, as_mask, joined, real_keys
from rearview.integrations.transformers.travelling import TravellingMask

INTERFACE, EAGER = "ALL_ATTENTION_FUNCTIONS", "eager_attention_forward"
# What a module calls the sequence that it hears, where that is not its own.
OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
# Masks of one forward pass: one a kind of layer, and a few to spare.
FEW = 16


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
    return [(name, module) for name, module in model.named_modules() if _globals_of(type(module)) is not None]


def _globals_of(kind: type) -> dict[str, Any] | None:
    """Where the `forward` of a class finds the interface, if it uses it."""
    for each in kind.__mro__:
        if "forward" not in each.__dict__:
            continue
        function = inspect.unwrap(each.__dict__["forward"])
        code = getattr(function, "__code__", None)
        if code is None:
            return None
        if INTERFACE in code.co_names:
            return function.__globals__
        if "super" not in code.co_names:
            return None
    return None


@contextmanager
def watching(modules: Iterable[nn.Module], see: See) -> Iterator[None]:
    """Show each attention of these modules to `see`, after it was computed.

    `Unsupported` at once where the implementation cannot be read, and at the end where a module ran without asking the
    interface.
    """
    modules = list(modules)
    for module in modules:
        _check(module)
    calls = {module: _Calls(module, see) for module in modules}
    with ExitStack() as stack:
        # Masks of earlier runs say nothing of this one.
        _made.clear()
        stack.callback(_made.clear)
        for module, own in calls.items():
            stack.enter_context(_hooked(module, own))
            _watchers[module] = own
            stack.callback(_watchers.pop, module, None)
            scope = _globals_of(type(module))
            assert scope is not None
            stack.enter_context(_replaced(scope[INTERFACE], _name(module), _attention))
            stack.enter_context(_replaced(_masks(), _name(module), _mask))
        yield
    if blind := [type(module).__name__ for module, own in calls.items() if own.ran and not own.seen]:
        reasons = [f"{name} ran without asking the attention interface" for name in sorted(set(blind))]
        raise Unsupported("This model cannot be watched", reasons)


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
    """What is known of a module while it runs."""

    def __init__(self, module: nn.Module, see: See):
        self.see, self.ran, self.seen, self.is_cross = see, False, False, False
        self._parameters = list(inspect.signature(type(module).forward).parameters)[1:]

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        self.ran, self.is_cross = True, any(given.get(name) is not None for name in OTHER_SEQUENCE)


@contextmanager
def _hooked(module: nn.Module, own: _Calls) -> Iterator[None]:
    handle = module.register_forward_pre_hook(own.before, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True, eq=False)
class _Made:
    """A mask that was made for the model: where it stands, the mask itself (None: none was needed), its structure.

    `is_causal` False is the mask of an encoder, or of what a decoder hears of one.
    """

    place: Place
    mask: Callable[[], Any] | None
    structured: TravellingMask | None
    is_causal: bool

    def is_the_same(self, mask: Any) -> bool:
        return mask is not None and self.mask is not None and self.mask() is mask

    def fits(self, mask: Any, q_len: int, k_len: int) -> bool:
        """Could it be a copy? Models crop their masks, and move them."""
        return (self.place.q_len, self.place.k_len) == (q_len, k_len) and (mask is None) == (self.mask is None)


# Who watches which module. One replacement of an interface serves all watchers.
_watchers: weakref.WeakKeyDictionary[nn.Module, _Calls] = weakref.WeakKeyDictionary()
_users: dict[tuple[int, str], int] = {}
# The masks that were made last: where their queries and keys stand, and what was handed to the model.
_made: deque[_Made] = deque(maxlen=FEW)


@contextmanager
def _replaced(interface: Any, name: str, make: Callable[[Any, str], Callable[..., Any]]) -> Iterator[None]:
    """The function of this name is a watching one, until the last watcher leaves."""
    key = (id(interface), name)
    if not _users.get(key):
        # An entry of the instance hides that of the class, and leaves it alone; it may have one already.
        own = interface._local_mapping.get(name)
        interface[name] = _Replacement(make(interface.get(name), name), own)
    _users[key] = _users.get(key, 0) + 1
    try:
        yield
    finally:
        _users[key] -= 1
        if not _users[key]:
            replacement = interface._local_mapping.get(name)
            if isinstance(replacement, _Replacement):
                del interface[name]
                if replacement.instead_of is not None:
                    interface[name] = replacement.instead_of


class _Replacement:
    """The watching function, and what stood in its place."""

    def __init__(self, function: Callable[..., Any], instead_of: Any):
        self.function, self.instead_of = function, instead_of

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _attention(original: Callable[..., Any] | None, name: str) -> Callable[..., Any]:
    show = outside_graphs(_show)

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **options: Any
    ) -> Any:
        # Each model has an eager attention of its own, which is in no list.
        function = original if original is not None else (_globals_of(type(module)) or {})[EAGER]
        out = function(module, query, key, value, attention_mask, *args, **options)
        own = _watchers.get(module)
        if own is not None:
            show(own, module, name, query, key, value, attention_mask, _named(function, args) | options)
        return out

    return attention


def _named(function: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Arguments behind the mask that a model gives by their place."""
    names = list(inspect.signature(function).parameters)[5:] if args else []
    return dict(zip(names, args, strict=False))


def _show(
    own: _Calls,
    module: nn.Module,
    implementation: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    options: dict[str, Any],
) -> None:
    own.seen = True
    place, structured = (None, None) if own.is_cross else _place_of(module, mask, query, key)
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
        own.see(module, Happened(call, own.is_cross, None, 0))
        return
    # Counted from the first key that is there: a mask from SDPA's None counts from 0 for one query over many keys.
    if call.q_start is None or call.q_start != place.frame.q_start:
        natural = call.key.shape[2] - call.query.shape[2] == place.frame.q_start
        call = call if natural and call.q_start is None else replace(call, q_start=place.frame.q_start)
    own.see(module, Happened(call, own.is_cross, place.q_offset, place.kv_offset))


def _mask(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    remember = outside_graphs(_remember)

    def mask(*args: Any, **options: Any) -> Any:
        made = original(*args, **options)
        remember(made, _named_all(original, args) | options)
        return made

    return mask


def _named_all(function: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(inspect.signature(function).parameters, args, strict=False)) if args else {}


def _remember(made: Any, options: dict[str, Any]) -> None:
    offsets = [int(options.get(which, 0)) for which in ("q_offset", "kv_offset")]
    place = Place(options["q_length"], options["kv_length"], offsets[0], offsets[1], options["batch_size"])
    structured = made if isinstance(made, TravellingMask) else None
    if made is not None and structured is None:
        structured = _structured(place, options)
    is_causal = "allow_is_bidirectional_skip" not in options
    _made.appendleft(_Made(place, None if made is None else weakref.ref(made), structured, is_causal))


def _structured(place: Place, options: dict[str, Any]) -> TravellingMask | None:
    """The same mask with ranges instead of a tensor of query x key; None where its function is not known."""
    function, real = options.get("mask_function"), options.get("attention_mask")
    mask = None if function is None else as_mask(function, place)
    if mask is None:
        return None
    if real is not None:
        mask = joined(mask, real_keys(real, place))
    return TravellingMask.of(mask, place.frame, batch=place.batch, device=options.get("device", "cpu"))


def _place_of(module: nn.Module, mask: Any, query: Tensor, key: Tensor) -> tuple[Place | None, TravellingMask | None]:
    for made in _made:
        if made.is_the_same(mask):
            return made.place, made.structured
    fitting = [made for made in _made if made.fits(mask, query.shape[2], key.shape[2])]
    # The latest of its own kind: a mask for what is heard of an encoder may have the same size.
    fitting.sort(key=lambda made: made.is_causal != getattr(module, "is_causal", True))
    return (fitting[0].place, None) if fitting else (None, None)


def _masks() -> Any:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    return ALL_MASK_ATTENTION_FUNCTIONS
