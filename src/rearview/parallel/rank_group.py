"""The ranks that share a sequence: a process group of torch.distributed, and this process's place in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from rearview.errors import BadArgument

# What a user has: one axis of a mesh, such as mesh["cp"], or a process group.
Ranks: TypeAlias = DeviceMesh | ProcessGroup


@dataclass(frozen=True, eq=False)
class RankGroup:
    """`rank` is this process's rank within the group, from 0 to size - 1."""

    group: ProcessGroup
    rank: int
    size: int

    # A process group cannot be copied; a copy of a model runs on the same ranks.
    def __deepcopy__(self, memo: object) -> RankGroup:
        return self

    @classmethod
    def of(cls, ranks: Ranks | RankGroup, *, size: int | None = None) -> RankGroup:
        """The group of a 1-D mesh or of a process group; `size` is the number of ranks that a layout was made for."""
        if isinstance(ranks, RankGroup):
            return ranks
        expected = 'one axis of a DeviceMesh, such as mesh["cp"], or a process group'
        if isinstance(ranks, DeviceMesh):
            if ranks.ndim != 1:
                names = ranks.mesh_dim_names or ()
                advice = f"Choose an axis: mesh[{names[-1]!r}]." if names else "Give the axes of the mesh names."
                raise BadArgument("mesh", expected=expected, got=f"a mesh of {ranks.ndim} axes", advice=advice)
            found = ranks.get_group()
        elif isinstance(ranks, ProcessGroup):
            found = ranks
        else:
            raise BadArgument("mesh", expected=expected, got=type(ranks).__name__)
        rank, count = dist.get_rank(found), dist.get_world_size(found)
        if rank < 0:
            raise BadArgument("mesh", expected="a group that this process belongs to", got="another group")
        if size is not None and count != size:
            advice = "Make the layout with shard(mask, length, mesh)."
            raise BadArgument("mesh", expected=f"{size} ranks, as the layout has", got=count, advice=advice)
        return cls(found, rank, count)
