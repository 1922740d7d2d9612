"""Held-out prompts, the text that a model generates after them, and two simple measures of that text.

>>> repetition("abcabcabcabc"), repetition("the quick brown fox")
(0.666..., 0.0)
>>> known_words(" the qvick fox ", frozenset({"the", "fox", "quick"}))
0.666...
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

from torch import Tensor

from rearview.generation import generate
from rearview.models import GPT
from rearview.text import Tokenizer
from rearview.training.corpus import Corpus
from rearview.training.data import TextData

# Repetition counts sequences of four characters that occurred before: few in ordinary text, most in a loop.
NGRAM = 4
# Shorter words occur by chance.
WORD = re.compile(r"[^\W\d_]{3,}")
# The tokens that are searched for the start of a prompt; and the fraction of letters, spaces and stops in prose.
SEARCHED, PROSE = 8000, 0.95


def prompts_of(
    corpus: Corpus, tokenizer: Tokenizer, *, count: int, length: int, after: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts from all parts of a text, prose where possible, and their continuations in the text.

    >>> from rearview.text import CharTokenizer
    >>> text = "to be or not to be "
    >>> tokenizer = CharTokenizer.of([text])
    >>> prompts, real = prompts_of(Corpus.of([text], tokenizer), tokenizer, count=2, length=4, after=3)
    >>> [tokenizer.decode(prompt) for prompt in prompts], [tokenizer.decode(text) for text in real]
    (['to b', 'not '], ['e o', 'to '])
    """
    tokens = corpus.tokens
    room = max(1, len(tokens) - length - after)
    parts = [(n * room // count, (n + 1) * room // count) for n in range(count)]
    begins = [_beginning(tokens, tokenizer, begin, end, length) for begin, end in parts]
    prompts = [tokens[begin : begin + length].tolist() for begin in begins]
    return prompts, [tokens[begin + length : begin + length + after].tolist() for begin in begins]


def _beginning(tokens: Tensor, tokenizer: Tokenizer, begin: int, end: int, length: int) -> int:
    """The first capitalized word that starts a piece of prose; otherwise the first word; otherwise the start."""
    labels = labels_of(tokens[begin : min(end, begin + SEARCHED) + length].tolist(), tokenizer)
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


def generate_continuations(
    model: GPT, prompts: Sequence[Sequence[int]], *, new_tokens: int, temperature: float, seed: int
) -> Generator[tuple[int, int], None, list[list[int]]]:
    """The tokens that a model generates after each prompt, without a cache, as both models can. Yields progress."""
    # One seed per text: with one for all, weak models would generate the same text every time.
    seeds = [seed + n for n in range(len(prompts))]
    generation = generate(
        model, prompts, max_new_tokens=new_tokens, temperature=temperature, seed=seeds, use_cache=False
    )
    for count, _ in enumerate(generation, start=1):
        yield count, new_tokens
    return generation.tokens


def repetition(text: str) -> float:
    """The fraction of sequences of four characters that occurred before in the text."""
    ngrams = [text[n : n + NGRAM] for n in range(len(text) - NGRAM + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def vocabulary_of(data: TextData) -> frozenset[str]:
    """The words of the training text; of one beyond 2^27 tokens, the words of evenly spread parts."""
    words: set[str] = set()
    for tokens in data.train.chunks():
        words.update(WORD.findall(data.tokenizer.decode(tokens.tolist()).lower()))
    return frozenset(words)


def known_words(text: str, words: frozenset[str]) -> float | None:
    """The fraction of the words of a text that occur in the training text; None for a text without words."""
    # A word at either end may be incomplete.
    found = [word for word in WORD.finditer(text.lower()) if word.start() > 0 and word.end() < len(text)]
    return sum(word[0] in words for word in found) / len(found) if found else None


def labels_of(tokens: Sequence[int], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The text of each token, with spaces as they are.

    >>> from rearview.text import ByteTokenizer
    >>> labels_of([97, 10, 200, 256], ByteTokenizer())
    ('a', '\\n', '\\\\xc8', '<end>')
    """
    return tuple(_label(token, tokenizer) for token in tokens)


def _label(token: int, tokenizer: Tokenizer) -> str:
    if token == tokenizer.end_id:
        return "<end>"
    data = tokenizer.token_bytes(token)
    return tokenizer.decode([token]) if data is None else data.decode("utf-8", errors="backslashreplace")
