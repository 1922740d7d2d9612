"""shard(): the layout of a sequence over ranks, the best of several placements or a named one.

>>> from rearview import causal, documents
>>> shard(causal() & documents([n // 50 for n in range(1000)]), length=1000, ranks=4).how
'contiguous'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rearview.errors import BadArgument
from rearview.masks import Mask
from rearview.masks.frame import whole_number
from rearview.parallel.balancing import TOLERANCE
from rearview.parallel.layout import Layout
from rearview.parallel.placements import PLACEMENTS
from rearview.parallel.rank_group import RankGroup, Ranks
from rearview.parallel.workload import Workload

# Beyond this number of ranks "area" takes seconds, and is not tried where a simpler placement is balanced.
MANY_RANKS = 16


def shard(
    mask: Mask | Sequence[Mask],
    length: int,
    ranks: int | Ranks | RankGroup,
    *,
    how: str = "best",
    key_bytes: int = 4096,
) -> Layout:
    """Spread a sequence of `length` positions over ranks, so that work is balanced and few keys travel.

    Args:
        mask: the mask of the model, or a sequence with the mask of each layer. Every mask that has ranges will do.
        length: the number of positions; it need not be divisible by anything.
        ranks: a number of ranks, one axis of a DeviceMesh, such as `mesh["cp"]`, or a process group.
        how: "contiguous" (one run of positions per rank), "head-tail" (a run from each end), "area" (contiguous, then
            runs are exchanged until the visible area is balanced), "dealt" (dealt by area), or "best": the one with the
            lowest `layout.cost`.
        key_bytes: bytes of one key with its value in one layer, for the figures that `print` shows; by default those
            of 8 key heads of dim 128 in bfloat16.

    The layout depends on the arguments only, so all ranks make the same one.

    >>> from rearview import causal
    >>> layout = shard(causal(), length=1000, ranks=4)
    >>> layout.how, round(layout.balance, 3)
    ('head-tail', 1.0)
    """
    masks = (mask,) if isinstance(mask, Mask) else tuple(mask) if isinstance(mask, Sequence) else ()
    if not masks or not all(isinstance(each, Mask) for each in masks):
        expected = "a Mask such as causal(), or a sequence with one per layer"
        raise BadArgument("mask", expected=expected, got=repr(mask))
    length = whole_number(length, "length", at_least=1)
    here = None if isinstance(ranks, int) else RankGroup.of(ranks)
    count = whole_number(ranks, "ranks", at_least=1) if here is None else here.size
    key_bytes = whole_number(key_bytes, "key_bytes", at_least=1)
    if how != "best" and how not in PLACEMENTS:
        raise BadArgument("how", expected="best, " + ", ".join(PLACEMENTS), got=repr(how))
    work = Workload.of(masks, length=length, ranks=count)
    if how != "best":
        return Layout(work, how, PLACEMENTS[how](work), key_bytes, here)
    found: list[Layout] = []
    for name, place in PLACEMENTS.items():
        if name == "area" and count > MANY_RANKS and min(each.balance for each in found) <= TOLERANCE:
            continue
        found.append(Layout(work, name, place(work), key_bytes, here))
    # The first of equals: they are in the order of how simple they are.
    best = min(found, key=lambda each: each.cost)
    return replace(best, others=tuple(each for each in found if each is not best))
