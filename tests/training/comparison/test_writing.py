"""What is written, from where, and how it is measured."""

import pytest

from rearview.generation import generate
from rearview.masks import causal, full
from rearview.text import ByteTokenizer, CharTokenizer
from rearview.training import Corpus
from rearview.training.comparison.exam import finish
from rearview.training.comparison.writing import known_words, labels_of, prompts_of, repeated, words_of, written
from tests.training.comparison.example import a_model, a_text


def test_prompts_are_held_out_text_and_so_is_what_follows():
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
def test_both_models_write_with_the_same_code(mask):
    model, prompts = a_model(mask), [[1, 2, 3], [4, 5]]
    texts = finish(written(model, prompts, new_tokens=15, temperature=0.8, seed=5))
    again = generate(model, prompts, max_new_tokens=15, temperature=0.8, seed=[5, 6], use_cache=False).finish()
    assert texts == again.tokens
    assert [len(text) for text in texts] == [15, 15]


def test_repetition_is_runs_that_were_there_before():
    assert repeated("aaaaaaa") == 0.75
    assert repeated("abcdefg") == 0
    assert repeated("abc") == 0


def test_words_are_known_or_not_and_halves_do_not_count():
    words = frozenset({"too", "bee"})
    assert known_words("x Too bee oar too y, or in", words) == 0.75
    assert known_words("too", words) is None
    assert known_words("+-- 12", words) is None
    assert {"outrageous", "fortune"} - words_of(a_text())
    assert "question" in words_of(a_text())


def test_labels_show_what_is_no_character():
    assert labels_of([72, 195, 256], ByteTokenizer()) == ("H", "\\xc3", "<end>")
