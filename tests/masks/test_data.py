"""Values that are no data of a mask: each is refused in a sentence that names the argument."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rearview import (
    RearviewError,
    causal,
    dense,
    documents,
    padding,
    per_head,
    prefix,
    ranges,
    shared_prefix,
    tree,
    window,
)
from rearview.masks.data import as_data, as_device, true_or_false
from rearview.masks.exchange import (
    from_additive,
    from_bool,
    from_cu_seqlens,
    from_flash,
    from_flashmask,
    from_huggingface,
    from_magi,
    from_mask_mod,
    from_sdpa,
    to_cu_seqlens,
    to_huggingface,
)

NESTED = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
NO_VALUES = torch.zeros(3, dtype=torch.long, device="meta")
TWO: Any = np.array([1, 2])
LARGE: Any = np.array([2**63], dtype=np.uint64)
FRACTION: Any = [1.5]

REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: documents(NESTED), r"^documents\(ids\): expected integer ids .*, got a nested tensor\."),
    (lambda: tree(torch.zeros(2, 2).to_sparse()), r"^tree\(parents\): .*, got a sparse_coo .*Convert it"),
    (lambda: dense(NESTED), r"^dense\(tensor\): expected a bool tensor, .*, got a nested tensor"),
    (lambda: from_bool(NESTED.bool(), true_means="heard"), r"^from_bool\(tensor\): .*, got a nested tensor"),
    (lambda: from_additive(NESTED), r"^from_additive\(tensor\): .*, got a nested tensor"),
    (lambda: from_additive(torch.zeros(2, 2).to_sparse()), r"^from_additive\(tensor\): .*Convert it with .to_dense"),
    (lambda: from_huggingface(torch.zeros(2, 2).to_sparse()), "^attention_mask: expected a plain tensor, got a sparse"),
    (lambda: from_huggingface(NO_VALUES.view(1, 3)), "^attention_mask: .*on meta, which has no values"),
    (lambda: prefix(NO_VALUES), r"^prefix\(n\): .*on meta, which has no values"),
    (lambda: padding(NO_VALUES), r"^padding\(lengths\): .*on meta, which has no values"),
    (lambda: shared_prefix(NO_VALUES, [[1]]), r"^shared_prefix\(prompt_length\): .*on meta, which has no values"),
    (lambda: from_cu_seqlens(NO_VALUES), "^cu_seqlens: .*on meta, which has no values"),
    (lambda: from_magi([[0, 2]], [[0, 2]], NO_VALUES, q_len=3, k_len=3), "^attn_type_map, k_ranges: .*has no values"),
    (lambda: from_magi([[0, 2]], [[0, 2]], FRACTION, q_len=3, k_len=3), r"^attn_type_map, k_ranges: .*, got \[1.5\]"),
    (lambda: per_head(torch.tensor(3)), r"^per_head\(masks\): expected a list of masks"),  # pyright: ignore
    (lambda: documents(LARGE), r"^documents\(ids\): .*, got a number above 2\*\*63 - 1"),
    (lambda: causal().spans(3, device="gpu"), "^device: expected a device that PyTorch can use here, .*, got 'gpu'"),
    (lambda: documents([0, 1]).to("gpu"), "^device: expected a device that PyTorch can use here, .*, got 'gpu'"),
    (lambda: documents(NO_VALUES).spans(3), r"^mask: expected data that have values, got documents\(<3 ids>\), whose"),
    (lambda: (causal() & documents(NO_VALUES)).to_bool(3), "^mask: expected data that have values, got documents"),
    (
        lambda: ranges(NO_VALUES, [1, 2, 3]),
        r"^ranges\(starts, ends\): expected two tensors on one device, got meta and",
    ),
    (lambda: causal().range_of_step(0), "^k_len: expected an integer of at least 1, got 0"),
    (lambda: causal().range_of_step("3"), "^k_len: expected an integer of at least 1, got '3'"),  # pyright: ignore
    (lambda: window(torch.tensor(True)), r"^window\(n\): .*, got tensor\(True\)"),  # pyright: ignore
    (lambda: window(torch.ones(2, 2)), r"^window\(n\): .*, got a float32 tensor of shape \[2, 2\]"),  # pyright: ignore
    (lambda: per_head(NESTED), r"^per_head\(masks\): expected a list of masks"),  # pyright: ignore
    (lambda: per_head(np.array("x")), r"^per_head\(masks\): expected a list of masks"),  # pyright: ignore
    (lambda: from_sdpa(NESTED, q_len=2, k_len=2), "^attn_mask: .*, got a nested tensor"),
    (
        lambda: from_sdpa(torch.zeros(2, 2).to_sparse(), q_len=2, k_len=2),
        "^attn_mask: .*, got a sparse_coo .*Convert it",
    ),
    (lambda: from_mask_mod(print).to_bool(2), "^mask_mod: .* returns a bool tensor, got NoneType"),  # pyright: ignore
    (lambda: causal().to_bool(3, device=TWO), r"^device: expected .*, got array\(\[1, 2\]\)"),  # pyright: ignore
    (lambda: causal().tiles(3, device="hpu"), "^device: expected .*, got 'hpu'"),
    (lambda: causal().to_additive(3, blocked="low"), "^blocked: expected a negative number .*, got 'low'"),  # pyright: ignore
    (lambda: from_additive(torch.zeros(2, 2), blocked="low"), "^blocked: expected a negative number"),  # pyright: ignore
    (lambda: from_flash(causal=TWO), r"^causal: expected True or False, got array"),  # pyright: ignore
    (lambda: from_flashmask(torch.zeros(1, 1, 2, 1).int(), causal=1), "^causal: expected True or False, got 1"),  # pyright: ignore
    (lambda: from_sdpa(is_causal=TWO, q_len=2, k_len=2), "^is_causal: expected True or False"),  # pyright: ignore
    (lambda: to_cu_seqlens(causal(), 3, causal=TWO), "^causal: expected True or False"),  # pyright: ignore
    (lambda: to_huggingface(causal(), 3, implementation=TWO), "^implementation: expected 'eager'"),  # pyright: ignore
]


@pytest.mark.parametrize(("attempt", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refusals(attempt: Callable[[], object], message: str):
    with pytest.raises(RearviewError, match=message):
        attempt()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_unsigned_numbers_are_numbers(dtype: type):
    ids: Any = np.array([1, 1, 2], dtype=dtype)
    lengths: Any = np.array([3, 1], dtype=dtype)
    assert documents(ids).equals(documents([1, 1, 2]), 3)
    assert padding(lengths).equals(padding([3, 1]), 3)
    assert ranges(ids, ids + 1).equals(ranges([1, 1, 2], [2, 2, 3]), 3)


def test_a_device_index_is_not_the_cpu():
    if not torch.accelerator.is_available():
        with pytest.raises(RearviewError, match=r"^device: expected a device that PyTorch can use here"):
            as_device(0)  # pyright: ignore[reportArgumentType]
    assert as_device(torch.device("meta")).type == "meta"


def test_quantized_numbers_are_no_data():
    # torch warns of it, once per process.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)
    with pytest.raises(RearviewError, match=r"^documents\(ids\): expected integer ids .*, got a qint8 tensor"):
        documents(quantized)


def test_what_is_data():
    assert as_data([1, 2], "ids", expected="integers").tolist() == [1, 2]
    assert true_or_false(False, "inside") is False
