"""Who competes: PyTorch's attention in the forms that a user would pick, FlexAttention, and rearview's engines.

>>> import torch
>>> from bench.cases import BASE_CPU, cases
>>> [rival.name for rival in contestants(cases(BASE_CPU)[0], torch.device("cpu"), flex=False)]
['SDPA is_causal', 'SDPA dense mask', 'rearview auto', 'rearview blocks', 'rearview sdpa']
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.cases import Case
from rearview import attend

PLAIN, DENSE, FLEX, NAIVE = "SDPA is_causal", "SDPA dense mask", "FlexAttention", "naive softmax"
AUTO, OURS = "rearview auto", "rearview"
NAIVE_PAIRS = 512 * 512
RECOMPILATIONS = 256

# (query, key, value) -> out
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Contestant:
    """`prepare` is what is done once for a mask: write it out, make its block lists, compile."""

    name: str
    prepare: Callable[[Case, torch.device], Attention]
    has_backward: bool = True

    @property
    def is_ours(self) -> bool:
        return self.name.startswith(OURS)

    @property
    def engine(self) -> str:
        """The engine of one of ours: "auto", "blocks", ..."""
        return self.name.removeprefix(OURS).strip()


def contestants(case: Case, device: torch.device, *, flex: bool) -> list[Contestant]:
    """Those that can say the case's mask, the rivals first."""
    on_cpu = device.type == "cpu"
    found = [Contestant(DENSE, _dense)]
    if case.plain is not None:
        found.insert(0, Contestant(PLAIN, _plain))
    if case.q_len * case.k_len <= NAIVE_PAIRS and case.q_len > 1:
        found.append(Contestant(NAIVE, _naive))
    if flex:
        found.append(Contestant(FLEX, _flex, has_backward=not on_cpu))
    found += [Contestant(f"{OURS} {engine}", partial(_ours, engine=engine)) for engine in ("auto", "blocks", "sdpa")]
    if flex:
        found.append(Contestant(f"{OURS} flex", partial(_ours, engine="flex"), has_backward=not on_cpu))
    return found


def _plain(case: Case, device: torch.device) -> Attention:
    return partial(F.scaled_dot_product_attention, **(case.plain or {}))


def _dense(case: Case, device: torch.device) -> Attention:
    return partial(F.scaled_dot_product_attention, attn_mask=case.dense(device))


def _naive(case: Case, device: torch.device) -> Attention:
    hidden = ~case.dense(device)

    def naive(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value

    return naive


def _flex(case: Case, device: torch.device) -> Attention:
    import torch._dynamo.config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Dynamo counts each mask as a recompilation of the same function and gives up after a few.
    torch._dynamo.config.recompile_limit = RECOMPILATIONS
    batch = case.batch if case.differs_by_item else None
    blocks = create_block_mask(case.rule, batch, None, case.q_len, case.k_len, device=device.type)
    # On a CPU the code that is generated for a dynamic length does not compile with documents (torch 2.13).
    return partial(torch.compile(flex_attention, dynamic=False, fullgraph=True), block_mask=blocks)


def _ours(case: Case, device: torch.device, *, engine: str) -> Attention:
    return partial(attend, mask=case.make_mask(), engine=engine)
