from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask, create_mask, noop_mask, or_masks

from rearview import Mask, RearviewError, Unsupported, causal, full, prefix, window
from rearview.masks.exchange import from_block_mask, from_mask_mod, to_block_mask, to_mask_mod

Size = tuple[int, int, int | None]
TWO_ARGUMENTS: Any = lambda i, j: i >= j  # noqa: E731
NO_FUNCTION: Any = "causal"
TABLE = torch.rand(3, 9, generator=torch.Generator().manual_seed(0)) > 0.4


def causal_mod(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window_mod(b, h, q_idx, kv_idx):
    return q_idx - kv_idx < 3


def two_lookups(b, h, q_idx, kv_idx):
    # Right for scalars; with tensors that broadcast, TABLE[h] would already have the wrong axes.
    return TABLE[h][q_idx] & (kv_idx <= q_idx)


def one_lookup(b, h, q_idx, kv_idx):
    return TABLE[h, q_idx] & (kv_idx <= q_idx)


def test_mask_mod_there_and_back(mask: Mask, size: Size):
    q_len, k_len, q_start = size
    first = k_len - q_len if q_start is None else q_start
    mask_mod = to_mask_mod(mask, q_len, k_len, q_start=q_start)
    back = from_mask_mod(mask_mod, batch=mask.batch, heads=mask.heads, q_start=first)
    assert torch.equal(back.to_bool(q_len, k_len, q_start=q_start), mask.to_bool(q_len, k_len, q_start=q_start))


def test_block_mask_there_and_back(mask: Mask, size: Size):
    q_len, k_len, q_start = size
    blocks = to_block_mask(mask, q_len, k_len, q_start=q_start, block_size=(2, 4))
    back = from_block_mask(blocks, batch=mask.batch, heads=mask.heads, q_start=q_start)
    assert torch.equal(back.to_bool(q_len, k_len, q_start=q_start), mask.to_bool(q_len, k_len, q_start=q_start))


@pytest.mark.parametrize("mask_mod", [two_lookups, one_lookup])
def test_asked_with_scalars_as_flex_does(mask_mod):
    expected = create_mask(mask_mod, 1, 3, 9, 9, device="cpu")
    assert torch.equal(from_mask_mod(mask_mod, heads=3).to_bool(9), expected)
    blocks = create_block_mask(mask_mod, None, 3, 9, 9, device="cpu", BLOCK_SIZE=2)
    assert torch.equal(from_block_mask(blocks).to_bool(9), expected)
    # And once more through both, inside another vmap.
    again = to_block_mask(from_block_mask(blocks) & from_mask_mod(mask_mod, heads=3), 9, block_size=2)
    assert torch.equal(create_mask(again.mask_mod, 1, 3, 9, 9, device="cpu"), expected)


@pytest.mark.parametrize(
    ("mask_mod", "mask"),
    [
        (causal_mod, causal()),
        (and_masks(causal_mod, window_mod), window(3)),
        (or_masks(causal_mod, lambda b, h, q, k: k < 2), causal() | prefix(2)),
        (noop_mask, full()),
        (partial(lambda n, b, h, q, k: k < n, 2), prefix(2)),
    ],
)
def test_functions_that_torch_itself_makes(mask_mod, mask: Mask):
    assert from_mask_mod(mask_mod).equals(mask, 5)
    assert from_mask_mod(mask_mod).equals(mask, 5, 7)


def test_prints_its_name():
    assert repr(from_mask_mod(causal_mod)) == "where(causal_mod)"
    blocks = create_block_mask(causal_mod, 1, 1, 3, 4, device="cpu", BLOCK_SIZE=2)
    assert repr(from_block_mask(blocks)) == "from_block_mask(<3 x 4>)"


def test_the_block_lists_count_too():
    # The lists say less than the mask_mod here, and FlexAttention would not look at the blocks left out.
    blocks = create_block_mask(causal_mod, 1, 1, 4, 4, device="cpu", BLOCK_SIZE=2)
    blocks.full_kv_num_blocks = torch.zeros_like(blocks.kv_num_blocks)
    assert from_block_mask(blocks).to_bool(4).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def test_full_blocks_are_not_asked():
    blocks = to_block_mask(full(), 4, block_size=2, mask_mod=lambda b, h, q, k: q < 0)
    assert from_block_mask(blocks).equals(full(), 4)
    # No partial block is left, so even the mask_mod of a slice is not needed.
    assert from_block_mask(blocks[0:1]).equals(full(), 4)


def test_a_part_of_the_queries():
    blocks = create_block_mask(causal_mod, 1, 1, 8, 8, device="cpu", BLOCK_SIZE=4)
    assert from_block_mask(blocks).equals(causal(), 2, 8, q_start=3)


def test_lists_without_full_blocks():
    # Every block is partial, and asks the mask_mod.
    counts, indices = torch.tensor([[[1, 2]]]).int(), torch.tensor([[[[0, 1], [1, 0]]]]).int()
    blocks = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=4, mask_mod=causal_mod, seq_lengths=(7, 7))
    assert blocks.full_kv_num_blocks is None
    assert from_block_mask(blocks).equals(causal(), 7)


