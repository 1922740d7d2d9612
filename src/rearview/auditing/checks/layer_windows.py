"""Window per layer: how far back and ahead each attention layer hears. The outputs of a deep model do not show it.

>>> import torch
>>> from rearview import MaskedSelfAttention, causal, window
>>> from rearview.auditing.checks import layer_windows
>>> from rearview.auditing.context import AuditContext
>>> layer = MaskedSelfAttention(8, 2, mask=causal() & window(3))
>>> layer_windows.run(AuditContext.of(layer, torch.randn(1, 12, 8), causal(), full=True)).check.why
'1 layer measured: the model itself hears 3 positions'

Each layer is run alone on the input that it had in the model, changed at one position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.leak import Leak
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.reporting.report import Check, Number
from rearview.drawing.cells import counted
from rearview.masks import Mask
from rearview.masks.frame import Frame

NAME = "window per layer"
MOST_LAYERS = 64


@dataclass(eq=False)
class _LayerCall:
    """An attention layer with the arguments of its call."""

    path: str
    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def run(context: AuditContext) -> Outcome:
    model = context.subject.model
    if not isinstance(model, nn.Module):
        return Outcome(Check(NAME, "skipped", "a function has no layers"))
    found = [_LayerCall(path, module) for path, module in model.named_modules() if is_attention(module)][:MOST_LAYERS]
    if not found:
        return Outcome(Check(NAME, "skipped", "no module has attention in its class name"))
    _watch(context, found)
    numbers: dict[str, Number] = {}
    widths: dict[int, list[str]] = {}
    for seen in found:
        band = _band(context, seen)
        if isinstance(band, str):
            numbers[seen.path] = band
            continue
        back, ahead = band
        numbers[seen.path] = back + 1 if not ahead else f"{back + 1}, and {ahead} ahead"
        widths.setdefault(back + 1, []).append(seen.path or "the model itself")
        declared = declared_width(seen.module, model)
        if declared is not None and back + 1 > declared:
            why = f"{seen.path or 'the model itself'} hears {back + 1} positions, but declares a window of {declared}"
            leak = Leak.of_form(NAME, context.subject, query=back, source=0, item=0, amount=0.0)
            return Outcome(Check(NAME, "failed", why, numbers), leak)
    if not widths:
        first = next(iter(numbers.values()), "")
        return Outcome(Check(NAME, "skipped", f"no layer could be run alone: {first}", numbers))
    parts = [
        f"{_listed(paths)} {'hears' if len(paths) == 1 else 'hear'} {width} positions"
        for width, paths in widths.items()
    ]
    measured = sum(map(len, widths.values()))
    return Outcome(
        Check(NAME, "passed", f"{counted(measured, 'layer', 'layers')} measured: {'; '.join(parts)}", numbers)
    )


def is_attention(module: nn.Module) -> bool:
    """Whether the class name says attention and no child module's does.

    >>> is_attention(torch.nn.MultiheadAttention(4, 1)), is_attention(torch.nn.Linear(1, 1))
    (True, False)
    """
    named = "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower()
    return named and not any(is_attention(child) for child in module.children())


def declared_width(module: nn.Module, model: nn.Module) -> int | None:
    """The window that a layer declares, by its mask or by its configuration; None where it declares none."""
    mask = getattr(module, "mask", None)
    if isinstance(mask, Mask) and mask.batch is None and mask.heads is None:
        visible = mask.visible_in(Frame.of(256, 256, None), torch.device("cpu"))[0, 0, 255]
        return 256 - int(visible.int().argmax()) if bool(visible.any()) and not bool(visible[0]) else None
    width = getattr(module, "sliding_window", None)
    # Some models write the width into every layer, and say elsewhere which layers use it.
    kinds = getattr(getattr(model, "config", None), "layer_types", None)
    number = getattr(module, "layer_idx", None)
    if isinstance(kinds, (list, tuple)) and isinstance(number, int) and number < len(kinds):
        width = width if "sliding" in str(kinds[number]) else None
    if getattr(module, "is_sliding", True) is False:
        width = None
    return width if isinstance(width, int) and not isinstance(width, bool) and width > 0 else None


def _watch(context: AuditContext, found: list[_LayerCall]) -> None:
    """Run the model once and record the arguments of each layer."""

    def keep(seen: _LayerCall) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # A cache would grow with each further run.
            seen.args = args
            seen.kwargs = {name: value for name, value in kwargs.items() if "cache" not in name and "past" not in name}

        return hook

    hooks = [seen.module.register_forward_pre_hook(keep(seen), with_kwargs=True) for seen in found]
    try:
        context.subject.run()
    finally:
        for hook in hooks:
            hook.remove()


def _band(context: AuditContext, seen: _LayerCall) -> tuple[int, int] | str:
    """How many positions back and ahead the layer hears, or why that is not known."""
    time = context.subject.time
    values = [*seen.args, *seen.kwargs.values()]
    hidden = next((value for value in values if isinstance(value, Tensor) and _has_time(value, time)), None)
    if hidden is None:
        return "it was not called with [batch, time, features]"
    try:
        before = _called(seen, hidden, hidden)
        back, ahead = 0, 0
        for source in (0, time // 2, time - 1):
            other = hidden.clone()
            noise = torch.randn(other[:, source].shape, generator=context.generator).to(other)
            other[:, source] += noise
            unequal = (_called(seen, hidden, other) != before).flatten(2).any(-1).any(0)
            heard = unequal.nonzero().flatten()
            if len(heard):
                back, ahead = max(back, int(heard.max()) - source), max(ahead, source - int(heard.min()))
    except Exception as error:
        # A layer may raise anything when it runs outside of its model.
        return brief(error)
    return back, ahead


def _has_time(value: Tensor, time: int) -> bool:
    return value.is_floating_point() and value.ndim == 3 and value.shape[1] == time


@torch.no_grad()
def _called(seen: _LayerCall, hidden: Tensor, other: Tensor) -> Tensor:
    def exchanged(value: Any) -> Any:
        return other if value is hidden else value

    returned = seen.module(*map(exchanged, seen.args), **{name: exchanged(v) for name, v in seen.kwargs.items()})
    output = returned[0] if isinstance(returned, tuple) else returned
    if not isinstance(output, Tensor) or output.shape[:2] != hidden.shape[:2]:
        raise ValueError("its output and its input differ in shape")
    return output


def _listed(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {counted(len(paths) - 1, 'other', 'others')}"
