"""The conclusion follows the numbers: one sentence for each outcome."""

from dataclasses import replace

import pytest

from rearview.comparison import conclusion_of
from rearview.comparison.conclusion import OUTCOMES, beaten_by, exam_change, first_below, loss_change
from tests.comparison.example import a_comparison

EVEN = "guessing uniformly among all 104 characters"
SINGLES = "knowing only how often each character occurs"
PAIRS = "a table of which character follows which"
EITHER = "; with the mask both are 2.00"


@pytest.mark.parametrize(
    ("numbers", "claim", "headline"),
    [
        (
            {"loss": 0.1, "exam": 9.0},
            "holds",
            f"Without the mask the loss is 0.10 bits per character and the exam takes 9.00, worse than {EVEN}{EITHER}.",
        ),
        (
            {"loss": 0.1, "exam": 5.0},
            "holds",
            f"Without the mask the loss is 0.10 bits per character and the exam takes 5.00, worse than "
            f"{SINGLES}{EITHER}.",
        ),
        (
            {"loss": 0.1, "exam": 3.5},
            "holds",
            f"Without the mask the loss is 0.10 bits per character and the exam takes 3.50, worse than "
            f"{PAIRS}{EITHER}.",
        ),
        (
            {"loss": 0.1, "exam": 2.5},
            "holds in part",
            f"Without the mask the loss is 0.10 bits per character and the exam takes 2.50{EITHER}. The exam is "
            "worse, but the model did not collapse.",
        ),
        (
            {"loss": 2.01, "exam": 9.0},
            "holds in part",
            "Without the mask the exam takes 9.00 bits per character instead of 2.00, although the loss was "
            "about the same as with the mask.",
        ),
        (
            {"loss": 2.5, "exam": 2.6},
            "holds in part",
            "Without the mask the exam takes 2.60 bits per character instead of 2.00, although the loss was higher "
            "than with the mask.",
        ),
        (
            {"loss": 0.1, "exam": 2.09},
            "does not hold",
            "Without the mask the model is as good in the exam: 2.09 bits per character, and 2.00 with it.",
        ),
        (
            {"loss": 0.1, "exam": 1.5},
            "does not hold",
            "Without the mask the model is better in the exam: 1.50 bits per character, and 2.00 with it.",
        ),
        (
            {"with_mask": 5.0, "exam": 9.0},
            "cannot be told",
            "The models learned too little: even with the mask the exam takes 5.00 bits per character, worse than "
            f"{SINGLES}.",
        ),
        (
            {"with_mask": 7.0, "exam": 9.0},
            "cannot be told",
            "The models learned too little: even with the mask the exam takes 7.00 bits per character, worse than "
            f"{EVEN}.",
        ),
    ],
)
def test_every_outcome_has_its_headline(numbers, claim, headline):
    conclusion = conclusion_of(a_comparison(**numbers))
    assert (conclusion.claim, conclusion.headline) == (claim, headline)
    assert claim in OUTCOMES


def test_collapsed_is_worse_than_a_baseline_that_the_masked_model_beats():
    # Neither beats the pairs: that one is worse than the other is no collapse.
    assert exam_change(a_comparison(with_mask=3.5, exam=4.5)) == "worse"
    assert exam_change(a_comparison(with_mask=3.5, exam=4.8)) == "collapsed"
    assert exam_change(a_comparison(exam=6.0, tables=(6.7, 6.5, None))) == "worse"
    assert exam_change(a_comparison(exam=6.6, tables=(6.7, 6.5, None))) == "collapsed"


def test_a_difference_within_its_error_counts_as_none():
    assert exam_change(a_comparison(exam=2.4, error=0.3)) == "same"
    assert exam_change(a_comparison(exam=2.4, error=0.1)) == "worse"
    assert exam_change(a_comparison(exam=2.01, error=0.0)) == "same"
    assert "The difference is within its error." in conclusion_of(a_comparison(exam=2.4, error=0.3)).exam


