"""Trees: each position hears its ancestors and itself. Prefix trees, shared prompts, speculative decoding.

>>> from rearview import tree
>>> print(tree([-1, 0, 1, 1, 3, 0]).show("The cat sat ran away dog"))    # doctest: +ELLIPSIS
tree([-1, 0, 1, 1, 3, 0])  ·  6 queries x 6 keys  ·  41.7 % visible
...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from rearview.drawing.cells import counted
from rearview.errors import BadArgument
from rearview.masks.constructors import expression
from rearview.masks.data import PRINTED_VALUES, as_data, as_list, described, is_readable, is_whole, printed
from rearview.masks.families import Causal
from rearview.masks.frame import LARGEST_NUMBER, Frame, whole_number
from rearview.masks.mask import Mask, family
from rearview.masks.paths import Paths
from rearview.masks.runs import are_few
from rearview.masks.spans import Spans
from rearview.masks.tree_runs import TreeRuns
from rearview.masks.tree_walk import TreeWalk


@family("tree")
class Tree(Paths):
    is_branching = True
    argument, entry = "tree(parents)", "parent"

    @property
    def _runs(self) -> TreeRuns:
        return self._derive("runs", lambda: TreeRuns.of(self.data.view(-1, self.data.shape[-1])))

    @property
    def _walk(self) -> TreeWalk:
        return self._derive("walk", lambda: TreeWalk.around(self.data.view(-1, self.data.shape[-1])))

    @property
    def positions(self) -> Tensor:
        depths = self._runs.depths if is_readable(self.data) else self._walk.depths
        return depths.view_as(self.data)

    @property
    def has_ranges(self) -> bool:
        return not is_readable(self.data) or are_few(self._runs.most, self.data.shape[-1])

    @property
    def range_obstacle(self) -> str | None:
        return None if self.has_ranges else f"the ancestors of one position lie in {self._runs.most:,} separate runs"

    def along(self, mask: Mask) -> Mask:
        # Ancestors come before their descendants, so there is nothing that a causal mask would forbid.
        return self if isinstance(mask, Causal) else Paths.along(self, mask)

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        length = self.data.shape[-1]
        entered, left = (step.to(key.device) for step in self._walk)
        first = 0 if self.data.ndim == 1 else batch * length
        one, other = first + query.clamp(0, length - 1), first + key.clamp(0, length - 1)
        now = entered[one]
        return (entered[other] <= now) & (now < left[other]) & (query >= 0)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        rows, known = self._rows(frame)
        edges = [edge.unsqueeze(1).to(device) for edge in self._runs.at(rows)]
        if frame.q_start < 0:
            edges = [edge.masked_fill(~known.to(device).view(-1, 1), frame.k_len) for edge in edges]
        return Spans.in_order(*edges, q_len=frame.q_len, k_len=frame.k_len)

    def __repr__(self) -> str:
        return f"tree({printed(self.data, 'parents')})"


@family("shared_prefix")
class SharedPrefix(Tree):
    """`lengths` holds the length of each prompt and, after it, those of its answers."""

    lengths: tuple[tuple[int, ...], ...]

    def _flatten(self) -> tuple[object, ...]:
        return (self.data, *(number for group in self.lengths for number in (len(group), *group)))

    @classmethod
    def _unflatten(cls, values: Sequence[Any]) -> Self:
        data, *numbers = values
        lengths: list[tuple[int, ...]] = []
        while numbers:
            count, *numbers = numbers
            lengths.append(tuple(numbers[:count]))
            numbers = numbers[count:]
        return cls(data, tuple(lengths))

    def __repr__(self) -> str:
        prompts, answers = [group[0] for group in self.lengths], [list(group[1:]) for group in self.lengths]
        if sum(map(len, self.lengths)) > PRINTED_VALUES:
            both = counted(len(prompts), "prompt", "prompts"), counted(sum(map(len, answers)), "answer", "answers")
            return f"shared_prefix(<{', '.join(both)}>)"
        several = len(prompts) > 1
        return f"shared_prefix({prompts if several else prompts[0]}, {answers if several else answers[0]})"


@expression("tree([-1, 0, 0])")
def tree(parents: Sequence[int] | Sequence[Sequence[int]] | Tensor, *, after: int = 0) -> Paths:
    """Each position hears its ancestors and itself: `parents[i]` is the position before i on its path, -1 at a root.

    `parents` is [T], or [batch, T] when the items differ. Parents must come before their children, and a row may
    hold several trees. With `after`, the trees follow that many positions of plain causal text, such as a cache:
    parents count from the first node, and each root follows the last position of the text.
    `tree(parents).positions` are the depths, which are the positions for the model.

    >>> tree([-1, 0, 0]).to_bool(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    >>> tree([-1, 0, -1], after=2)
    tree([-1, 0, 1, 2, 1])
    """
    expected = "integer parents [T] or [batch, T], at least one"
    tensor = as_data(parents, "tree(parents)", expected=expected)
    if tensor.ndim not in (1, 2) or not is_whole(tensor) or tensor.numel() == 0:
        raise BadArgument("tree(parents)", expected=expected, got=described(tensor))
    tensor = tensor.long()
    node = torch.arange(tensor.shape[-1], device=tensor.device)
    wrong = (tensor < -1) | (tensor >= node)
    if is_readable(tensor) and bool(wrong.any()):
        at = wrong.nonzero()[0].tolist()
        raise BadArgument(
            "tree(parents)",
            expected="-1 for a root, or a position before the node's own",
            got=f"{int(tensor[tuple(at)])} at position {at[-1]}",
            advice="Order the nodes so that parents come before their children.",
        )
    after = whole_number(after, "after", at_least=0)
    if after:
        text = torch.arange(-1, after - 1, device=tensor.device).expand(*tensor.shape[:-1], after)
        tensor = torch.cat([text, torch.where(tensor < 0, after - 1, tensor + after)], -1)
    return Tree(tensor)


@expression("shared_prefix(4, [2, 3])")
def shared_prefix(
    prompt_length: int | Sequence[int] | Tensor, answer_lengths: Sequence[int] | Sequence[Sequence[int]] | Tensor
) -> Paths:
    """One prompt with many answers, stored once: each answer hears the prompt and itself, and no other answer.

    The row holds the prompt and then the answers. For several prompts in one row, give their lengths, and for each
    one the lengths of its answers: the row holds the first prompt, its answers, the second prompt, and so on.
    The result is the mask of a `tree`; its `positions` let every answer count on from the prompt.

    >>> shared_prefix(2, [2, 1]).to_bool(5).int().tolist()
    [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]
    >>> shared_prefix(2, [2, 1]).positions.tolist()
    [0, 1, 2, 3, 2]
    """
    prompts = _plain(prompt_length, "shared_prefix(prompt_length)")
    groups = _plain(answer_lengths, "shared_prefix(answer_lengths)")
    if not isinstance(prompts, list):
        prompts, groups = [prompts], [groups]
    lists = [each for each in groups if isinstance(each, list)] if isinstance(groups, list) else []
    if not isinstance(groups, list) or not len(prompts) == len(groups) == len(lists):
        expected = "the answer lengths of each prompt: [2, 3] for one, [[2, 3], [1]] for two"
        raise BadArgument("shared_prefix(answer_lengths)", expected=expected, got=repr(answer_lengths))
    firsts: list[int] = []
    branches: list[int] = []
    lengths: list[tuple[int, ...]] = []
    place = 0
    for prompt, answers in zip(prompts, lists, strict=True):
        prompt = whole_number(prompt, "shared_prefix(prompt_length)", at_least=0)
        answers = [whole_number(each, "shared_prefix(answer_lengths)", at_least=0) for each in answers]
        lengths.append((prompt, *answers))
        last = place + prompt - 1 if prompt else -1
        for length, branch in [(prompt, -1), *((answer, last) for answer in answers)]:
            if length:
                firsts.append(place)
                branches.append(branch)
            place += length
    if not 0 < place <= LARGEST_NUMBER:
        expected = f"from one token in all to 2**30 - 1 ({LARGEST_NUMBER:,})"
        raise BadArgument("shared_prefix(prompt_length)", expected=expected, got=f"{place:,}")
    parents = torch.arange(-1, place - 1)
    parents[torch.tensor(firsts)] = torch.tensor(branches)
    return SharedPrefix(parents, tuple(lengths))


def _plain(values: Any, argument: str) -> Any:
    """Tensors, arrays and sequences as lists."""
    values = as_list(values, argument, expected="whole numbers")
    several = isinstance(values, Sequence) and not isinstance(values, (str, bytes))
    return [_plain(each, argument) for each in values] if several else values
