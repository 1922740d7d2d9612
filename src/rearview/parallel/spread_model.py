"""SpreadModel: a model on several ranks as one module, which takes and returns whole sequences; for audits and tests.

    from rearview import audit, causal
    report = audit(SpreadModel(model, mesh["cp"]), tokens, contract=causal())    # on every rank

Training needs no such module: there, losses are computed from rows, and no rank holds a whole sequence.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument
from rearview.masks import Mask, causal
from rearview.parallel.rank_group import RankGroup, Ranks
from rearview.parallel.sharding import shard


class SpreadModel(nn.Module):
    """`model` on a layout of each input's length. All ranks must call it with the same inputs.

    Args:
        model: a model of Rearview, or of transformers with attn_implementation="rearview".
        mesh: one axis of a DeviceMesh, such as `mesh["cp"]`, or a process group.
        mask: the mask that the layout is made for, or one per layer.
        narrow: `layout.on(mask=...)`: narrows the mask of every call, for packed documents or padding.
        how: as in `shard`.

    Tensors that are keyword arguments and have the length of the sequence along axis 1 are cut too. A model that takes
    `position_ids`, and is given none, gets the positions of its rows.
    """

    # An audit must make the same calls on every rank: it searches for no place, and takes no time limit.
    needs_every_rank = True

    def __init__(
        self,
        model: nn.Module,
        mesh: Ranks,
        mask: Mask | Sequence[Mask] = causal(),
        *,
        narrow: Mask | None = None,
        how: str = "best",
    ):
        super().__init__()
        self.model, self.mask, self.narrow, self.how = model, mask, narrow, how
        self.ranks = RankGroup.of(mesh)
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def forward(self, tokens: Tensor, **options: object) -> Tensor:
        """The output of the model [batch, time, ...] (of transformers, its logits), on every rank."""
        if not isinstance(tokens, Tensor) or tokens.ndim < 2:
            got = list(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise BadArgument("tokens", expected="a tensor [batch, time, ...] with the whole sequence", got=got)
        length = tokens.shape[1]
        layout = shard(self.mask, length, self.ranks, how=self.how)
        if self._takes_positions and options.get("position_ids") is None:
            options["position_ids"] = torch.arange(length, device=tokens.device).unsqueeze(0)
        for name, value in options.items():
            if isinstance(value, Tensor) and value.ndim > 1 and value.shape[1] == length:
                options[name] = layout.split(value)
        with layout.on(mask=self.narrow):
            out = self.model(layout.split(tokens), **options)
        out = getattr(out, "logits", out)
        if not isinstance(out, Tensor):
            raise BadArgument("model", expected="a model that returns a tensor or logits", got=type(out).__name__)
        return layout.join(out)
