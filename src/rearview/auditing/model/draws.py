"""Random draws that do not depend on how many numbers were drawn before.

>>> import torch
>>> from rearview.auditing.model.draws import FixedDraws
>>> dropout = torch.nn.Dropout(0.5)
>>> with FixedDraws(1):
...     few, many = dropout(torch.ones(2, 4)), dropout(torch.ones(3, 4))
>>> torch.equal(few, many[:2])
True

A generator gives each draw the next numbers of one sequence. Where the number of draws depends on data (an expert with
dropout, which draws a mask for the tokens that it got; a ReLU with random slopes), a change of one token shifts all
later draws, and outputs move that have heard nothing. Here a draw depends only on its module, its line and the position
in the last axis, so every row gets the same numbers. An output that still moves has heard something.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from rearview.auditing.model.dispatch import EveryOp
from rearview.auditing.model.module_stack import ModuleStack
from rearview.auditing.user_code import current_line

# With the first, every draw is the median: dropout below 0.5 keeps everything.
SEEDS = (0, 1, 2)

Draw = Callable[[Tensor, dict[str, Any]], Tensor]


def _uniform(u: Tensor, given: dict[str, Any]) -> Tensor:
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return low + u * (high - low)


def _normal(u: Tensor, given: dict[str, Any]) -> Tensor:
    standard = 2**0.5 * torch.erfinv((2 * u - 1).clamp(-1 + 1e-9, 1 - 1e-9))
    return given.get("mean", 0.0) + given.get("std", 1.0) * standard


def _exponential(u: Tensor, given: dict[str, Any]) -> Tensor:
    return -torch.log1p(-u) / given.get("lambd", 1.0)


def _integers(u: Tensor, given: dict[str, Any]) -> Tensor:
    low = given.get("low", given.get("from")) or 0
    high = given.get("high", given.get("to")) or 2**24
    return (low + u * (high - low)).floor()


def _bernoulli(u: Tensor, given: dict[str, Any]) -> Tensor:
    p = given.get("p")
    # With no p, or None, the tensor itself holds the probabilities.
    return (u < (given["self"] if p is None else p)).double()


DRAWS: dict[str, Draw] = {
    "rand": _uniform,
    "rand_like": _uniform,
    "uniform": _uniform,
    "uniform_": _uniform,
    "randn": _normal,
    "randn_like": _normal,
    "normal": _normal,
    "normal_": _normal,
    "exponential_": _exponential,
    "randint": _integers,
    "randint_like": _integers,
    "random_": _integers,
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli,
}


class FixedDraws(EveryOp):
    """While it is entered, a draw depends on the seed, the module, the line and the position in the last axis."""

    def __init__(self, seed: int, model: object = None):
        super().__init__()
        self.seed = seed
        self.modules = ModuleStack(model)

    def __enter__(self) -> Self:
        self.modules.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.modules.__exit__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        formals = func._schema.arguments
        # Torch leaves out arguments that have their default, as the 0.5 of dropout.
        given = {formal.name: formal.default_value for formal in formals if formal.has_default_value()}
        given |= dict(zip((formal.name for formal in formals), args, strict=False)) | kwargs
        if name == "native_dropout":
            return self._dropout(given["input"], given["p"], given.get("train"))
        if name.startswith("rrelu_with_noise"):
            return self._leaky(given, in_place=name.endswith("_"))
        if name == "multinomial":
            weights = given["self"].double()
            chosen = (weights.log() - (-self._row(name, weights).log()).log()).topk(given["num_samples"], -1)
            return chosen.indices
        # Any other op draws the same each time it runs at this line.
        torch.manual_seed(self._key(name))
        before = given["self"].clone() if name == "bernoulli" else None
        out = func(*args, **kwargs)
        if name in DRAWS and isinstance(out, Tensor):
            given = given if before is None else {**given, "self": before}
            out.copy_(DRAWS[name](self._row(name, out), given).expand(out.shape))
        return out

    def _dropout(self, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
        kept = (self._row("dropout", x) >= p if train or train is None else torch.tensor(True)).expand(x.shape)
        scale = 1.0 / (1.0 - p) if p < 1 and (train or train is None) else 1.0
        return x * kept.to(x.device) * scale, kept.to(x.device)

    def _leaky(self, given: dict[str, Any], *, in_place: bool) -> Tensor:
        x, low, high = given["self"], given.get("lower", 0.125), given.get("upper", 1 / 3)
        u = self._row("rrelu", x) if given.get("training") else torch.tensor(0.5)
        slope = torch.where(x <= 0, (low + u * (high - low)).to(x), torch.ones_like(x))
        given["noise"].copy_(slope)
        return x.mul_(slope) if in_place else x * slope

    def _row(self, name: str, tensor: Tensor) -> Tensor:
        """Uniform numbers, one for each entry of the last axis."""
        size = tensor.shape[-1] if tensor.ndim else 1
        if self.seed == 0:
            return torch.full((size,), 0.5, dtype=torch.float64, device=tensor.device)
        generator = torch.Generator().manual_seed(self._key(name))
        return torch.rand(size, dtype=torch.float64, generator=generator).to(tensor.device)

    def _key(self, name: str) -> int:
        site = (self.seed, self.modules.innermost.path, *current_line(), name)
        return zlib.crc32(repr(site).encode())
