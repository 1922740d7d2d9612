"""The suite `trees`: rows with a repeated prompt, and a judge that adds up what they share."""

import pytest
import torch

from bench.harness import Settings
from bench.suites.trees import APART, OURS, SIZES, Answers, cases, computed, table_of
from rearview import attend

SMALL = Answers(6, 3, 2)


def test_a_row_per_answer_has_the_gradients_of_one_row():
    row = [torch.randn(1, 2, SMALL.length, 4, dtype=torch.float64) for _ in range(4)]
    row[3][:, :, : SMALL.prompt] = 0
    rows = [SMALL.apart(each) for each in row]
    assert rows[0].shape == (3, 2, 8, 4)
    torch.testing.assert_close(SMALL.together(rows[0], add=False), row[0])

    def in_one_row(query, key, value):
        return attend(query, key, value, mask=SMALL.mask, engine="reference")

    for got, expected in zip(
        computed(attend, rows, backward=True), computed(in_one_row, row, backward=True), strict=True
    ):
        torch.testing.assert_close(SMALL.together(got, add=True), expected)


@pytest.mark.parametrize("case", cases([SMALL]), ids=lambda case: case.title)
def test_every_contestant_is_judged_correct_and_timed(case):
    outcome = case.run(Settings())
    assert [row.note for row in outcome.rows] == [""] * 4
    assert not outcome.verdicts()
    table = table_of([outcome])
    assert [row[0].strip() for row in table.rows] == [case.name, *(row.name for row in outcome.rows)]


def test_targets_belong_to_the_full_size():
    assert all({target.rival for target in case.targets} >= {APART} for case in cases(SIZES))
    assert all(target.ours == OURS for case in cases(SIZES) for target in case.targets)
