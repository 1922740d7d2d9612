"""Every kind of mask as a contract: a layer under the mask is PROVEN to keep it, and one without a mask LEAKS."""

import pytest
import torch
from torch import Tensor, nn

from rearview import (
    Mask,
    MaskedSelfAttention,
    along,
    audit,
    block_diffusion,
    causal,
    chunks,
    dense,
    documents,
    full,
    grid_window,
    ranges,
    shared_prefix,
    tree,
    window,
)
from rearview.models import GPT, GPTConfig

PARENTS = [-1, 0, 1, 2, 2, 4, 5, 1, 7, 8, 3, 10]
IDS = [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2]
MASKS = {
    "documents": lambda: causal() & documents(IDS),
    "tree": lambda: tree(PARENTS),
    "a window along a tree": lambda: along(tree(PARENTS), window(3)),
    "a window along documents": lambda: along(documents(IDS), window(3)),
    "shared prefix": lambda: shared_prefix(4, [4, 4]),
    "ranges": lambda: ranges([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], list(range(1, 13))),
    "dense": lambda: dense(torch.ones(12, 12, dtype=torch.bool).tril().triu(-3)),
    "chunks within documents": lambda: causal() & chunks(2, within=IDS),
    "grid": lambda: causal() & grid_window((3, 4), 3),
    "block diffusion": lambda: block_diffusion(6, 3),
}


class Layer(nn.Module):
    """One attention layer, whose mask is made before the model runs, or in every run."""

    def __init__(self, make, *, in_every_run: bool = False):
        super().__init__()
        self.embed, self.attention, self.head = nn.Embedding(50, 16), MaskedSelfAttention(16, 2), nn.Linear(16, 50)
        self.make, self.mask = make, None if in_every_run else make()
        self.attention.mask = full()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        mask: Mask = self.make() if self.mask is None else self.mask
        return self.head(x + self.attention(x, mask=mask))


@pytest.mark.parametrize("in_every_run", [False, True], ids=["made before", "made in every run"])
@pytest.mark.parametrize("name", MASKS)
def test_a_layer_under_the_mask_is_proven(name: str, in_every_run: bool):
    tokens = torch.randint(50, (2, 12))
    report = audit(Layer(MASKS[name], in_every_run=in_every_run), tokens, contract=MASKS[name]())
    assert report.verdict.value == "PROVEN", str(report)


@pytest.mark.parametrize("name", MASKS)
def test_a_layer_without_the_mask_leaks(name: str):
    report = audit(Layer(full), torch.randint(50, (2, 12)), contract=MASKS[name]())
    assert report.verdict.value == "LEAKS"


def test_answers_of_one_prompt_are_proven_to_be_separate():
    """The contract for training on several answers in one row; with plain causal attention they hear each other."""
    answers = shared_prefix(4, [4, 4])

    class Packed(nn.Module):
        def __init__(self, *, isolates: bool):
            super().__init__()
            self.model = GPT(GPTConfig(vocab_size=50, context=16, layers=2, heads=2, width=16))
            self.isolates = isolates

        def forward(self, tokens: Tensor) -> Tensor:
            paths = shared_prefix(4, [4, 4]) if self.isolates else None
            return self.model(tokens, paths=paths)

    tokens = torch.randint(50, (2, 12))
    assert audit(Packed(isolates=True), tokens, contract=answers).verdict.value == "PROVEN"
    leaking = audit(Packed(isolates=False), tokens, contract=answers)
    assert leaking.verdict.value == "LEAKS"
    assert "position 8 " in str(leaking)
