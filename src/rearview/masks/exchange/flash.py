"""Masks to and from FlashAttention's arguments: `causal`, `window_size`, and packed sequences in `cu_seqlens`.

    >>> from rearview import causal, window
    >>> from rearview.masks.exchange import to_flash
    >>> to_flash(causal() & window(4), 16)
    {'causal': True, 'window_size': (3, 0)}

FlashAttention aligns at the bottom right, as positions do here, and its window counts the positions on either side
of the query without the query itself: `window(4)` is 3 to the left.
"""

import reprlib
from collections.abc import Sequence
from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported
from rearview.masks.data import as_data, as_device, check_readable, is_whole, true_or_false
from rearview.masks.exchange.batch import batch_of
from rearview.masks.exchange.rows import ranged
from rearview.masks.exchange.sequences import Band, RowRanges, as_packed, as_rectangles, find_band
from rearview.masks.families import causal as causal_mask
from rearview.masks.families import full, window
from rearview.masks.frame import Frame, whole_number
from rearview.masks.mask import Mask
from rearview.masks.packing import documents
from rearview.masks.spans import Spans

ADVICE = "attend(mask=...) takes any mask."


class FlashArguments(TypedDict):
    """Arguments for `flash_attn_func`, or with `cu_seqlens_q` for `flash_attn_varlen_func`."""

    causal: bool
    window_size: tuple[int, int]
    cu_seqlens_q: NotRequired[Tensor]
    cu_seqlens_k: NotRequired[Tensor]
    max_seqlen_q: NotRequired[int]
    max_seqlen_k: NotRequired[int]


def to_flash(
    mask: Mask,
    q_len: int,
    k_len: int | None = None,
    *,
    q_start: int | None = None,
    batch: int | None = None,
    device: torch.device | str | None = None,
) -> FlashArguments:
    """FlashAttention-2 arguments that mean exactly this mask, or `Unsupported`.

    A plain band is for `flash_attn_func`. Where packed sequences are needed, the result has `cu_seqlens_q` too, for
    `flash_attn_varlen_func` on the whole batch laid out as one row of `batch * q_len` queries and
    `batch * k_len` keys; a sequence of 0 queries holds keys that no query hears.

    >>> from rearview import causal, documents
    >>> packed = to_flash(causal() & documents([0, 0, 1, 1, 1]), 5)
    >>> packed["cu_seqlens_q"].tolist(), packed["max_seqlen_k"], packed["causal"]
    ([0, 2, 5], 3, True)
    """
    frame = Frame.of(q_len, k_len, q_start)
    spans = ranged(mask, frame)
    if reasons := more_than_one_range(spans):
        raise Unsupported(_what(mask, frame), reasons, advice=ADVICE)
    rows = RowRanges.of(spans, batch=batch_of(mask, batch))
    if band := find_band(rows, as_rectangles(rows)):
        return _arguments(band)
    packed = as_packed(rows)
    band = find_band(rows, packed) if packed else None
    if packed is None or band is None:
        reasons = ["the rows are not one band (causal, window_size) over consecutive runs of keys"]
        if spans.some_key_unheard:
            reasons.append("padded keys can be left out only where padded queries hear nothing: & documents(real)")
        raise Unsupported(_what(mask, frame), reasons, advice=ADVICE)
    return {
        **_arguments(band),
        "cu_seqlens_q": packed.queries.to(as_device(device), torch.int32),
        "cu_seqlens_k": packed.keys.to(as_device(device), torch.int32),
        "max_seqlen_q": int(packed.queries.diff().max()),
        "max_seqlen_k": int(packed.keys.diff().max()),
    }


def from_flash(
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    cu_seqlens: Sequence[int] | Tensor | None = None,
) -> Mask:
    """The mask that FlashAttention applies: -1 is unlimited, `causal` sets the right side of the window to 0.

    `cu_seqlens` are the edges of packed sequences, the same for queries and keys.

    >>> from_flash(causal=True, window_size=(3, 3))
    window(4)
    >>> from_flash(causal=True, cu_seqlens=[0, 2, 5])
    causal() & documents([0, 0, 1, 1, 1])
    """
    if not isinstance(window_size, Sequence) or len(window_size) != 2:
        raise BadArgument("window_size", expected="(left, right)", got=repr(window_size))
    left, right = (whole_number(size, "window_size", at_least=-1) for size in window_size)
    band = _band_mask(left, 0 if true_or_false(causal, "causal") else right)
    if cu_seqlens is None:
        return band
    edges = _edges(cu_seqlens)
    packed = documents(torch.arange(len(edges) - 1).repeat_interleave(edges.diff()))
    return packed if band.is_full else band & packed


def _edges(cu_seqlens: Sequence[int] | Tensor) -> Tensor:
    expected = "integers that start at 0 and rise to the total length, such as [0, 3, 5]"
    edges = as_data(cu_seqlens, "cu_seqlens", expected=expected)
    check_readable(edges, "cu_seqlens", expected=expected)
    edges = edges.cpu()
    whole = edges.ndim == 1 and len(edges) > 1 and is_whole(edges)
    if not whole or edges[0] != 0 or edges[-1] == 0 or bool((edges.diff() < 0).any()):
        raise BadArgument("cu_seqlens", expected=expected, got=reprlib.repr(edges.tolist()))
    return edges.long()


def _what(mask: Mask, frame: Frame) -> str:
    return f"to_flash: FlashAttention cannot express {mask!r} for {frame.q_len} queries and {frame.k_len} keys"


def more_than_one_range(spans: Spans) -> list[str]:
    """Reasons why these ranges are not one per query, the same for all heads; none where they are."""
    reasons = []
    if spans.most_ranges > 1:
        item, head, query = torch.nonzero(spans.starts[..., 1] < spans.k_len)[0].tolist()
        ranges = " and ".join(f"{start}..{end - 1}" for start, end in spans.rows(item, head)[query])
        reasons.append(f"a query can hear one range of keys there, but query {query} hears {ranges} here")
    if not spans.same_for_all_heads:
        reasons.append("all heads share one mask there, but differ here")
    return reasons


def _arguments(band: Band) -> FlashArguments:
    only_causal = band.left < 0 and band.right == 0
    return {"causal": band.right == 0, "window_size": (-1, -1) if only_causal else (band.left, band.right)}


def _band_mask(left: int, right: int) -> Mask:
    if left < 0 and right < 0:
        return full()
    if left < 0:
        return causal_mask() | window(1, ahead=right) if right else causal_mask()
    # No limit on the right: everything after the query, and the window before it.
    return window(left + 1, ahead=right) if right >= 0 else window(left + 1) | ~causal_mask()
