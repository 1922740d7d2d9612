"""The flex engine as users get it: compiled. The conformance grid runs it uncompiled on a CPU."""

import shutil

import pytest
import torch

from rearview import Mask, attend, causal, documents, full, prefix, window
from rearview.attention.engines import flex

pytestmark = [
    pytest.mark.skipif(not shutil.which("g++"), reason="FlexAttention on a CPU needs a C++ compiler"),
    # Inductor itself, on import.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_one_compiled_kernel_serves_masks_of_as_many_ranges():
    query, key, value = torch.randn(3, 1, 2, 160, 16).unbind()
    masks: list[Mask] = [causal() & documents(torch.arange(160) // 50), causal() & window(20), window(9, ahead=3)]
    for mask in masks:
        got = attend(query, key, value, mask=mask, engine="flex")
        expected = attend(query.double(), key.double(), value.double(), mask=mask, engine="reference")
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-5)
    # A new packing of documents is new data, not new code.
    with torch._dynamo.config.patch(error_on_recompile=True):
        mask = causal() & documents(torch.arange(160) // 31)
        got = attend(query, key, value, mask=mask, engine="flex")
    expected = attend(query.double(), key.double(), value.double(), mask=mask, engine="reference")
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-5)


def test_masks_without_a_query_axis_and_no_mask_after_a_mask():
    # Torch 2.13 fails on tables of one number with odd strides, and on None where a BlockMask was compiled.
    query, key, value = torch.randn(3, 1, 2, 160, 16).unbind()
    for mask in (prefix(55), full(), ~prefix(55), ~full()):
        got = attend(query, key, value, mask=mask, engine="flex")
        expected = attend(query.double(), key.double(), value.double(), mask=mask, engine="reference")
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-5)


def test_a_block_mask_is_made_once_for_its_ranges(monkeypatch):
    monkeypatch.setattr(flex, "_compiled", lambda function, device: lambda *tensors, block_mask, **options: block_mask)
    query = torch.randn(1, 2, 160, 16)
    mask = (causal() & window(20)) | prefix(2)
    made = [attend(query, query, query, mask=mask, engine="flex") for _ in range(2)]
    assert made[0] is made[1]
    assert attend(query, query, query, mask=(causal() & window(20)) | prefix(2), engine="flex") is not made[0]
