"""Changes of the mask of a layer while a model runs: what `masked` has asked for, by module.

>>> import torch
>>> from rearview.masks import causal, prefix
>>> layer = torch.nn.Identity()
>>> with editing([layer], MaskEdit(~prefix(1), heads=(0,))):
...     edited(layer, causal(), heads=2)
causal() & per_head([~prefix(1), full()])
>>> edited(layer, causal(), heads=2)
causal()

Layers read the edits here, and so do their watchers, which report the mask that was computed with.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from rearview.errors import BadArgument
from rearview.masks import Mask, full, per_head


@dataclass(frozen=True, eq=False)
class MaskEdit:
    """A mask that narrows, or replaces, the mask of a layer, for these heads or for all of them."""

    mask: Mask
    heads: tuple[int, ...] | None = None
    replaces: bool = False

    def applied(self, own: Mask, heads: int) -> Mask:
        """The mask of a layer with this many query heads, after the edit."""
        if self.heads is None:
            return self.mask if self.replaces else own & self.mask
        if self.mask.heads is not None:
            raise BadArgument("mask", expected="a mask that is the same for every head", got=repr(self.mask))
        if self.replaces:
            return (own & self._on(~full(), full(), heads)) | (self.mask & self._on(full(), ~full(), heads))
        return own & self._on(self.mask, full(), heads)

    def _on(self, chosen: Mask, others: Mask, heads: int) -> Mask:
        assert self.heads is not None
        return per_head([chosen if head in self.heads else others for head in range(heads)])


_edits: weakref.WeakKeyDictionary[nn.Module, tuple[MaskEdit, ...]] = weakref.WeakKeyDictionary()


def edits_of(module: nn.Module) -> tuple[MaskEdit, ...]:
    """The edits of a layer, in the order in which they are applied."""
    return _edits.get(module, ())


def edited(module: nn.Module, own: Mask, *, heads: int) -> Mask:
    """The mask of a layer with all of its edits; the mask itself where there are none."""
    for edit in edits_of(module):
        own = edit.applied(own, heads)
    return own


@contextmanager
def editing(modules: Iterable[nn.Module], edit: MaskEdit) -> Iterator[None]:
    """Add an edit to the masks of these layers inside a `with` block."""
    before = {module: edits_of(module) for module in modules}
    try:
        for module, edits in before.items():
            _edits[module] = (*edits, edit)
        yield
    finally:
        for module, edits in before.items():
            _edits[module] = edits
