"""The sentences about a Trace, and when each of them appears."""

import math

import pytest
import torch

from rearview import Mask, Trace, causal, explain, full, prefix, window
from tests.explanation.traces import numbers, restaurant


def of_scores(scores: list[list[float]], **options) -> Trace:
    """Attention with these scores before the mask: the keys are unit vectors."""
    count = len(scores[0])
    return explain(
        query=torch.tensor(scores, dtype=torch.float64),
        key=torch.eye(count),
        value=torch.eye(count),
        scale=1.0,
        **options,
    )


def sentences(trace: Trace, head: int = 0, **options) -> list[str]:
    return [reading.sentence for reading in trace.readings(head, **options)]


def test_the_restaurant():
    trace = restaurant()
    assert sentences(trace) == [
        "Frank — 100.0 % himself",
        "Emma — 98.2 % Frank, 1.8 % herself",
        "Daniel — 67.8 % Frank, 27.2 % himself, 5.0 % Emma",
        "Alex — 99.3 % Frank, 0.6 % himself, 0.1 % Daniel, a trace of Emma",
    ]
    assert [reading.dominated_by for reading in trace.readings()] == ["himself", "Frank", "Frank", "Frank"]
    assert [reading.only_itself for reading in trace.readings()] == [True, False, False, False]
    assert [received.sentence for received in trace.received()] == [
        "Frank received 3.65 from 4 queries, 1.75 times an even share of 2.08",
        "Emma received 0.07 from 3 queries, 0.06 times an even share of 1.08",
        "Daniel received 0.27 from 2 queries, 0.47 times an even share of 0.58",
        "Alex received 0.01 from 1 query, 0.02 times an even share of 0.25",
    ]
    assert trace.remarks() == (
        "Frank hears only himself: the output is exactly the value of Frank.",
        "Early positions are heard by more queries (Frank by 4, Alex by 1), so uniform attention gives them more too: "
        "compare with the even share.",
        "Frank stands out: 1.75 times what uniform attention would give.",
        "Without the mask 12.1 % of what Daniel hears would come from keys that the mask forbids; with it, that share "
        "goes to the others in proportion.",
    )


def test_without_the_mask_the_future_is_heard():
    spoken = sentences(restaurant(), masked=False)
    assert spoken[1] == "Emma — 88.2 % Frank, 6.7 % Alex, 3.4 % Daniel, 1.6 % herself"
    assert spoken[3] == sentences(restaurant())[3]


def test_strongest_first_and_equal_ones_in_order():
    trace = of_scores([[0.0, 1.0, 0.0]], mask=full(), labels=["c"], key_labels=["a", "b", "c"])
    assert sentences(trace) == ["c — 57.6 % b, 21.2 % a, 21.2 % itself"]
    assert trace.readings()[0].heard[0] == ("b", pytest.approx(math.e / (math.e + 2)))


def test_no_key_dominates_below_a_half():
    assert of_scores([[0.0, 0.0, 0.1]], mask=full()).readings()[0].dominated_by is None
    assert of_scores([[0.0, 2.0, 0.0]], mask=full(), labels=["x"], key_labels="a b c").readings()[0].dominated_by == "b"


def test_a_row_that_hears_nothing_and_one_that_hears_only_itself():
    trace = of_scores([[0.0, 0.0], [0.0, 0.0]], mask=~causal(), labels="I love")
    assert sentences(trace) == ["I — 100.0 % love", "love — hears nothing"]
    nothing = trace.readings()[1]
    assert nothing.nothing
    assert not nothing.only_itself
    assert nothing.dominated_by is None
    assert [received.sentence for received in trace.received()] == [
        "I is heard by no query",
        "love received 1.00 from 1 query, 1.00 times an even share of 1.00",
    ]
    # The share of a row that hears nothing goes to no other key, so the remark is about the other row.
    assert trace.remarks() == (
        "love hears nothing: the output is exactly 0.",
        "Without the mask 50.0 % of what I hears would come from keys that the mask forbids; with it, that share goes "
        "to the others in proportion.",
    )


def test_early_positions_are_remarked_only_where_they_are_heard_by_more():
    def remarked(mask: Mask) -> list[str]:
        return [text for text in of_scores([[0.0] * 3] * 3, mask=mask).remarks() if text.startswith("Early positions")]

    assert len(remarked(causal())) == len(remarked(causal() & prefix(2))) == 1
    # Heard by all alike, by later ones more, or by those in the middle more.
    assert remarked(full()) == remarked(window(1)) == remarked(~causal()) == remarked(window(2, ahead=1)) == []


def test_uniform_attention_has_no_key_that_stands_out():
    trace = of_scores([[0.0] * 4] * 4)
    assert [received.total for received in trace.received()] == pytest.approx([r.even for r in trace.received()])
    assert not any("stands out" in remark for remark in trace.remarks())
    # 1 + 1/2 + 1/3 + 1/4, as uniform causal attention gives the first.
    assert trace.received()[0].even == pytest.approx(25 / 12)
    assert trace.received()[0].listeners == 4


def test_no_remark_about_a_mask_that_forbids_nothing():
    assert of_scores([[0.0] * 3] * 3, mask=full()).remarks() == ()


def test_many_keys_are_summed_up():
    nine, ten = (of_scores([[0.0] * n], mask=full(), key_labels=[f"k{i}" for i in range(n)]) for n in (9, 10))
    assert sentences(nine)[0].count("11.1 %") == 9
    assert sentences(ten)[0].endswith("10.0 % k7, 20.0 % from 2 others")
    assert len(ten.readings()[0].heard) == 10
    faint = of_scores([[40.0] * 8 + [0.0] * 4], mask=full())
    assert sentences(faint)[0].endswith(", a trace of 4 others")


def test_invisible_labels_are_written_out():
    trace = of_scores([[0.0, 0.0], [0.0, 0.0]], labels=["a\n", " b"], mask=full() & prefix(1))
    assert sentences(trace) == ["a\\n — 100.0 % itself", "␣b — 100.0 % a\\n"]
    assert trace.remarks()[0] == "a\\n hears only itself: the output is exactly the value of a\\n."
    assert trace.received()[1].sentence == "␣b is heard by no query"
    # Names in the values stay as they were given.
    assert trace.readings()[1].heard[0][0] == "a\n"


def test_each_head_reads_its_own_weights():
    q = numbers(3, 4)
    trace = explain(query=q, key=q, value=q, num_heads=2)
    assert sentences(trace, 0) != sentences(trace, 1)
    for head in range(2):
        weights = trace["weights"].of_head(head)
        spoken = [[weight for _, weight in reading.heard] for reading in trace.readings(head)]
        for row, heard in zip(weights, spoken, strict=True):
            assert heard == sorted([w for w in row.tolist() if w > 0], reverse=True)
        assert [r.total for r in trace.received(head)] == pytest.approx(weights.sum(0).tolist())
