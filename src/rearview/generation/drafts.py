"""Drafts: what proposes tokens in speculative decoding.

>>> from rearview.generation import generate
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=2, heads=2, width=16))
>>> small = GPT(GPTConfig(vocab_size=65, context=32, layers=1, heads=1, width=8))
>>> plain = generate(model, [1, 2, 3], max_new_tokens=20, temperature=0).finish().tokens
>>> for draft in (ModelDraft(small, tokens=4), ModelDraft(small, tokens=9, branches=3), LookupDraft()):
...     assert generate(model, [1, 2, 3], max_new_tokens=20, temperature=0, draft=draft).finish().tokens == plain
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rearview.errors import BadArgument
from rearview.generation.draft_tree import DraftTree
from rearview.generation.lookup_drafter import LookupDrafter
from rearview.generation.model_drafter import ModelDrafter
from rearview.generation.sampling import Sampler, Sampling
from rearview.masks.frame import whole_number
from rearview.models import GPT


class Drafter(Protocol):
    """A draft at work on several sequences."""

    def propose(
        self, sequences: Sequence[Sequence[int]], *, rooms: Sequence[int], samplers: Sequence[Sampler]
    ) -> list[DraftTree]:
        """A tree for each sequence, none of whose paths is longer than the sequence has room for."""
        ...

    def accepted(self, trees: Sequence[DraftTree], paths: Sequence[Sequence[int]]) -> None:
        """These nodes of the proposed trees became tokens of the sequences."""
        ...

    def take(self, items: Sequence[int]) -> None:
        """Continue with these sequences only, in this order."""
        ...


@dataclass(frozen=True)
class ModelDraft:
    """A smaller model proposes tokens: a chain, or a tree of its most probable continuations.

    Args:
        model: a GPT with the same vocabulary as the model that it drafts for.
        tokens: number of tokens that are proposed per pass of the large model.
        branches: number of continuations that are followed at each depth; 1 is a chain. The tree has `tokens` nodes,
            the most probable ones, and is at most `tokens / branches` deep, rounded up.

    >>> from rearview.models import GPTConfig
    >>> ModelDraft(GPT(GPTConfig(vocab_size=65, layers=1)), tokens=60, branches=8).depth
    8
    """

    model: GPT
    tokens: int = 5
    branches: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.model, GPT):
            raise BadArgument("draft", expected="a GPT", got=type(self.model).__name__)
        whole_number(self.tokens, "draft tokens", at_least=1)
        whole_number(self.branches, "draft branches", at_least=1)
        if self.branches > self.tokens:
            expected = f"at most {self.tokens}, the number of draft tokens"
            raise BadArgument("draft branches", expected=expected, got=self.branches)

    @property
    def depth(self) -> int:
        """The largest number of tokens on one path."""
        return -(-self.tokens // self.branches)

    def start(self, prompts: Sequence[Sequence[int]], *, max_len: int, sampling: Sampling) -> ModelDrafter:
        """Read the prompts, of sequences that will have at most `max_len` tokens."""
        return ModelDrafter(
            self.model,
            prompts,
            tokens=self.tokens,
            branches=self.branches,
            depth=self.depth,
            max_len=max_len,
            sampling=sampling,
        )


@dataclass(frozen=True)
class LookupDraft:
    """The text itself proposes tokens: those that followed the last occurrence of its newest tokens.

    This needs no model, and helps where a text repeats its prompt: summaries, edits, code.

    Args:
        tokens: number of tokens that are proposed per pass of the model.
        longest_match: largest number of newest tokens that are searched for; fewer are tried if they do not occur.
    """

    tokens: int = 10
    longest_match: int = 3

    def __post_init__(self) -> None:
        whole_number(self.tokens, "draft tokens", at_least=1)
        whole_number(self.longest_match, "longest_match", at_least=1)

    def start(self, prompts: Sequence[Sequence[int]], *, max_len: int, sampling: Sampling) -> LookupDrafter:
        """Start on these prompts."""
        return LookupDrafter(tokens=self.tokens, longest_match=self.longest_match)


Draft = ModelDraft | LookupDraft
