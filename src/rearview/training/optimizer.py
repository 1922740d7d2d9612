"""AdamW with weight decay on matrices only, and with clipping of the gradients.

>>> import torch
>>> from torch import nn
>>> layer = nn.Linear(2, 2)
>>> optimizer = Optimizer(layer, weight_decay=0.1, betas=(0.9, 0.99), clip=1.0)
>>> layer(torch.ones(1, 2)).sum().backward()
>>> round(float(optimizer.step(lr=0.1)), 3)
2.449
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from rearview.errors import BadFile
from rearview.training.processes.replication import local, part_like
from rearview.training.processes.world import World

FUSED_ON = ("cpu", "cuda")
EPSILON = 1e-8


@dataclass(frozen=True)
class Moments:
    """The state of AdamW for one parameter: the number of steps, and the means of the gradient and of its square."""

    step: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor

    @classmethod
    def of(cls, parameter: Tensor, *, fused: bool) -> Moments:
        """The state before the first step."""
        counted_on = parameter.device if fused else "cpu"
        zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return cls(torch.zeros((), dtype=torch.float32, device=counted_on), zeros, zeros.clone())


class Optimizer:
    """AdamW, fused where torch has a fused kernel. Gradients are clipped to the norm `clip`; 0 for no clipping.

    It calls torch's functional AdamW: creating a `torch.optim.AdamW` loads the compiler, which takes more than a
    second, and each of its steps takes a tenth of a millisecond more.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weight_decay: float,
        betas: tuple[float, float],
        clip: float,
        world: World | None = None,
    ):
        self.clip, self.betas = clip, betas
        # The parameters of a model in shards are on several processes: each updates its own part.
        self._world = world if any(local(parameter) is not parameter for parameter in model.parameters()) else None
        self.named = dict(model.named_parameters())
        self._all = list(self.named.values())
        self._fused = self._all[0].device.type in FUSED_ON
        self._moments = [Moments.of(parameter, fused=self._fused) for parameter in self._all]
        # Vectors are biases and the gains of norms, which are not decayed.
        self._decays = [weight_decay if parameter.ndim >= 2 else 0.0 for parameter in self._all]
        self._no_inf = torch.zeros((), device=self._all[0].device)

    @torch.no_grad()
    def step(self, lr: float) -> Tensor:
        """Update the parameters and clear the gradients; returns the norm of the gradients before clipping."""
        norm = self._norm([local(parameter.grad) for parameter in self._all if parameter.grad is not None])
        scale = None
        if self.clip and self._fused:
            # The fused kernel divides gradients by a scale as it reads them (meant for scaled losses), so clipping
            # takes no additional pass over the gradients.
            scale = (norm / self.clip).clamp_(min=1.0)
        elif self.clip:
            nn.utils.clip_grads_with_norm_([local(parameter) for parameter in self._all], self.clip, norm)
        for decay in sorted(set(self._decays)):
            self._update(decay, lr, scale)
        for parameter in self._all:
            parameter.grad = None
        return norm

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        norm = nn.utils.get_total_norm(gradients)
        return norm if self._world is None else self._world.sum(norm.square()).sqrt()

    def _update(self, decay: float, lr: float, scale: Tensor | None) -> None:
        parameters, gradients, moments = [], [], []
        for parameter, kept, own in zip(self._all, self._moments, self._decays, strict=True):
            # A parameter without a gradient took no part in the loss.
            if own == decay and parameter.grad is not None:
                parameters.append(local(parameter))
                gradients.append(local(parameter.grad))
                moments.append(Moments(*map(local, vars(kept).values())))
        if not parameters:
            return
        adamw(
            parameters,
            gradients,
            [kept.exp_avg for kept in moments],
            [kept.exp_avg_sq for kept in moments],
            [],
            [kept.step for kept in moments],
            fused=self._fused,
            foreach=False,
            grad_scale=scale,
            found_inf=None if scale is None else self._no_inf,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=decay,
            eps=EPSILON,
            maximize=False,
        )

    def state(self) -> dict[str, Tensor]:
        """The state that a checkpoint keeps, by the names of the parameters."""
        return {
            f"{what}.{name}": value
            for name, kept in zip(self.named, self._moments, strict=True)
            for what, value in vars(kept).items()
        }

    def load(self, state: dict[str, Tensor], path: object) -> None:
        """Restore what `state` returned. `path` names the file in errors."""
        own = self.state()
        for name, value in state.items():
            if name not in own or own[name].shape != value.shape or own[name].dtype != value.dtype:
                raise BadFile(path, f"does not belong to this model: {name} {list(value.shape)}, {value.dtype}.")
        if missing := sorted(own.keys() - state.keys()):
            raise BadFile(path, f"does not belong to this model: it has no {missing[0]}.")
        # Copied: the tensors of a file are not aligned, and the last bits of sums depend on alignment.
        for name, value in state.items():
            local(own[name]).copy_(part_like(own[name], value))
