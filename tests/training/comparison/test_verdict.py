"""The words follow the numbers: one sentence for each outcome, none for what did not come out."""

from dataclasses import replace

import pytest

from rearview.training.comparison import verdict_of
from rearview.training.comparison.verdict import SAID, beaten_by, exam_change, first_below, loss_change
from tests.training.comparison.example import a_comparison

EVEN = "guessing evenly among all 104 characters"
SINGLES = "knowing only how often each character occurs"
PAIRS = "a table of which character follows which"
EITHER = "; with the mask both say 2.00"


@pytest.mark.parametrize(
    ("numbers", "claim", "headline"),
    [
        (
            {"loss": 0.1, "exam": 9.0},
            "holds",
            f"Without the mask the loss says 0.10 bits a character and the exam 9.00, worse than {EVEN}{EITHER}.",
        ),
        (
            {"loss": 0.1, "exam": 5.0},
            "holds",
            f"Without the mask the loss says 0.10 bits a character and the exam 5.00, worse than {SINGLES}{EITHER}.",
        ),
        (
            {"loss": 0.1, "exam": 3.5},
            "holds",
            f"Without the mask the loss says 0.10 bits a character and the exam 3.50, worse than {PAIRS}{EITHER}.",
        ),
        (
            {"loss": 0.1, "exam": 2.5},
            "holds in part",
            f"Without the mask the loss says 0.10 bits a character and the exam 2.50{EITHER}: a worse exam, and no "
            "collapse.",
        ),
        (
            {"loss": 2.01, "exam": 9.0},
            "holds in part",
            "Without the mask the exam takes 9.00 bits a character instead of 2.00, though the loss was no lower than "
            "with it.",
        ),
        (
            {"loss": 2.5, "exam": 2.6},
            "holds in part",
            "Without the mask the exam takes 2.60 bits a character instead of 2.00, though the loss was higher than "
            "with it.",
        ),
        (
            {"loss": 0.1, "exam": 2.09},
            "does not hold",
            "Without the mask the model does as well in the exam here: 2.09 bits a character, and 2.00 with it.",
        ),
        (
            {"loss": 0.1, "exam": 1.5},
            "does not hold",
            "Without the mask the model does better in the exam here: 1.50 bits a character, and 2.00 with it.",
        ),
        (
            {"with_mask": 5.0, "exam": 9.0},
            "cannot be told",
            "Too little was learned to tell: even with the mask the exam takes 5.00 bits a character, worse than "
            f"{SINGLES}.",
        ),
        (
            {"with_mask": 7.0, "exam": 9.0},
            "cannot be told",
            "Too little was learned to tell: even with the mask the exam takes 7.00 bits a character, worse than "
            f"{EVEN}.",
        ),
    ],
)
def test_every_outcome_has_its_headline(numbers, claim, headline):
    verdict = verdict_of(a_comparison(**numbers))
    assert (verdict.claim, verdict.headline) == (claim, headline)
    assert claim in SAID


def test_collapsed_is_worse_than_what_the_mask_makes_it_beat():
    # Neither beats the pairs: that one is worse than the other is no collapse.
    assert exam_change(a_comparison(with_mask=3.5, exam=4.5)) == "worse"
    assert exam_change(a_comparison(with_mask=3.5, exam=4.8)) == "collapsed"
    assert exam_change(a_comparison(exam=6.0, tables=(6.7, 6.5, None))) == "worse"
    assert exam_change(a_comparison(exam=6.6, tables=(6.7, 6.5, None))) == "collapsed"


def test_a_difference_within_its_error_is_none():
    assert exam_change(a_comparison(exam=2.4, error=0.3)) == "same"
    assert exam_change(a_comparison(exam=2.4, error=0.1)) == "worse"
    assert exam_change(a_comparison(exam=2.01, error=0.0)) == "same"
    assert "The difference is within its error." in verdict_of(a_comparison(exam=2.4, error=0.3)).exam


def test_the_loss_is_told_with_the_step_from_which_it_is_lower():
    lower = a_comparison(loss=0.1)
    assert loss_change(lower) == "lower"
    step = first_below(lower)
    assert step is not None
    assert verdict_of(lower).loss == (
        "The loss without the mask falls lower: 0.10 bits a character on held-out text, and 2.00 with it. "
        f"Its training loss is below where the other ends from step {step} of 100 on."
    )
    higher = a_comparison(loss=3.0)
    assert verdict_of(higher).loss == (
        "The loss without the mask stays higher: 3.00 bits a character on held-out text, and 2.00 with it. "
        "Its training loss never gets below where the other ends."
    )
    assert "ends where the other does" in verdict_of(a_comparison(loss=2.0)).loss


def test_the_exam_says_how_it_compares():
    start = (
        "From the prefix alone it takes {:.2f} bits a character without the mask and 2.00 with it; the next character "
        "is the first guess in 25 % and 25 %. "
    )
    for exam, end in (
        (9.0, f"Without the mask that is worse than {EVEN}."),
        (2.5, "Without the mask that is worse, and still better than what needs no model."),
        (1.5, "The model without the mask is better."),
    ):
        assert verdict_of(a_comparison(exam=exam)).exam == start.format(exam) + end


def test_a_last_position_that_learned_is_told():
    comparison = a_comparison()
    side = replace(comparison.without_mask, exam_by_prefix=(9.0, 9.0, 3.0))
    said = verdict_of(replace(comparison, without_mask=side)).exam
    assert said.endswith(
        "With a full window before it, it takes 3.00: the last position was the one that never saw its answer in "
        "training."
    )
    side = replace(comparison.without_mask, exam_by_prefix=(9.0,))
    assert "full window" not in verdict_of(replace(comparison, without_mask=side)).exam


def test_writing_and_attention_are_told_with_their_numbers():
    comparison = a_comparison()
    verdict = verdict_of(comparison)
    assert verdict.writing == (
        "Of the words it writes, the training text knows 80 % without the mask, 80 % with it, and 100 % of the real "
        "text's; 25 % of it is repetition, 25 % with the mask."
    )
    assert verdict.attention == (
        "Without the mask 56.2 % of the attention goes to the next character, the answer, 1.1 times an even share; in "
        "layer 1, head 1, it is 75 %. With the mask it is exactly 0."
    )
    wordless = replace(comparison.without_mask, writing=replace(comparison.without_mask.writing, known_words=None))
    assert "knows none at all without" in verdict_of(replace(comparison, without_mask=wordless)).writing
    assert verdict.sentences == (verdict.loss, verdict.exam, verdict.writing, verdict.attention)


def test_tokens_are_called_what_they_are():
    comparison = a_comparison()
    for kind, word in (("bytes", "bytes"), ("bpe", "tokens")):
        conditions = replace(comparison.conditions, tokenizer=kind, vocab_size=2048)
        beaten = beaten_by(replace(comparison, conditions=conditions), 9.0)
        assert beaten == f"guessing evenly among all 2,048 {word}"
