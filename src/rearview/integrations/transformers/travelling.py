"""A mask that travels through a model as a tensor: the shape of [batch, 1, query, key], and no memory.

    >>> import torch
    >>> from rearview.masks import Frame, causal
    >>> mask = TravellingMask.of(causal(), Frame.of(2, 3), batch=1)
    >>> mask
    TravellingMask(causal(), 2 queries at 1, 3 keys)
    >>> mask.shape, mask.dtype
    (torch.Size([1, 1, 2, 3]), torch.float32)
    >>> (torch.ones(3) + mask).tolist()
    [[[[1.0, 1.0, -3.4028234663852886e+38], [1.0, 1.0, 1.0]]]]

Between the function that makes a mask and the attention that uses it lies the model. It asks for the shape, crops the
mask to the keys, moves it to another device: all of that keeps the mask a value. Any other operation (a few models add
the mask to something, or keys to the mask) gets the dense tensor, made at that moment, in the form of eager attention:
0 where a key may be heard and finfo.min elsewhere. That form, and not the bool of SDPA, because it is the one that
every model can compute with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rearview.masks import Frame, Mask
from rearview.masks.exchange import to_additive

aten = torch.ops.aten


class TravellingMask(Tensor):
    """`mask` in `frame`."""

    mask: Mask
    frame: Frame

    @staticmethod
    def of(
        mask: Mask,
        frame: Frame,
        *,
        batch: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> TravellingMask:
        shape = (batch, mask.heads or 1, frame.q_len, frame.k_len)
        made = Tensor._make_wrapper_subclass(TravellingMask, shape, dtype=dtype, device=torch.device(device))
        made.mask, made.frame = mask, frame
        return made

    def dense(self) -> Tensor:
        """The same with its memory: numbers to add to the scores."""
        visible = self.mask.visible_in(self.frame, self.device)
        return to_additive(visible, dtype=self.dtype, blocked=torch.finfo(self.dtype).min).expand(self.shape)

    def _again(
        self, *, frame: Frame | None = None, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> TravellingMask:
        return TravellingMask.of(
            self.mask,
            frame or self.frame,
            batch=self.shape[0],
            dtype=dtype or self.dtype,
            device=device or self.device,
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:
        queries = f"{self.frame.q_len} {'query' if self.frame.q_len == 1 else 'queries'} at {self.frame.q_start}"
        return f"TravellingMask({self.mask!r}, {queries}, {self.frame.k_len} keys)"

    # Everything is decided below, where an operation has come down to one of torch's basic ones.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], TravellingMask):
            kept = _still_a_mask(func, args[0], args[1:], kwargs)
            if kept is not None:
                return kept
        given: Any = tree_map_only(TravellingMask, TravellingMask.dense, (args, kwargs))
        return func(*given[0], **given[1])


def _still_a_mask(func: Any, mask: TravellingMask, rest: tuple, kwargs: dict) -> TravellingMask | None:
    """What stays a value: a copy, another device or precision, fewer keys at the end."""
    if func in (aten.detach.default, aten.alias.default, aten.clone.default):
        return mask._again()
    if func is aten._to_copy.default:
        dtype = kwargs.get("dtype") or mask.dtype
        return mask._again(dtype=dtype, device=kwargs.get("device")) if dtype.is_floating_point else None
    if func is aten.slice.Tensor:
        filled: Any = (*rest, *(0, None, None, 1)[len(rest) :])
        dim, start, end, step = filled
        size = mask.shape[dim]
        end = size if end is None else max(0, min(end + size if end < 0 else end, size))
        if start in (None, 0) and step == 1 and (end == size or dim % 4 == 3):
            keys = end if dim % 4 == 3 else mask.frame.k_len
            return mask._again(frame=Frame(mask.frame.q_len, keys, mask.frame.q_start))
    return None
