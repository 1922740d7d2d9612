"""The arguments of a call, checked one by one, so that a wrong one is reported here and not from inside PyTorch.

>>> finite_number(0.5, "dropout", at_least=0.0, below=1.0)
0.5
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.pages import Pages
from rearview.attention.sequence_shard import SequenceShard
from rearview.errors import BadArgument, Unsupported
from rearview.masks import Frame, Mask
from rearview.masks.data import check_plain, check_readable, described, is_number, is_whole

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_tensors(query: Any, key: Any, value: Any, *, paged: bool = False) -> None:
    """`paged`: key and value are pools of blocks, so their first axis is not the batch."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise BadArgument(name, expected="a tensor", got=type(tensor).__name__)
        if tensor.dtype not in FLOATS:
            raise BadArgument(name, expected="float16, bfloat16, float32 or float64", got=tensor.dtype)
        check_plain(tensor, name, expected="a plain tensor, of rows in memory", advice="")
        if tensor.ndim not in (2, 3, 4) or tensor.shape[-1] == 0:
            expected = "shape [batch, heads, time, dim] (or [batch, time, dim], or [time, dim])"
            raise BadArgument(name, expected=expected, got=list(tensor.shape))
    together = "query, key, value"
    if paged and not query.ndim == key.ndim == value.ndim == 4:
        expected = "query [batch, heads, time, dim] and pools [blocks, key heads, block size, dim] with pages="
        raise BadArgument(together, expected=expected, got=_shapes(query, key, value))
    if not query.ndim == key.ndim == value.ndim:
        raise BadArgument(together, expected="the same number of axes", got=_shapes(query, key, value))
    if not query.device == key.device == value.device:
        got = f"{query.device}, {key.device}, {value.device}"
        raise BadArgument(together, expected="tensors on one device", got=got)
    if not query.dtype == key.dtype == value.dtype and not torch.is_autocast_enabled(query.device.type):
        got = f"{query.dtype}, {key.dtype}, {value.dtype}"
        raise BadArgument(together, expected="one dtype", got=got, advice="Cast them with .to(dtype).")
    if key.shape != value.shape and key.shape[:-1] != value.shape[:-1]:
        raise BadArgument("value", expected="the batch, heads and time of key", got=_shapes(query, key, value))
    if query.shape[-1] != key.shape[-1]:
        got = f"{key.shape[-1]}: {_shapes(query, key, value)}"
        raise BadArgument("key", expected=f"head dim {query.shape[-1]}, as the query", got=got)
    if query.ndim > 2 and query.shape[0] != key.shape[0] and not paged:
        got = f"{key.shape[0]}: {_shapes(query, key, value)}"
        raise BadArgument("key", expected=f"batch {query.shape[0]}, as the query", got=got)
    if query.ndim == 4 and (key.shape[1] == 0 or query.shape[1] % key.shape[1]):
        raise BadArgument(
            "key",
            expected=f"a number of heads that divides the query's {query.shape[1]}",
            got=key.shape[1],
            advice="With fewer key heads, each serves an equal group of query heads.",
        )


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    return f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    # What torch does for its own attention, done here so that every engine sees the same numbers.
    device = tensors[0].device.type
    # For tensors that are shapes only, torch has no autocast to ask for.
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A block in which products are computed in the dtype of their inputs."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def check_mask(mask: Any, frame: Frame, *, batch: int, heads: int) -> None:
    if not isinstance(mask, Mask):
        advice = "Use full() for no mask."
        if isinstance(mask, Tensor):
            advice = (
                "A tensor does not say whether True means heard or blocked: use dense(tensor) if it means heard, "
                'from_bool(tensor, true_means="blocked") if not, from_additive(tensor) for 0 and -inf.'
            )
        raise BadArgument("mask", expected="a Mask such as causal()", got=type(mask).__name__, advice=advice)
    if mask.batch not in (None, batch):
        raise BadArgument("mask", expected=f"a mask for batch {batch}", got=f"{mask!r}, made for batch {mask.batch}")
    if mask.heads not in (None, heads):
        raise BadArgument("mask", expected=f"a mask for {heads} query heads", got=f"{mask!r}, made for {mask.heads}")
    mask._check(frame)


def checked_bias(bias: Any, query: Tensor, k_len: int) -> Tensor | Alibi | None:
    if bias is None:
        return None
    batch, heads, q_len = query.shape[:3]
    if isinstance(bias, Alibi):
        if len(bias.slopes) != heads:
            raise BadArgument("bias", expected=f"alibi for {heads} heads", got=f"{len(bias.slopes)} slopes")
        return bias
    expected = f"a float tensor that broadcasts to [{batch}, {heads}, {q_len}, {k_len}], or alibi(...)"
    if not isinstance(bias, Tensor) or bias.dtype not in FLOATS:
        got = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise BadArgument("bias", expected=expected, got=got, advice="Who may be heard goes into mask=.")
    check_plain(bias, "bias", expected=expected)
    full = (batch, heads, q_len, k_len)
    fits = bias.ndim <= 4 and all(size in (1, whole) for size, whole in zip(bias.shape[::-1], full[::-1], strict=False))
    if not fits:
        raise BadArgument("bias", expected=expected, got=list(bias.shape))
    if bias.device != query.device:
        raise BadArgument("bias", expected=f"a tensor on {query.device}", got=bias.device)
    return bias.view((1,) * (4 - bias.ndim) + bias.shape)


