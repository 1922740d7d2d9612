"""A mask that passes through a model as a tensor of shape [batch, 1, query, key] without any memory.

    >>> import torch
    >>> from rearview.masks import Frame, causal
    >>> mask = MaskTensor.of(causal(), Frame.of(2, 3), batch=1)
    >>> mask
    MaskTensor(causal(), 2 queries at 1, 3 keys)
    >>> mask.shape, mask.dtype
    (torch.Size([1, 1, 2, 3]), torch.float32)
    >>> (torch.ones(3) + mask).tolist()
    [[[[1.0, 1.0, -3.4028234663852886e+38], [1.0, 1.0, 1.0]]]]

A model may read the shape of its mask, crop it to the keys, or move it to another device; these operations return a
MaskTensor again. Any other operation (a few models add the mask to something, or append keys to it) creates the dense
tensor first. It has the form of eager attention, 0 where a key may be heard and finfo.min elsewhere, because every
model can compute with that form, unlike with the bool tensor of SDPA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rearview.attention.sequence_shard import SequenceShard, refuse_shard
from rearview.masks import Frame, Mask
from rearview.masks.exchange import to_additive

aten = torch.ops.aten


class MaskTensor(Tensor):
    """A tensor that stands for `mask` in `frame`."""

    mask: Mask
    frame: Frame
    # Where the sequence is spread over ranks: the frame is that of this rank's rows, the mask that of the whole.
    shard: SequenceShard | None

    @staticmethod
    def of(
        mask: Mask,
        frame: Frame,
        *,
        batch: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        shard: SequenceShard | None = None,
    ) -> MaskTensor:
        shape = (batch, mask.heads or 1, frame.q_len, frame.k_len)
        made = Tensor._make_wrapper_subclass(MaskTensor, shape, dtype=dtype, device=torch.device(device))
        made.mask, made.frame, made.shard = mask, frame, shard
        return made

    def dense(self) -> Tensor:
        """The dense tensor: numbers to add to the scores."""
        if self.shard is not None:
            refuse_shard("a model that computes with its mask", self.shard)
        visible = self.mask.visible_in(self.frame, self.device)
        return to_additive(visible, dtype=self.dtype, blocked=torch.finfo(self.dtype).min).expand(self.shape)

    def _replaced(
        self, *, frame: Frame | None = None, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> MaskTensor:
        return MaskTensor.of(
            self.mask,
            frame or self.frame,
            batch=self.shape[0],
            dtype=dtype or self.dtype,
            device=device or self.device,
            shard=self.shard,
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:
        queries = f"{self.frame.q_len} {'query' if self.frame.q_len == 1 else 'queries'} at {self.frame.q_start}"
        return f"MaskTensor({self.mask!r}, {queries}, {self.frame.k_len} keys)"

    # Operations are handled below, in __torch_dispatch__, where they have been reduced to ATen ops.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], MaskTensor):
            kept = _still_a_mask(func, args[0], args[1:], kwargs)
            if kept is not None:
                return kept
        given: Any = tree_map_only(MaskTensor, MaskTensor.dense, (args, kwargs))
        return func(*given[0], **given[1])


def _still_a_mask(func: Any, mask: MaskTensor, rest: tuple, kwargs: dict) -> MaskTensor | None:
    """The result as a MaskTensor for a copy, another device or dtype, or fewer keys at the end; otherwise None."""
    if func in (aten.detach.default, aten.alias.default, aten.clone.default):
        return mask._replaced()
    if func is aten._to_copy.default:
        dtype = kwargs.get("dtype") or mask.dtype
        return mask._replaced(dtype=dtype, device=kwargs.get("device")) if dtype.is_floating_point else None
    if func is aten.slice.Tensor:
        filled: Any = (*rest, *(0, None, None, 1)[len(rest) :])
        dim, start, end, step = filled
        size = mask.shape[dim]
        end = size if end is None else max(0, min(end + size if end < 0 else end, size))
        if start in (None, 0) and step == 1 and (end == size or dim % 4 == 3):
            keys = end if dim % 4 == 3 else mask.frame.k_len
            return mask._replaced(frame=Frame(mask.frame.q_len, keys, mask.frame.q_start))
    return None
