"""Rows that are sorted or selected by value: what comes back to its place is exact, what mixes rows is never missed."""

import pytest
import torch
from torch import Tensor, nn

from rearview.auditing.proof import prove

T, SIZE, EXPERTS = 9, 4, 3
ROUTER = nn.Parameter(torch.randn(SIZE, EXPERTS, generator=torch.Generator().manual_seed(0)))
WEIGHTS = nn.Parameter(torch.randn(EXPERTS, SIZE, SIZE, generator=torch.Generator().manual_seed(1)))


def grouped(x: Tensor, *, other_offsets: bool = False, by_place: bool = False, top: int = 2) -> Tensor:
    """Tokens [T, SIZE] sorted by expert, one product for all, and back: as transformers does it."""
    score, expert = (x @ ROUTER).softmax(-1).topk(top, dim=-1)
    keys, order = torch.sort(expert.reshape(-1))
    rows = x[order // top]
    counted = torch.sort((x @ ROUTER).argmin(-1).repeat(top))[0] if other_offsets else keys
    counts = torch.histc(counted.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
    rows = torch.ops.aten._grouped_mm(rows, WEIGHTS, offs=counts.cumsum(0, dtype=torch.int32))
    if by_place:
        rows = rows * torch.linspace(0, 1, len(rows))[:, None]
    rows = rows * score.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return rows[back].view(T, top, SIZE).sum(1)


def selected(x: Tensor, body) -> Tensor:
    expert = (x @ ROUTER).argmax(-1)
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        (at,) = torch.where(expert == e)
        body(out, at, x[at] @ WEIGHTS[e], expert)
    return out


def add(out, at, rows, expert):
    out.index_add_(0, at, rows)


def pairs(x: Tensor) -> Tensor:
    """Both places of a token's top two experts, as [token, place] of a mask."""
    score, expert = (x @ ROUTER).softmax(-1).topk(2, dim=-1)
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        token, place = torch.where(expert == e)
        out.index_add_(0, token, score[token, place, None] * (x[token] @ WEIGHTS[e]))
    return out


def gathered_weights(x: Tensor) -> Tensor:
    """Tokens sorted by expert, each with a copy of the weights of its expert."""
    score, expert = (x @ ROUTER).softmax(-1).topk(2, dim=-1)
    order = expert.reshape(-1).argsort(stable=True)
    rows = torch.einsum("nf,nfg->ng", x[order // 2], WEIGHTS[expert.reshape(-1)[order]])
    return torch.zeros_like(x).index_add(0, order // 2, rows * score.reshape(-1)[order, None])


def prove_rows(run):
    return prove(lambda x: run(x[0])[None], torch.randn(1, T, SIZE, generator=torch.Generator().manual_seed(2)))


EACH_ITS_OWN = {
    "grouped": grouped,
    "grouped, one expert": lambda x: grouped(x, top=1),
    "index_add": lambda x: selected(x, add),
    "assigned": lambda x: selected(x, lambda out, at, rows, expert: out.__setitem__(at, rows)),
    "added in place": lambda x: selected(x, lambda out, at, rows, expert: out.__setitem__(at, out[at] + rows)),
    "pairs": pairs,
    "gathered weights": gathered_weights,
    "by a mask": lambda x: torch.zeros_like(x).index_put(((m := x.sum(-1) > 0),), torch.relu(x[m])),
}


@pytest.mark.parametrize("run", EACH_ITS_OWN.values(), ids=EACH_ITS_OWN)
def test_each_token_hears_itself(run):
    proof = prove_rows(run)
    assert torch.equal(proof.matrix(), torch.eye(T).bool())
    assert not proof.unknown_ops
    assert not proof.value_escapes


MIXED = {
    "offsets of other keys": lambda x: grouped(x, other_offsets=True),
    "by place": lambda x: grouped(x, by_place=True),
    "a sum over the selected": lambda x: selected(x, lambda o, at, rows, e: add(o, at, rows - rows.mean(0), e)),
    "a norm over the selected": lambda x: selected(x, lambda o, at, rows, e: add(o, at, rows.softmax(0), e)),
    "their number": lambda x: selected(x, lambda o, at, rows, e: add(o, at, rows / len(at), e)),
    "their order": lambda x: selected(x, lambda o, at, rows, e: add(o, at, rows.flip(0), e)),
    "their transpose": lambda x: selected(x, lambda o, at, rows, e: add(o, at, rows @ (rows.mT @ rows), e)),
    "only the first": lambda x: selected(x, lambda o, at, rows, e: add(o, at[:1], rows[:1], e)),
    "to the place of another": lambda x: selected(x, lambda o, at, rows, e: add(o, at.flip(0), rows, e)),
    "to a later place": lambda x: selected(x, lambda o, at, rows, e: add(o, (at + 1) % T, rows, e)),
    "to a place by value": lambda x: selected(x, lambda o, at, rows, e: add(o, e[at], rows, e)),
    "returned as they are": lambda x: x[x.sum(-1) > -99],
    "written in parts": lambda x: selected(x, lambda o, at, rows, e: (rows[:1].zero_(), add(o, at, rows, e))),
    "read by length": lambda x: selected(x, lambda o, at, rows, e: (rows[:, :1].mul_(2), o.add_(rows.shape[0]))),
}


def test_a_selection_of_no_rows_may_have_any_width():
    """Two rows that are joined for a product mix, also where this run selects none."""

    def joined(x: Tensor) -> Tensor:
        out, chosen = x.clone(), x.sum(-1) > 99
        out[chosen] = (x[chosen].view(-1, 2 * SIZE) @ torch.ones(2 * SIZE, 2 * SIZE)).view(-1, SIZE)
        return out

    assert prove_rows(joined).hears.all()


@pytest.mark.parametrize("run", MIXED.values(), ids=MIXED)
def test_what_mixes_rows_is_not_missed(run):
    proof = prove_rows(run)
    if run is MIXED["to a later place"]:
        wanted = torch.eye(T).bool().roll(1, 0)
        assert not (wanted & ~proof.matrix()).any()
        assert not proof.within(torch.eye(T).bool())
    else:
        assert proof.hears.all()
