from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask, flex_attention

from rearview import (
    Mask,
    RearviewError,
    Unsupported,
    causal,
    dense,
    dilated,
    documents,
    padding,
    per_head,
    prefix,
    window,
)
from rearview.masks.exchange import to_block_mask, to_mask_mod

THREE: Any = (2, 2, 2)
Size = tuple[int, int, int | None]
LISTS = [
    f"{full}{side}" for full in ("", "full_") for side in ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices")
]


def assert_same_blocks(ours: BlockMask, theirs: BlockMask) -> None:
    assert ours.shape == theirs.shape
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for name in LISTS:
        one, other = getattr(ours, name), getattr(theirs, name)
        assert one.dtype == other.dtype
        assert torch.equal(one, other), name


def test_mask_mod_is_the_mask(mask: Mask, size: Size):
    q_len, k_len, q_start = size
    visible = mask.to_bool(q_len, k_len, q_start=q_start)
    made = create_mask(
        to_mask_mod(mask, q_len, k_len, q_start=q_start), mask.batch, mask.heads, q_len, k_len, device="cpu"
    )
    assert torch.equal(made, visible.expand_as(made))


def test_blocks_are_those_of_create_block_mask(mask: Mask, size: Size):
    q_len, k_len, q_start = size
    ours = to_block_mask(mask, q_len, k_len, q_start=q_start, block_size=(2, 4))
    mask_mod = to_mask_mod(mask, q_len, k_len, q_start=q_start)
    theirs = create_block_mask(mask_mod, mask.batch, mask.heads, q_len, k_len, device="cpu", BLOCK_SIZE=(2, 4))
    assert_same_blocks(ours, theirs)


@pytest.mark.parametrize(
    "mask",
    [
        causal(),
        window(100, ahead=30),
        causal() | prefix(140),
        padding([200, 384]),
        causal() & documents(torch.arange(384) // 100),
    ],
    ids=repr,
)
@pytest.mark.parametrize("sizes", [(384, 384), (300, 384), (129, 383), (1, 256)], ids=str)
def test_blocks_at_the_size_of_the_kernels(mask: Mask, sizes):
    theirs = create_block_mask(to_mask_mod(mask, *sizes), mask.batch, mask.heads, *sizes, device="cpu")
    assert_same_blocks(to_block_mask(mask, *sizes), theirs)


def test_no_pair_is_evaluated():
    # 2^40 pairs: through create_block_mask this would be a terabyte.
    blocks = to_block_mask(causal() & window(4096), 2**20, block_size=2**14)
    assert blocks.kv_num_blocks[0, 0].tolist() == [1] + [2] * 63
    assert blocks.full_kv_num_blocks is not None
    assert not bool(blocks.full_kv_num_blocks.any())


# FlexAttention warns, once per process, when it runs uncompiled.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_runs_it():
    mask = per_head([causal(), causal() & window(3)]) & padding([5, 7])
    query, key, value = torch.randn(3, 2, 2, 7, 8).unbind()
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask.to_bool(7))
    answer = flex_attention(query, key, value, block_mask=to_block_mask(mask, 7))
    torch.testing.assert_close(answer, expected)


def test_a_custom_mask_mod():
    def own(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    blocks = to_block_mask(causal(), 7, block_size=4, mask_mod=own)
    assert blocks.mask_mod is own
    assert_same_blocks(blocks, create_block_mask(own, None, None, 7, 7, device="cpu", BLOCK_SIZE=4))


def test_tensors_go_to_the_device_beforehand(monkeypatch):
    # A compiled kernel cannot copy between devices, so nothing may be moved when the function is called.
    mask = causal() & documents([0, 0, 1]) & padding([2, 3]) & dilated(1)
    mask_mod = to_mask_mod(mask, 3)
    monkeypatch.setattr(torch.Tensor, "to", None)
    answer = mask_mod(*torch.tensor([0, 0, 2, 2]))
    assert not answer.item()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: to_block_mask(causal(), 8, block_size=0), r"block_size: expected an integer of at least 1, got 0"),
        (lambda: to_block_mask(causal(), 8, block_size=THREE), r"block_size: expected one size, or \(query block"),
        (lambda: to_block_mask(documents([0, 1]), 8), r"expected an id for each of the 8 positions, got 2 ids"),
        (
            lambda: to_mask_mod(dense(torch.ones(2, 2).bool()), 8),
            r"dense\(tensor\): expected queries at 0..7 over 8 keys",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(RearviewError, match=message):
        call()


def test_a_block_mask_needs_a_block():
    with pytest.raises(Unsupported, match="0 queries and 8 keys has no blocks"):
        to_block_mask(causal(), 0, 8)
