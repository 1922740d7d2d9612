"""What the output of an op heard, by time position: kept for every op, so that the first forbidden one can be named.

>>> import torch
>>> from rearview.audit.proof.sets import sources
>>> by_time(torch.zeros(1, 3, 7), sources(batch=1, time=3).unsqueeze(2), batch=1, time=3).int().tolist()
[[[1, 0, 0], [0, 1, 0], [0, 0, 1]]]
>>> by_time(torch.zeros(1, 3, 3), sources(batch=1, time=3).unsqueeze(2), batch=1, time=3) is None    # scores
True
"""

from torch import Tensor

from rearview.audit.proof.sets import EXTRA, heard


def by_time(tensor: Tensor, sets: Tensor, *, batch: int, time: int) -> Tensor | None:
    """[batch or 1, time, sources], if the tensor has one axis as long as time, or as batch times time.

    Scores have two such axes: that a query has met every key says nothing before the softmax.
    """
    axes = [dim for dim, size in enumerate(tensor.shape) if size == time]
    flat = [dim for dim, size in enumerate(tensor.shape) if size == batch * time and batch > 1]
    if len(axes) + len(flat) != 1 or not heard(sets):
        return None
    keep = flat or axes
    if not flat and batch > 1 and axes[0] > 0 and tensor.shape[0] == batch:
        keep = [0, *axes]
    others = [dim for dim in range(tensor.dim()) if dim not in keep]
    rows = sets[..., :-EXTRA].any(dim=others) if others else sets[..., :-EXTRA]
    if flat:
        return rows.expand(batch * time, -1).reshape(batch, time, -1)
    per_item = len(keep) == 2
    rows = rows if per_item else rows.unsqueeze(0)
    return rows.expand(batch if per_item else 1, time, -1)
