"""Random masks, each beside its rule written down a second time, from the documentation and not from the package.

A rule is a function of the batch item, the head, the position of the query and that of the key, all tensors.

>>> import random
>>> mask, rule = random_mask(random.Random(3), Sizes(batch=1, heads=2, length=6))
>>> rule(*index_tensors(Sizes(1, 2, 6), 6)).shape[-2:]
torch.Size([6, 6])
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import rearview
from rearview import Mask

# (batch, head, query position, key position) -> bool
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    """`length`: one more than the largest position of a query or a key."""

    batch: int
    heads: int
    length: int


def index_tensors(sizes: Sizes, k_len: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Indices that broadcast to [batch, heads, queries, keys], for queries at all positions."""
    batch = torch.arange(sizes.batch).view(-1, 1, 1, 1)
    head = torch.arange(sizes.heads).view(1, -1, 1, 1)
    return batch, head, torch.arange(sizes.length).view(1, 1, -1, 1), torch.arange(k_len).view(1, 1, 1, -1)


def random_mask(draw: random.Random, sizes: Sizes, depth: int = 0) -> tuple[Mask, Rule]:
    """A mask of up to about five parts, and its rule."""
    if depth < 3 and draw.random() < (0.75, 0.4, 0.2)[depth]:
        one, its_rule = random_mask(draw, sizes, depth + 1)
        how = draw.choice("&&&||~")
        if how == "~":
            return ~one, lambda b, h, i, j: ~its_rule(b, h, i, j)
        other, other_rule = random_mask(draw, sizes, depth + 1)
        if how == "&":
            return one & other, lambda b, h, i, j: its_rule(b, h, i, j) & other_rule(b, h, i, j)
        return one | other, lambda b, h, i, j: its_rule(b, h, i, j) | other_rule(b, h, i, j)
    if depth < 2 and draw.random() < 0.06:
        parts = [random_mask(draw, replace(sizes, heads=1), 3) for _ in range(sizes.heads)]
        return rearview.per_head([mask for mask, _ in parts]), _per_head([rule for _, rule in parts])
    return draw.choice(FAMILIES)(draw, sizes)