def test_the_loss_names_the_step_from_which_it_is_lower():
    lower = a_comparison(loss=0.1)
    assert loss_change(lower) == "lower"
    step = first_below(lower)
    assert step is not None
    assert conclusion_of(lower).loss == (
        "The loss without the mask falls lower: 0.10 bits per character on held-out text, and 2.00 with it. "
        f"Its training loss is below the final loss with the mask from step {step} of 100 on."
    )
    higher = a_comparison(loss=3.0)
    assert conclusion_of(higher).loss == (
        "The loss without the mask stays higher: 3.00 bits per character on held-out text, and 2.00 with it. "
        "Its training loss never falls below the final loss with the mask."
    )
    assert conclusion_of(a_comparison(loss=2.0)).loss.startswith(
        "The loss without the mask is about the same: 2.00 bits per character on held-out text, and 2.00 with it."
    )


def test_a_lower_loss_counts_only_beyond_its_error_and_if_the_training_loss_is_lower_too():
    assert loss_change(a_comparison(loss=1.9, loss_error=0.06)) == "same"
    assert loss_change(a_comparison(loss=1.9, loss_error=0.04)) == "lower"
    noisy = conclusion_of(a_comparison(loss=1.9, loss_error=0.06))
    assert (noisy.claim, noisy.headline) == (
        "holds in part",
        "Without the mask the exam takes 9.00 bits per character instead of 2.00, although the loss was about the same "
        "as with the mask.",
    )
    lower = a_comparison(loss=1.9)
    slower = replace(lower.without_mask, training=lower.with_mask.training)
    never = conclusion_of(replace(lower, without_mask=slower))
    assert (never.claim, never.headline) == (
        "holds in part",
        f"Without the mask the loss is 1.90 bits per character and the exam takes 9.00, worse than {EVEN}{EITHER}. "
        "But its training loss never falls below the final loss with the mask.",
    )


def test_the_exam_is_compared_with_the_baselines():
    start = (
        "From the prefix alone, the model without the mask takes {:.2f} bits per character and the one with it 2.00; "
        "they predict 25 % and 25 % of the next characters. "
    )
    for exam, end in (
        (9.0, f"Without the mask that is worse than {EVEN}."),
        (2.5, "Without the mask that is worse, but still better than every baseline."),
        (1.5, "The model without the mask is better."),
    ):
        assert conclusion_of(a_comparison(exam=exam)).exam == start.format(exam) + end


def test_a_last_position_that_learned_is_mentioned():
    comparison = a_comparison()
    side = replace(comparison.without_mask, exam_by_prefix=(9.0, 9.0, 3.0))
    said = conclusion_of(replace(comparison, without_mask=side)).exam
    assert said.endswith(
        "After a full window it takes 3.00: in training, the last position is the only one that never sees its answer."
    )
    side = replace(comparison.without_mask, exam_by_prefix=(9.0,))
    assert "After a full window" not in conclusion_of(replace(comparison, without_mask=side)).exam


def test_text_and_attention_are_described_with_their_numbers():
    comparison = a_comparison()
    conclusion = conclusion_of(comparison)
    assert conclusion.writing == (
        "Of the words generated without the mask, 80 % occur in the training text; with the mask 80 %, and in the real "
        "text 100 %. Repetition makes up 25 % of the text without the mask and 25 % with it."
    )
    assert conclusion.attention == (
        "Without the mask 56.2 % of the attention goes to the next character, the answer: 1.1 times as much as "
        "uniform attention would give it, and 75 % in the head that attends to it most (layer 0, head 0). With the "
        "mask it is exactly 0."
    )
    wordless = replace(comparison.without_mask, writing=replace(comparison.without_mask.writing, known_words=None))
    assert (
        "Of the words generated without the mask, none occur in the training text"
        in conclusion_of(replace(comparison, without_mask=wordless)).writing
    )
    assert conclusion.sentences == (conclusion.loss, conclusion.exam, conclusion.writing, conclusion.attention)


def test_tokens_have_the_name_of_their_kind():
    comparison = a_comparison()
    for kind, word in (("bytes", "bytes"), ("bpe", "tokens")):
        conditions = replace(comparison.conditions, tokenizer=kind, vocab_size=2048)
        beaten = beaten_by(replace(comparison, conditions=conditions), 9.0)
        assert beaten == f"guessing uniformly among all 2,048 {word}"