def checked_sinks(sinks: Any, query: Tensor) -> Tensor:
    """`sinks` on the query's device, in the dtype that scores are computed in."""
    heads = query.shape[1]
    expected = f"a float tensor [{heads}], one logit per query head"
    if not isinstance(sinks, Tensor):
        raise BadArgument("sinks", expected=expected, got=type(sinks).__name__)
    check_plain(sinks, "sinks", expected=expected)
    if sinks.dtype not in FLOATS or sinks.shape != (heads,):
        raise BadArgument("sinks", expected=expected, got=f"{sinks.dtype} of shape {list(sinks.shape)}")
    if query.device.type != "meta":
        check_readable(sinks, "sinks", expected=expected)
    return sinks.to(query.device, torch.float64 if query.dtype == torch.float64 else torch.float32)


def checked_pages(pages: Any, query: Tensor, key: Tensor, q_start: int | None) -> Pages:
    if not isinstance(pages, Pages):
        got, advice = type(pages).__name__, "Use Pages(table, lengths)."
        raise BadArgument("pages", expected="a block table with lengths", got=got, advice=advice)
    if q_start is not None:
        expected = "nothing with pages=, where the queries of an item stand at its last positions"
        raise BadArgument("q_start", expected=expected, got=q_start)
    pages.check(query, key)
    return pages


def checked_lengths(lengths: Any, query: Tensor, *, q_start: int | None, paged: bool) -> Tensor:
    """`lengths` as int32. Their values are not read: a CUDA graph may change them."""
    expected = f"an integer tensor [{len(query)}] on {query.device}, the number of keys of each item"
    if isinstance(lengths, Tensor):
        check_plain(lengths, "lengths", expected=expected)
    if not isinstance(lengths, Tensor) or lengths.shape != (len(query),) or not is_whole(lengths):
        raise BadArgument("lengths", expected=expected, got=described(lengths))
    if lengths.device != query.device:
        raise BadArgument("lengths", expected=expected, got=f"a tensor on {lengths.device}")
    for name, given in (("q_start", q_start is not None), ("pages", paged)):
        if given:
            expected = "nothing with lengths=, where the queries of an item stand at its last positions"
            got = "pages=, which have lengths of their own" if paged else q_start
            raise BadArgument(name, expected=expected, got=got)
    return lengths.int()


def read_lengths(lengths: Tensor, *, q_len: int, k_len: int) -> list[int]:
    """The values of `lengths`, checked."""
    check_readable(lengths, "lengths", expected="integers, the number of keys of each item")
    counts = lengths.tolist()
    if wrong := [count for count in counts if not q_len <= count <= k_len]:
        expected = f"from {q_len}, the number of queries, to {k_len}, the number of keys"
        raise BadArgument("lengths", expected=expected, got=wrong[0])
    return counts


def refuse_on_shard(
    shard: SequenceShard,
    query: Tensor,
    key: Tensor,
    *,
    q_start: int | None,
    dropout: float,
    pages: Pages | None,
    lengths: Tensor | None,
    batch_invariant: bool,
) -> None:
    """Raise for what a call cannot have while this rank holds a part of the sequence."""
    q_len, k_len = query.shape[2], key.shape[2]
    reasons = []
    if pages is not None:
        reasons.append("the keys are in pages, which are for decoding")
    elif lengths is not None:
        reasons.append("lengths= is for decoding")
    elif (q_len, k_len) != (shard.rows, shard.rows):
        reasons.append(
            f"expected the {shard.rows} rows of this rank, of {shard.length}, as queries and as keys, "
            f"got {q_len} queries and {k_len} keys; decoding with a cache and cross attention are not done on a layout"
        )
    if q_start not in (None, 0):
        reasons.append(f"q_start={q_start} has no meaning: the layout says at which positions the rows are")
    if dropout:
        reasons.append(f"dropout={dropout} would drop other weights than on one process")
    if batch_invariant:
        reasons.append("batch_invariant=True cannot be kept: sums start at other keys on every rank")
    if reasons:
        raise Unsupported("attention on a layout cannot do this exactly", reasons)


def finite_number(
    value: Any,
    argument: str,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    below: float = math.inf,
) -> float:
    # Comparisons with infinity, which a NaN fails: a compiled graph can make them of a number that it does not know.
    if is_number(value) and -math.inf < value < math.inf and value > above and at_least <= value < below:
        return float(value)
    bounds = {"above": above, "of at least": at_least, "below": below}
    limits = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))
    got = described(value) if isinstance(value, Tensor) and value.ndim else repr(value)
    raise BadArgument(argument, expected=f"a finite number {limits}".rstrip(), got=got)
