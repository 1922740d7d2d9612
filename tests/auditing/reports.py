"""Reports of every verdict, for what draws them."""

import torch
from torch import Tensor, nn

from rearview import causal, documents
from rearview.auditing import Report, audit


class Peeks(nn.Module):
    """Looks one token ahead, inside two modules."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.blocks = nn.ModuleList([Ahead(), Ahead()])
        self.head = nn.Linear(6, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Ahead(nn.Module):
    """Each position hears itself and the next one."""

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.pad(x, (0, 0, 0, 1))[:, 1:]


def tokens(time: int = 8) -> Tensor:
    return torch.randint(20, (2, time), generator=torch.Generator().manual_seed(0))


def leaking() -> Report:
    torch.manual_seed(0)
    return audit(Peeks(), tokens())


def proven() -> Report:
    torch.manual_seed(0)
    return audit(nn.GRU(4, 4, batch_first=True), torch.randn(2, 8, 4))


def held() -> Report:
    torch.manual_seed(0)
    return audit(nn.GRU(4, 4, batch_first=True), torch.randn(2, 8, 4), prove=False)


def inconclusive() -> Report:
    """No position hears any other, so nothing could have been found."""
    torch.manual_seed(0)
    return audit(nn.Linear(4, 4), torch.randn(2, 8, 4))


def packed() -> Report:
    torch.manual_seed(0)
    ids = torch.arange(8) // 3
    return audit(nn.GRU(4, 4, batch_first=True), torch.randn(2, 8, 4), contract=causal() & documents(ids))
