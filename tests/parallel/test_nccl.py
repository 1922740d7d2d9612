"""A layout of one rank on NCCL: the collectives run on a GPU."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rearview import attend, causal, documents
from rearview.parallel import shard

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and dist.is_nccl_available()), reason="needs a GPU and NCCL"
)


def test_one_rank_on_nccl(tmp_path: Path):
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        everyone = dist.group.WORLD
        assert everyone is not None
        length = 1000
        mask = causal() & documents(torch.arange(length) // 300)
        inputs = [torch.randn(1, 4, length, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        whole = [x.clone().requires_grad_() for x in inputs]
        expected = attend(*whole, mask=mask)
        expected.float().square().sum().backward()
        layout = shard(mask, length, everyone)
        mine = [layout.split(x, dim=2).requires_grad_() for x in inputs]
        with layout.on():
            out = attend(*mine, mask=mask)
            out.float().square().sum().backward()
        torch.testing.assert_close(layout.join(out.detach(), dim=2), expected.detach())
        for local, other in zip(mine, whole, strict=True):
            assert local.grad is not None
            assert other.grad is not None
            torch.testing.assert_close(local.grad, other.grad, atol=2e-2, rtol=2e-2)
    finally:
        dist.destroy_process_group()
