"""Speculative decoding: a draft proposes several tokens, and the model checks all of them in one pass.

    >>> from rearview.generation import ModelDraft, generate
    >>> from rearview.models import GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=2, heads=2, width=16))
    >>> figures = generate(model, [1, 2, 3], max_new_tokens=20, temperature=0, draft=ModelDraft(model)).finish().figures
    >>> figures.tokens, figures.passes, figures.acceptance_rate
    (20, 4, 1.0)

The pass reads the newest token and the nodes of the tree; each node hears the text and its own ancestors. The cache
keeps the path that was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.generation.acceptance import accept_picked, accept_sampled
from rearview.generation.draft_tree import DraftTree
from rearview.generation.drafts import Draft, Drafter
from rearview.generation.sampling import Sampler, Sampling, check_finite
from rearview.generation.steps import Advance
from rearview.generation.tree_reader import TreeReader
from rearview.models import GPT


class Speculation:
    """A source of tokens: as many per pass as the model accepts from the draft, and one more."""

    def __init__(self, model: GPT, draft: Draft, prompts: Sequence[Sequence[int]], *, max_len: int, sampling: Sampling):
        self._sampling = sampling
        self._drafter: Drafter = draft.start(prompts, max_len=max_len, sampling=sampling)
        self._reader = TreeReader(model, batch=len(prompts), max_len=max_len + 1 + draft.tokens)
        self._reader.read_text([prompt[:-1] for prompt in prompts])

    def advance(
        self, sequences: Sequence[Sequence[int]], *, rooms: Sequence[int], samplers: Sequence[Sampler]
    ) -> list[Advance]:
        trees = self._drafter.propose(sequences, rooms=rooms, samplers=samplers)
        # The newest token of each sequence is the root, and comes before the nodes of the draft.
        tokens = [[sequence[-1], *tree.tokens] for sequence, tree in zip(sequences, trees, strict=True)]
        parents = [[-1, *(parent + 1 for parent in tree.parents)] for tree in trees]
        accepted = self._accepted(self._reader.read(tokens, parents), trees, sequences, samplers)
        self._reader.keep([[0, *(node + 1 for node in path)] for path, _ in accepted])
        self._drafter.accepted(trees, [path for path, _ in accepted])
        return [
            Advance([*(tree.tokens[node] for node in path), token], drafted=len(tree.tokens))
            for tree, (path, token) in zip(trees, accepted, strict=True)
        ]

    def take(self, items: Sequence[int]) -> None:
        self._reader.take(items)
        self._drafter.take(items)

    def _accepted(
        self,
        logits: Tensor,
        trees: Sequence[DraftTree],
        sequences: Sequence[Sequence[int]],
        samplers: Sequence[Sampler],
    ) -> list[tuple[list[int], int]]:
        """For each sequence the nodes that are accepted and the token after them; `logits` [batch, nodes, vocab]."""
        if self._sampling.is_plainly_greedy:
            top, token = (each.tolist() for each in logits.max(-1))
            return [
                accept_picked(tree, lambda node, _, n=n: _finite(token[n][node + 1], top[n][node + 1]), sequence)
                for n, (tree, sequence) in enumerate(zip(trees, sequences, strict=True))
            ]
        accepted = []
        rows = logits.to("cpu", torch.float64)
        for row, tree, sequence, sampler in zip(rows, trees, sequences, samplers, strict=True):
            if tree.distributions:
                accepted.append(accept_sampled(tree, row, sampler, sequence))
                continue

            def pick(node: int, history: Sequence[int], row: Tensor = row, sampler: Sampler = sampler) -> int:
                return sampler.pick(row[node + 1], history)

            accepted.append(accept_picked(tree, pick, sequence))
        return accepted


def _finite(token: int, logit: float) -> int:
    check_finite(logit)
    return token
