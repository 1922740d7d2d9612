import math
from typing import Any

import pytest
import torch

from rearview import Mask, RearviewError, Unsupported, causal
from rearview.masks.exchange import from_additive, from_bool, to_additive

KEEP: Any = "keep"
Size = tuple[int, int, int | None]


def test_bool_there_and_back(mask: Mask, size: Size):
    q_len, k_len, q_start = size
    visible = mask.to_bool(q_len, k_len, q_start=q_start)
    assert torch.equal(from_bool(visible, true_means="heard").to_bool(q_len, k_len), visible)
    assert torch.equal(from_bool(~visible, true_means="blocked").to_bool(q_len, k_len), visible)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_additive_there_and_back(mask: Mask, dtype):
    for blocked in (torch.finfo(dtype).min, -math.inf):
        additive = mask.to_additive(9, dtype=dtype, blocked=blocked)
        assert additive.dtype == dtype
        assert set(additive.flatten().tolist()) <= {0.0, blocked}
        assert torch.equal(from_additive(additive).to_bool(9), mask.to_bool(9))


def test_additive_is_the_mask_of_the_formula(mask: Mask):
    scores = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    visible = mask.to_bool(9)
    weights = (scores + mask.to_additive(9, dtype=torch.float64)).softmax(-1)
    expected = scores.masked_fill(~visible, -math.inf).softmax(-1)
    assert torch.equal(weights.nan_to_num(-1), expected.nan_to_num(-1))


def test_additive_from_another_precision():
    # transformers builds the mask in one dtype and may cast it to another.
    half = causal().to_additive(3, dtype=torch.float16, blocked=torch.finfo(torch.float16).min)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert from_additive(half.to(dtype)).equals(causal(), 3)
    assert from_additive(causal().to_additive(3, blocked=-1e9).bfloat16(), blocked=-1e9).equals(causal(), 3)
    assert from_additive(causal().to_additive(3, blocked=-1e4), blocked=-1e4).equals(causal(), 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: from_bool(torch.ones(2, 2), true_means="heard"),
            r"from_bool\(tensor\): expected a bool tensor, got a float32",
        ),
        (
            lambda: from_bool(torch.ones(2, 2).bool(), true_means=KEEP),
            r"true_means: expected 'heard' or 'blocked', got 'keep'",
        ),
        (lambda: from_bool(torch.ones(2, 2, 2).bool(), true_means="heard"), r"For three axes add the missing one with"),
        (
            lambda: from_additive(torch.ones(2, 2).bool()),
            r"expected a floating point tensor.*from_bool\(tensor, true_means",
        ),
        (lambda: from_additive(torch.zeros(0, 2)), r"none of them 0, got \[0, 2\]"),
        (lambda: from_additive(torch.zeros(2, 2), blocked=1.0), r"blocked: expected a negative number, got 1.0"),
        (lambda: to_additive(torch.zeros(2, 2)), r"expected a bool tensor, True = heard, got a float32"),
        (
            lambda: causal().to_additive(2, dtype=torch.int32),
            r"dtype: expected a floating point dtype.*got torch.int32",
        ),
        (
            lambda: causal().to_additive(2, blocked=0.0),
            r"blocked: expected a negative number that torch.float32 can hold",
        ),
        (lambda: causal().to_additive(2, blocked=math.nan), r"blocked: expected a negative number"),
        (
            lambda: causal().to_additive(2, dtype=torch.float16, blocked=-1e9),
            r"got -1000000000.0, which it holds as -inf",
        ),
        (lambda: causal().to_additive(2, blocked=-1e-60), r"got -1e-60, which it holds as -0.0"),
        (lambda: causal().to_additive(2, dtype=torch.float8_e4m3fn), r"got -inf, which it holds as"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(RearviewError, match=message):
        call()


def test_whole_numbers_may_be_large():
    assert causal().to_additive(2, blocked=-(2**70)).tolist() == [[0.0, -(2.0**70)], [0.0, 0.0]]


def test_polarity_is_never_guessed():
    untyped: Any = from_bool
    with pytest.raises(TypeError, match="true_means"):
        untyped(torch.ones(2, 2).bool())


def test_a_bias_is_not_a_mask():
    with pytest.raises(Unsupported, match=r"3 of 4 values are neither 0 nor blocked, such as -1e\+09") as caught:
        from_additive(torch.tensor([[0.0, -1e9], [0.5, math.nan]]))
    assert "attend(bias=...)" in str(caught.value)
