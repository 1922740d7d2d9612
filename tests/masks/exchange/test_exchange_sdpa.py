import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from rearview import Mask, RearviewError, Unsupported, causal, dense, documents, full, padding, window
from rearview.masks.exchange import from_sdpa, to_sdpa

Size = tuple[int, int, int | None]
NOTHING = {"attn_mask": None, "is_causal": False}
CAUSAL = {"attn_mask": None, "is_causal": True}


def _attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(~visible, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ value


def _qkv(q_len: int, k_len: int) -> tuple[Tensor, Tensor, Tensor]:
    make = torch.Generator().manual_seed(q_len)
    shapes = ((2, 3, q_len, 8), (2, 3, k_len, 8), (2, 3, k_len, 8))
    query, key, value = (torch.randn(shape, generator=make, dtype=torch.float64) for shape in shapes)
    return query, key, value


def test_sdpa_computes_the_mask(mask: Mask, size: Size):
    q_len, k_len, q_start = size
    query, key, value = _qkv(q_len, k_len)
    expected = _attention(query, key, value, mask.to_bool(q_len, k_len, q_start=q_start))
    torch.testing.assert_close(sdpa(query, key, value, **to_sdpa(mask, q_len, k_len, q_start=q_start)), expected)


def test_there_and_back(mask: Mask, size: Size):
    q_len, k_len, q_start = size
    back = from_sdpa(**to_sdpa(mask, q_len, k_len, q_start=q_start), q_len=q_len, k_len=k_len)
    visible = mask.to_bool(q_len, k_len, q_start=q_start)
    assert torch.equal(back.to_bool(q_len, k_len).expand_as(visible), visible)


@pytest.mark.parametrize(
    ("mask", "sizes", "arguments"),
    [
        (causal(), (8,), CAUSAL),
        (causal() & window(4096), (8,), CAUSAL),
        (window(8), (8,), CAUSAL),
        (causal() & documents([7] * 8), (8,), CAUSAL),
        (causal() & padding([8, 8]), (8,), CAUSAL),
        (dense(torch.ones(8, 8).tril().bool()), (8,), CAUSAL),
        (full(), (8,), NOTHING),
        (causal(), (1, 8), NOTHING),
        (causal() | ~causal(), (8,), NOTHING),
        (window(9, ahead=9), (8,), NOTHING),
        (dense(torch.ones(8, 8).bool()), (8,), NOTHING),
        (padding([9, 8]), (3, 8), NOTHING),
    ],
    ids=repr,
)
def test_recognised_by_meaning(mask: Mask, sizes, arguments):
    assert to_sdpa(mask, *sizes) == arguments


@pytest.mark.parametrize("sizes", [(2, 5), (5, 2), (5, 5), (1, 4)])
def test_is_causal_is_aligned_at_the_top_left(sizes):
    q_len, k_len = sizes
    query, key, value = _qkv(q_len, k_len)
    mask = from_sdpa(is_causal=True, q_len=q_len, k_len=k_len)
    expected = _attention(query, key, value, mask.to_bool(q_len, k_len))
    torch.testing.assert_close(sdpa(query, key, value, is_causal=True), expected)
    assert mask.has_ranges


def test_a_causal_rectangle_is_never_is_causal():
    arguments = to_sdpa(causal(), 2, 5)
    assert arguments["is_causal"] is False
    assert arguments["attn_mask"] is not None
    assert torch.equal(arguments["attn_mask"], causal().to_bool(2, 5)[None, None])
    # From the first position on it would be the same thing, but only the square has kernels for it.
    assert to_sdpa(causal(), 2, 5, q_start=0)["is_causal"] is False


def test_masks_that_broadcast():
    real = torch.tensor([[True, True, False], [False, True, True]])
    mask = from_sdpa(real[:, None, None, :], q_len=2, k_len=3)
    assert mask.equals(padding(real), 2, 3)
    added = from_sdpa(torch.tensor([[0.0, 0.0, -math.inf]]), q_len=2, k_len=3)
    assert added.to_bool(2, 3).tolist() == [[True, True, False]] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"attn_mask": torch.ones(2, 2).bool(), "is_causal": True},
            r"attn_mask, is_causal: expected one of the two, got both",
        ),
        ({"attn_mask": torch.ones(2, 2, 2).bool()}, r"broadcasts to \[2, 2\].*got a bool tensor of shape \[2, 2, 2\]"),
        ({"attn_mask": torch.ones(2, 2).int()}, r"a bool or float tensor.*got an int32 tensor"),
        ({"attn_mask": torch.ones(3, 2).bool()}, r"attn_mask: expected shape \[2, 2\], got \[3, 2\]"),
        ({"attn_mask": [[True]]}, r"got list"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(RearviewError, match=message):
        from_sdpa(**arguments, q_len=2, k_len=2)


def test_a_bias_is_refused():
    with pytest.raises(Unsupported, match=r"attend\(bias=...\)"):
        from_sdpa(torch.tensor([[0.0, 0.25]]), q_len=1, k_len=2)


def test_a_mask_that_does_not_reach_so_far():
    with pytest.raises(RearviewError, match=r"documents\(ids\): expected an id for each of the 9 positions"):
        to_sdpa(documents([0, 1]), 9)
