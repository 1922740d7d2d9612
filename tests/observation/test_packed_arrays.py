"""The packed numbers of a page: exact in four bytes, three digits in two."""

import base64
import zlib

import pytest
import torch

from rearview.observation.views.packed_arrays import PackedArrays


def read(block: PackedArrays, entry: dict) -> torch.Tensor:
    """As data.js does it."""
    data = bytearray(zlib.decompress(base64.b64decode(block.text())))
    count = torch.Size(entry["shape"]).numel()
    if entry["code"] == "f4":
        return torch.frombuffer(data, dtype=torch.float32, count=count, offset=entry["at"]).view(entry["shape"])
    codes = torch.frombuffer(data, dtype=torch.int16, count=count, offset=entry["at"]).view(entry["shape"]).double()
    size = entry["largest"] * 2 ** ((codes.abs() - 1) / 32766 * 32 - 32)
    return torch.where(codes == 0, 0, codes.sign() * size).float()


def test_four_bytes_are_exact():
    block = PackedArrays(short=False)
    values = [torch.randn(2, 3, 5), torch.randn(1, 7)]
    entries = [block.add(each) for each in values]
    for each, entry in zip(values, entries, strict=True):
        assert torch.equal(read(block, entry), each)


def test_two_bytes_keep_three_digits():
    block = PackedArrays(short=True)
    values = torch.cat([torch.rand(500), torch.rand(500) * 1e-6, -torch.rand(50), torch.tensor([0.0, 1.0])])
    entry = block.add(values)
    # The next array begins at an aligned offset.
    after = block.add(torch.ones(3))
    assert after["at"] % 4 == 0
    found = read(block, entry)
    torch.testing.assert_close(found, values, rtol=4e-4, atol=2**-32)
    assert found[-2] == 0
    assert float(found[-1]) == pytest.approx(1.0, rel=1e-6)
    assert torch.equal(read(block, block.add(torch.zeros(4))), torch.zeros(4))
