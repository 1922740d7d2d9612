"""Prompts, generated continuations, and their measures."""

import pytest

from rearview.comparison.continuations import (
    generate_continuations,
    known_words,
    labels_of,
    prompts_of,
    repetition,
    vocabulary_of,
)
from rearview.comparison.exam import finish
from rearview.generation import generate
from rearview.masks import causal, full
from rearview.text import ByteTokenizer, CharTokenizer
from rearview.training import Corpus
from tests.comparison.example import a_model, a_text


def test_prompts_and_continuations_are_held_out_text():
    data = a_text()
    prompts, real = prompts_of(data.validation, data.tokenizer, count=3, length=6, after=20)
    text = data.tokenizer.decode(data.validation.tokens.tolist())
    for prompt, rest in zip(prompts, real, strict=True):
        assert data.tokenizer.decode([*prompt, *rest]) in text
        assert len(prompt) == 6
        assert data.tokenizer.decode(prompt)[0].isupper()


def test_a_text_without_words_still_has_prompts():
    tokenizer = CharTokenizer(".")
    prompts, real = prompts_of(Corpus.of(["." * 30], tokenizer), tokenizer, count=2, length=4, after=50)
    assert [len(prompt) for prompt in prompts] == [4, 4]
    assert all(real)


@pytest.mark.parametrize("mask", [causal(), full()], ids=repr)
def test_both_models_generate_with_the_same_code(mask):
    model, prompts = a_model(mask), [[1, 2, 3], [4, 5]]
    texts = finish(generate_continuations(model, prompts, new_tokens=15, temperature=0.8, seed=5))
    again = generate(model, prompts, max_new_tokens=15, temperature=0.8, seed=[5, 6], use_cache=False).finish()
    assert texts == again.tokens
    assert [len(text) for text in texts] == [15, 15]


def test_repetition_counts_sequences_that_occurred_before():
    assert repetition("aaaaaaa") == 0.75
    assert repetition("abcdefg") == 0
    assert repetition("abc") == 0


def test_incomplete_words_do_not_count():
    words = frozenset({"too", "bee"})
    assert known_words("x Too bee oar too y, or in", words) == 0.75
    assert known_words("too", words) is None
    assert known_words("+-- 12", words) is None
    assert {"outrageous", "fortune"} - vocabulary_of(a_text())
    assert "question" in vocabulary_of(a_text())


def test_labels_show_incomplete_characters():
    assert labels_of([72, 195, 256], ByteTokenizer()) == ("H", "\\xc3", "<end>")
