"""Acceptance: which tokens of a draft the model would have generated itself, and the token that follows them.

    >>> from rearview.generation.draft_tree import DraftTree
    >>> proposed = DraftTree(tokens=[5, 6, 7], parents=[-1, -1, 0])
    >>> own = {-1: 5, 0: 7, 2: 8}       # what the model picks after each node
    >>> accept_picked(proposed, lambda node, history: own[node], history=[1, 2])
    ([0, 2], 8)

Two rules. If the model picks each token itself and the draft only has to contain it, the tokens are exactly those
without a draft, greedy or sampled. If the draft is a chain of sampled tokens, each is accepted with such a probability
that the tokens have the distribution of the model, and more of them are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from rearview.generation.draft_tree import DraftTree
from rearview.generation.sampling import Sampler

# (node, history) -> the token that the model picks after the node; -1 is the end of the sequence.
Pick = Callable[[int, Sequence[int]], int]


def accept_picked(tree: DraftTree, pick: Pick, history: Sequence[int]) -> tuple[list[int], int]:
    """The nodes whose tokens the model picks, from the root down, and the first token that is not in the tree."""
    node, path, history = -1, [], list(history)
    while True:
        token = pick(node, history)
        child = tree.child(node, token=token)
        if child is None:
            return path, token
        path.append(child)
        history.append(token)
        node = child


def accept_sampled(chain: DraftTree, logits: Tensor, sampler: Sampler, history: Sequence[int]) -> tuple[list[int], int]:
    """Speculative sampling (https://arxiv.org/abs/2211.17192, algorithm 1). `logits` [1 + nodes, vocab_size] are those
    of the model at the end of the sequence and after each node.

    A token that the draft sampled with probability q, and the model would with probability p, is accepted with
    probability min(1, p / q). In place of the first token that is rejected, one is drawn from max(0, p - q).
    """
    history = list(history)
    for node, (token, draft) in enumerate(zip(chain.tokens, chain.distributions, strict=True)):
        own = sampler.sampling.probabilities(logits[node], history)
        if sampler.chance() * float(draft[token]) >= float(own[token]):
            rest = (own - draft).clamp(min=0)
            # Where rounding alone makes the difference, there may be nothing left to draw from.
            return list(range(node)), sampler.draw(rest if rest.any() else own)
        history.append(token)
    return list(range(len(chain.tokens))), sampler.pick(logits[len(chain.tokens)], history)