@pytest.mark.parametrize("mask_mod", [two_lookups, one_lookup])
def test_an_index_of_unknown_size(mask_mod):
    with pytest.raises(RearviewError, match="uses the heads index without it"):
        from_mask_mod(mask_mod).to_bool(9)
    blocks = create_block_mask(mask_mod, 1, 1, 9, 9, device="cpu", BLOCK_SIZE=4)
    with pytest.raises(RearviewError, match="uses the heads index without it"):
        from_block_mask(blocks).to_bool(9)
    expected = create_mask(mask_mod, 1, 1, 9, 9, device="cpu")
    assert torch.equal(from_block_mask(blocks, heads=1).to_bool(9)[0, :1], expected[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: from_mask_mod(TWO_ARGUMENTS),
            r"a function \(b, h, q_idx, kv_idx\), got <lambda> \(too many positional",
        ),
        (lambda: from_mask_mod(NO_FUNCTION), r"a function \(b, h, q_idx, kv_idx\), got 'causal'"),
        (
            lambda: from_mask_mod(lambda b, h, q, k: q * 1.0).to_bool(2),
            r"a rule that returns a bool tensor, got torch.float32",
        ),
        (lambda: from_mask_mod(causal_mod, q_start=-1), r"q_start: expected an integer of at least 0"),
        (lambda: from_block_mask(TWO_ARGUMENTS), r"expected a FlexAttention BlockMask, got function"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(RearviewError, match=message):
        call()


def test_sizes_that_a_block_mask_does_not_have():
    blocks = create_block_mask(lambda b, h, q, k: q >= k, 2, 3, 4, 6, device="cpu", BLOCK_SIZE=2)
    mask = from_block_mask(blocks)
    assert (mask.batch, mask.heads) == (2, 3)
    with pytest.raises(
        RearviewError, match=r"expected queries at 0..7 over 8 keys, got a BlockMask for queries at 2..5 over 6"
    ):
        mask.to_bool(8)
    with pytest.raises(RearviewError, match="batch: expected 2, as in the block lists, got 4"):
        from_block_mask(blocks, batch=4)


def test_slices():
    blocks = create_block_mask(causal_mod, 2, 1, 8, 8, device="cpu", BLOCK_SIZE=4)
    with pytest.raises(Unsupported, match="partial blocks and its mask_mod raises: Cannot use mask_mod from a sliced"):
        from_block_mask(blocks[0])
    with pytest.raises(Unsupported, match="it was sliced: it has 1 of the 2 rows of blocks for its 8 queries"):
        from_block_mask(blocks[:, :, 0])
    mended = blocks[0]
    mended.mask_mod = causal_mod
    assert from_block_mask(mended).equals(causal(), 8)
