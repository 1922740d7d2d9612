"""What the models write when there is nothing to copy from, and two plain measures of it.

>>> repeated("abcabcabcabc"), repeated("the quick brown fox")
(0.666..., 0.0)
>>> known_words(" the qvick fox ", frozenset({"the", "fox", "quick"}))
0.666...
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any

from torch import Tensor

from rearview.generation import generate
from rearview.models import GPT
from rearview.text import Tokenizer
from rearview.training.corpus import Corpus
from rearview.training.data import TextData

# Four characters in a row that were there before: few in a text, most in a loop.
RUN = 4
# Shorter words are hit by chance.
WORD = re.compile(r"[^\W\d_]{3,}")
# How far the beginning of a prompt is looked for, in tokens; and the share of letters, spaces and stops that is prose.
NEAR, PROSE = 8000, 0.95


def prompts_of(
    corpus: Corpus, tokenizer: Tokenizer, *, count: int, length: int, after: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Beginnings from all over a text, prose where there is some; and how the text really goes on.

    >>> from rearview.text import CharTokenizer
    >>> text = "to be or not to be "
    >>> tokenizer = CharTokenizer.of([text])
    >>> prompts, real = prompts_of(Corpus.of([text], tokenizer), tokenizer, count=2, length=4, after=3)
    >>> [tokenizer.decode(prompt) for prompt in prompts], [tokenizer.decode(text) for text in real]
    (['to b', 'not '], ['e o', 'to '])
    """
    tokens = corpus.tokens.tolist()
    room = max(1, len(tokens) - length - after)
    parts = [(n * room // count, (n + 1) * room // count) for n in range(count)]
    begins = [_beginning(tokens, tokenizer, begin, end, length) for begin, end in parts]
    prompts = [tokens[begin : begin + length] for begin in begins]
    return prompts, [tokens[begin + length : begin + length + after] for begin in begins]


def _beginning(tokens: list[int], tokenizer: Tokenizer, begin: int, end: int, length: int) -> int:
    """The first word of this part that starts a line of prose; else the first word; else the start."""
    labels = labels_of(tokens[begin : min(end, begin + NEAR) + length], tokenizer)
    words = [
        n
        for n in range(1, len(labels) - length)
        if labels[n][:1].isalpha() and (labels[n - 1][-1:].isspace() or labels[n - 1] == "<end>")
    ]
    for n in words:
        text = "".join(labels[n : n + length])
        if labels[n][0].isupper() and sum(c.isalpha() or c in " .," for c in text) >= PROSE * len(text):
            return begin + n
    return begin + words[0] if words else begin


def written(
    model: GPT, prompts: Sequence[Sequence[int]], *, new_tokens: int, temperature: float, seed: int
) -> Generator[tuple[int, int], None, list[list[int]]]:
    """One token at a time, everything read again for each: the same code for both models. Yields progress."""
    # A seed for each text: with one for all, weak models would write the same again and again.
    seeds = [seed + n for n in range(len(prompts))]
    generation = generate(
        model, prompts, max_new_tokens=new_tokens, temperature=temperature, seed=seeds, use_cache=False
    )
    for count, _ in enumerate(generation, start=1):
        yield count, new_tokens
    return generation.tokens


def repeated(text: str) -> float:
    """The share of runs of four characters that stood in the text before."""
    runs = [text[n : n + RUN] for n in range(len(text) - RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def words_of(data: TextData) -> frozenset[str]:
    """The words of the training text."""
    return frozenset(WORD.findall(data.tokenizer.decode(data.train.tokens.tolist()).lower()))


def known_words(text: str, words: frozenset[str]) -> float | None:
    """The share of the words of a text that the training text has; None where there is no word."""
    # What touches an end may be half a word.
    found = [word for word in WORD.finditer(text.lower()) if word.start() > 0 and word.end() < len(text)]
    return sum(word[0] in words for word in found) / len(found) if found else None


def labels_of(tokens: Sequence[int] | Tensor, tokenizer: Any) -> tuple[str, ...]:
    """How each token is shown.

    >>> from rearview.text import ByteTokenizer
    >>> labels_of([97, 10, 200, 256], ByteTokenizer())
    ('a', '\\n', '\\\\xc8', '<end>')
    """
    return tuple(_label(int(token), tokenizer) for token in tokens)


def _label(token: int, tokenizer: Any) -> str:
    if token == tokenizer.end_id:
        return "<end>"
    data = tokenizer.token_bytes(token)
    return tokenizer.decode([token]) if data is None else data.decode("utf-8", errors="backslashreplace")
