"""Drafting with a small model: a chain of sampled tokens, or the most probable tree.

>>> from rearview.generation.sampling import Sampling
>>> from rearview.models import GPTConfig
>>> small = GPT(GPTConfig(vocab_size=65, context=16, layers=1, heads=1, width=8))
>>> greedy = Sampling(temperature=0)
>>> drafter = ModelDrafter(small, [[1, 2]], tokens=6, branches=2, depth=3, max_len=16, sampling=greedy)
>>> (proposed,) = drafter.propose([[1, 2]], rooms=[9], samplers=[greedy.start(seed=0)])
>>> len(proposed.tokens), proposed.parents[:2]
(6, [-1, -1])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rearview.generation.candidates import Candidates
from rearview.generation.draft_tree import DraftTree
from rearview.generation.inference import inference
from rearview.generation.sampling import Sampler, Sampling, check_finite
from rearview.generation.tree_reader import TreeReader
from rearview.models import GPT


class ModelDrafter:
    """See `ModelDraft`. Its cache holds what the model has read of each sequence: at least the newest token is left."""

    def __init__(
        self,
        model: GPT,
        prompts: Sequence[Sequence[int]],
        *,
        tokens: int,
        branches: int,
        depth: int,
        max_len: int,
        sampling: Sampling,
    ):
        self._model, self._sampling = model, sampling
        self._tokens, self._branches, self._depth = tokens, min(branches, model.config.vocab_size), depth
        # Tokens that were accepted are read again if they were leaves of the tree, so up to depth + 1 of them.
        room = max(depth + 1, branches * depth)
        self._reader = TreeReader(model, batch=len(prompts), max_len=max_len + room)
        with inference(model):
            self._reader.read_text([prompt[:-1] for prompt in prompts])

    def propose(
        self, sequences: Sequence[Sequence[int]], *, rooms: Sequence[int], samplers: Sequence[Sampler]
    ) -> list[DraftTree]:
        # The pass that reads the proposals adds a token of its own.
        depths = [min(self._depth, room - 1) for room in rooms]
        if not any(depths):
            return [DraftTree() for _ in sequences]
        with inference(self._model):
            logits = self._catch_up(sequences)
            if self._branches == 1 and self._sampling.temperature > 0:
                return self._sampled_chains(logits, sequences, depths, samplers)
            return self._best_trees(logits, sequences, depths)

    def accepted(self, trees: Sequence[DraftTree], paths: Sequence[Sequence[int]]) -> None:
        if self._reader.nodes == 0:
            return
        kept = []
        for tree, path in zip(trees, paths, strict=True):
            slots = [tree.slots[node] for node in path]
            read = slots.index(None) if None in slots else len(slots)
            kept.append([slot for slot in slots[:read] if slot is not None])
        with inference(self._model):
            self._reader.keep(kept)

    def take(self, items: Sequence[int]) -> None:
        with inference(self._model):
            self._reader.take(items)

    def _catch_up(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Read what the cache does not hold yet; the logits after each sequence, [batch, vocab_size]."""
        rows = [sequence[text:] for sequence, text in zip(sequences, self._reader.texts, strict=True)]
        logits = self._reader.read(rows, [range(-1, len(row) - 1) for row in rows])
        self._reader.keep([range(len(row)) for row in rows])
        last = torch.tensor([len(row) - 1 for row in rows], device=logits.device)
        return logits[torch.arange(len(rows), device=logits.device), last]

    def _sampled_chains(
        self,
        logits: Tensor,
        sequences: Sequence[Sequence[int]],
        depths: Sequence[int],
        samplers: Sequence[Sampler],
    ) -> list[DraftTree]:
        trees = [DraftTree() for _ in sequences]
        for level in range(max(depths)):
            for n, tree in enumerate(trees):
                if level < depths[n]:
                    own = self._sampling.probabilities(logits[n], [*sequences[n], *tree.tokens])
                    check_finite(float(own.sum()), "draft")
                    tree.tokens.append(samplers[n].draw(own))
                    tree.parents.append(level - 1)
                    tree.slots.append(level if level + 1 < depths[n] else None)
                    tree.distributions.append(own)
            unread = [tree.tokens[level : level + 1] if level + 1 < depths[n] else [] for n, tree in enumerate(trees)]
            if any(unread):
                logits = self._reader.read(unread, [[level - 1] * len(row) for row in unread])[:, 0]
        return trees

    def _best_trees(self, logits: Tensor, sequences: Sequence[Sequence[int]], depths: Sequence[int]) -> list[DraftTree]:
        every = [Candidates(sequence) for sequence in sequences]
        logits = logits.unsqueeze(1)
        for level in range(max(depths)):
            scores, tokens = self._most_probable(logits, every)
            for n, candidates in enumerate(every):
                if level < depths[n]:
                    candidates.grow(scores[n], tokens[n])
                follows = level + 1 < depths[n]
                candidates.narrow(self._branches if follows else 0, first_slot=self._reader.nodes)
            if any(candidates.frontier for candidates in every):
                new = [candidates.unread() for candidates in every]
                logits = self._reader.read([tokens for tokens, _ in new], [parents for _, parents in new])
        return [candidates.best(self._tokens) for candidates in every]

    def _most_probable(
        self, logits: Tensor, every: Sequence[Candidates]
    ) -> tuple[list[list[list[float]]], list[list[list[int]]]]:
        """Log-probabilities and tokens of the likeliest children of each frontier, [batch][frontier][branches]."""
        if self._sampling.repetition_penalty is not None:
            penalized = replace(self._sampling, temperature=0)
            logits = logits.clone()
            for rows, candidates in zip(logits, every, strict=True):
                for row, node in zip(rows, candidates.frontier or [-1], strict=False):
                    row.copy_(penalized.scores(row, candidates.history(node)))
        scores, tokens = logits.float().log_softmax(-1).topk(self._branches)
        check_finite(float(scores[..., 0].sum()), "draft")
        return scores.tolist(), tokens.tolist()
