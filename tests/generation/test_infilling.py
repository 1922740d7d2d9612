"""fill(): both sides of a gap matter, probabilities are sorted, and bad arguments are refused."""

import re

import pytest
import torch

from rearview.errors import BadArgument
from rearview.generation import fill
from rearview.models import BERT, BERTConfig
from rearview.text import CharTokenizer
from tests.generation.models import loud, small_gpt

TOKENIZER = CharTokenizer("abcdef", specials=("<end>", "<mask>"))


@pytest.fixture(scope="module")
def model() -> BERT:
    torch.manual_seed(1)
    return loud(BERT(BERTConfig(vocab_size=TOKENIZER.vocab_size, context=8, layers=2, heads=2, width=16)))


def test_both_spellings_of_the_mask_token_work(model):
    assert fill(model, TOKENIZER, "ab[MASK]cd") == fill(model, TOKENIZER, "ab<mask>cd")


def test_the_tokens_after_a_gap_matter(model):
    assert fill(model, TOKENIZER, "ab[MASK]cd") != fill(model, TOKENIZER, "ab[MASK]dd")


def test_candidates_are_sorted_and_sum_to_one(model):
    (gap,) = fill(model, TOKENIZER, "[MASK]a", top=99)
    shares = [candidate.probability for candidate in gap.candidates]
    assert len(shares) == TOKENIZER.vocab_size
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert {candidate.text for candidate in gap.candidates} == {"", *"abcdef"}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("abc", {}, r"text: expected at least one \[MASK\] to fill, got 'abc'."),
        ("a[MASK]", {"top": 0}, "top: expected an integer of at least 1, got 0."),
        ("abcdefab[MASK]", {}, "tokens: expected at most 8 positions, the model's context, got 9."),
    ],
)
def test_errors(model, text, options, message):
    with pytest.raises(BadArgument, match=message):
        fill(model, TOKENIZER, text, **options)


def test_other_models_and_tokenizers_are_refused(model):
    advice = "A GPT hears only what precedes a gap, and a T5 writes its answer: call generate()."
    with pytest.raises(BadArgument, match=re.escape(f"model: expected a BERT, got GPT. {advice}")):
        fill(small_gpt(), TOKENIZER, "a[MASK]")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadArgument, match="tokenizer: expected a tokenizer with a mask token, got one without"):
        fill(model, CharTokenizer("ab"), "a[MASK]")