def _per_head(rules: Sequence[Rule]) -> Rule:
    def rule(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = [each(b, torch.full_like(h[:, :1], n), i, j) for n, each in enumerate(rules)]
        return torch.cat(torch.broadcast_tensors(*seen), dim=1)

    return rule


def _causal(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    return rearview.causal(), lambda b, h, i, j: j <= i


def _full(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    return rearview.full(), lambda b, h, i, j: (j == j) | (i < 0)


def _window(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    n, ahead = draw.randint(1, sizes.length + 2), draw.choice([0, 0, draw.randint(0, sizes.length)])
    return rearview.window(n, ahead=ahead), lambda b, h, i, j: (i - n < j) & (j <= i + ahead)


def _prefix(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    if draw.random() < 0.5:
        n = draw.randint(0, sizes.length + 1)
        return rearview.prefix(n), lambda b, h, i, j: j < n
    each = torch.tensor([draw.randint(0, sizes.length) for _ in range(sizes.batch)])
    return rearview.prefix(each.tolist()), lambda b, h, i, j: j < each[b]


def _documents(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    ids = _document_ids(draw, sizes)
    return rearview.documents(ids.clone()), _same(ids)


def _document_ids(draw: random.Random, sizes: Sizes) -> Tensor:
    shape = (sizes.length,) if draw.random() < 0.5 else (sizes.batch, sizes.length)
    flips = _uniform(draw, *shape) < draw.choice([0.03, 0.1, 0.5])
    ids = flips.cumsum(-1)
    # Sometimes an id comes back, so that a document has several parts.
    return ids % draw.choice([2, 3, 10**6])


def _same(ids: Tensor) -> Rule:
    return lambda b, h, i, j: _at(ids, b, i) == _at(ids, b, j)


def _at(values: Tensor, b: Tensor, position: Tensor) -> Tensor:
    return values[position] if values.ndim == 1 else values[b, position]


def _padding(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    if draw.random() < 0.5:
        each = torch.tensor([draw.randint(0, sizes.length) for _ in range(sizes.batch)])
        return rearview.padding(each.tolist()), lambda b, h, i, j: j < each[b]
    real = _uniform(draw, sizes.batch, sizes.length) < draw.choice([0.1, 0.8, 0.95])
    return rearview.padding(real.clone()), lambda b, h, i, j: real[b, j] | (i < 0)


def _chunks(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    n = draw.randint(1, sizes.length + 2)
    return rearview.chunks(n), lambda b, h, i, j: i // n == j // n


def _dilated(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    step = draw.randint(1, 5)
    return rearview.dilated(step), lambda b, h, i, j: (i - j) % step == 0


def _dense(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    shape = draw.choice([(1, 1), (1, 1), (sizes.batch, 1), (1, sizes.heads), (sizes.batch, sizes.heads)])
    seen = _uniform(draw, *shape, sizes.length, sizes.length) < draw.choice([0.02, 0.4, 0.95])
    rows, columns = shape[0] > 1, shape[1] > 1
    return rearview.dense(seen.clone()), lambda b, h, i, j: seen[b if rows else 0 * b, h if columns else 0 * h, i, j]


def _ranges(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    several = draw.randint(1, 4)
    starts, ends = ((_uniform(draw, sizes.length, several) * (sizes.length + 1)).long() for _ in range(2))

    def rule(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        key = j.unsqueeze(-1)
        return ((starts[i] <= key) & (key < ends[i])).any(-1)

    return rearview.ranges(starts.clone(), ends.clone()), rule


def _tree(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    parents = _parents(draw, sizes)
    ancestors = _ancestors(parents)
    return rearview.tree(parents), lambda b, h, i, j: ancestors[i, j]


def _parents(draw: random.Random, sizes: Sizes) -> list[int]:
    return [draw.choice([node - 1, node - 1, node - 1, draw.randint(-1, node - 1)]) for node in range(sizes.length)]


def _ancestors(parents: list[int]) -> Tensor:
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


def _window_along_a_tree(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    parents, n = _parents(draw, sizes), draw.randint(1, 6)
    ancestors = _ancestors(parents)
    depth = ancestors.sum(-1) - 1
    mask = rearview.along(rearview.tree(parents), rearview.window(n))
    return mask, lambda b, h, i, j: ancestors[i, j] & (depth[i] - depth[j] < n)


def _window_along_documents(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    ids = (_uniform(draw, sizes.length) < 0.15).cumsum(-1)
    n, first = draw.randint(1, 6), draw.randint(0, 2)
    place = torch.tensor([int((ids[:position] == ids[position]).sum()) for position in range(sizes.length)])
    inside = rearview.causal() & (rearview.window(n) | rearview.prefix(first))
    mask = rearview.along(rearview.documents(ids.clone()), inside)

    def rule(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        near = (place[i] - n < place[j]) | (place[j] < first)
        return (ids[i] == ids[j]) & (place[j] <= place[i]) & near

    return mask, rule


def _shared_prefix(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    prompt = draw.randint(1, sizes.length)
    lengths, left = [], sizes.length - prompt
    while left:
        lengths.append(draw.randint(1, left))
        left -= lengths[-1]
    if not lengths:
        return _causal(draw, sizes)
    answer = torch.tensor([-1] * prompt + [n for n, length in enumerate(lengths) for _ in range(length)])
    mask = rearview.shared_prefix(prompt, lengths)
    return mask, lambda b, h, i, j: (j <= i) & ((j < prompt) | (answer[i] == answer[j]))


def _where(draw: random.Random, sizes: Sizes) -> tuple[Mask, Rule]:
    a, c, n = draw.randint(1, 9), draw.randint(1, 9), draw.randint(2, 6)
    return rearview.where(lambda i, j: (i * a + j * c) % n < 2), lambda b, h, i, j: (i * a + j * c) % n < 2


def _uniform(draw: random.Random, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(draw.getrandbits(48)))


FAMILIES = (
    *(_causal, _causal, _causal, _window, _window, _prefix, _documents, _documents, _padding, _padding, _full),
    *(_chunks, _dilated, _dense, _ranges, _tree, _window_along_a_tree, _window_along_documents, _shared_prefix, _where),
)
