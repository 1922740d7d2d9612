"""A model on several processes: a copy on each, kept equal by DDP; or in shards, by FSDP2.

Both sum the gradients. `Division` has already divided each loss by the number of all targets, so a mean over the
processes would divide twice; and FSDP2's mean (`ReduceOp.AVG`) is silently a sum on gloo (pytorch issue 162338).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from rearview.models.block import Block
from rearview.training.processes.world import World


class Copies:
    """The model as it is on every process; gradients are summed while the backward pass runs."""

    def __init__(self, model: nn.Module, world: World):
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        group = world.ranks.get_group()
        ids = [world.device] if world.device.type == "cuda" else None
        self.module = DistributedDataParallel(model, device_ids=ids, process_group=group)

        # Without annotations: DDP compares them with its own, and those of this file are strings.
        def summed(state, bucket):
            work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
            assert work is not None
            return work.get_future().then(lambda future: future.value()[0])

        self.module.register_comm_hook(None, summed)

    @contextmanager
    def summing(self, last: bool) -> Iterator[None]:
        """Within: gradients are summed over the processes, if this is the last batch of a step."""
        if last:
            yield
        else:
            with self.module.no_sync():
                yield


class Shards:
    """A part of each parameter, gradient and moment on every process; a block is gathered when it is used."""

    def __init__(self, model: nn.Module, world: World):
        from torch.distributed.fsdp import FSDPModule, fully_shard

        for block in blocks_of(model):
            fully_shard(block, mesh=world.ranks)
        fully_shard(model, mesh=world.ranks)
        assert isinstance(model, FSDPModule)
        self.module: nn.Module = model
        self._sharded = model
        for part in model.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)

    @contextmanager
    def summing(self, last: bool) -> Iterator[None]:
        """Within: gradients are summed over the processes, if this is the last batch of a step."""
        self._sharded.set_requires_gradient_sync(last)
        yield


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that are gathered one by one.

    A T5 computes the keys of its cross attention outside of the blocks of its decoder, so these are gathered with the
    rest of the model.
    """
    return [module for module in model.modules() if isinstance(module, Block) and module.cross is None]


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process has; the tensor itself, if it has all of it."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def part_like(tensor: Tensor, value: Tensor) -> Tensor:
    """The part of `value` that this process has of `tensor`, which has the same shape."""
    if local(tensor) is tensor:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(tensor, DTensor)
    # Every process has all of the value: nothing is sent.
    value = value.to(tensor.device)
    return distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None).to_local()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every process must ask."""
    full_tensor = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()
