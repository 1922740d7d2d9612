"""masked(): a model whose layers and heads hear less, or something else, inside a `with` block.

    >>> import torch
    >>> from rearview import window
    >>> from rearview.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=2, heads=4, width=32)).eval()
    >>> tokens = torch.arange(20).unsqueeze(0)
    >>> with torch.no_grad(), masked(model, layer=1, heads=[2], mask=window(4)):
    ...     narrowed = model(tokens)
    >>> torch.equal(narrowed, model(tokens))
    False

An attention knock-out is a mask, so it costs what a mask costs. Works for models made of Rearview's layers and for
models of transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from rearview.attention.mask_edits import MaskEdit, editing
from rearview.errors import BadArgument
from rearview.masks import Mask
from rearview.observation.watching.observer import attention_layers
from rearview.observation.watching.rearview_layers import OWN, with_edits
from rearview.observation.watching.selection import HeadChoice, LayerChoice, chosen_heads, chosen_layers


@contextmanager
def masked(
    model: nn.Module,
    *,
    mask: Mask,
    layer: LayerChoice | Iterable[LayerChoice] | None = None,
    heads: HeadChoice | Iterable[HeadChoice] | None = None,
    replace: bool = False,
) -> Iterator[None]:
    """Narrow what layers and heads of a model may hear, inside a `with` block.

    Args:
        mask: a query hears a key only if the layer's own mask and this one allow it. Positions are those of the keys.
        layer: the layers, all by default: numbers, names ("decoder.*"), slices, or a list of these.
        heads: the query heads of these layers, all by default: numbers, slices, or a list of these.
        replace: let `mask` take the place of the layer's own mask. The model may then look ahead.

    `~full()` switches a head off: it hears nothing, and its output is 0. `~documents(...)`, `~ranges(...)` and
    `dense(...)` take single links away. Blocks may be nested, inside or outside of `observe`.

    >>> import torch
    >>> from rearview import MaskedSelfAttention, full
    >>> layer, x = MaskedSelfAttention(8, 2), torch.randn(1, 3, 8)
    >>> with masked(layer, mask=~full()):
    ...     bool((layer(x) == layer.w_o.bias).all())
    True
    """
    found = attention_layers(model)
    if not isinstance(mask, Mask):
        raise BadArgument("mask", expected="a Mask such as ~prefix(1)", got=repr(mask))
    if not isinstance(replace, bool):
        raise BadArgument("replace", expected="True or False", got=repr(replace))
    chosen = [found[number] for number in chosen_layers(layer, [each.name for each in found])]
    with ExitStack() as stack:
        for each in chosen:
            count = each.heads
            if heads is not None and count is None:
                raise BadArgument("heads", expected=f"None: {each.name} does not state its number of heads", got=heads)
            numbers = None if heads is None or count is None else chosen_heads(heads, count, each.name)
            stack.enter_context(editing([each.module], MaskEdit(mask, numbers, replace)))
        stack.enter_context(with_edits([each.module for each in chosen if isinstance(each.module, OWN)]))
        others = [each.module for each in chosen if not isinstance(each.module, OWN)]
        if others:
            from rearview.integrations.transformers.edited_functions import with_edited_functions

            stack.enter_context(with_edited_functions(others))
        yield
