"""Calls of Rearview's public functions, run by a process that a benchmark controls line by line.

PYTHONPATH=<a source tree>/src python -P bench/measured_calls.py "causal 2k" 2
It prints `started` and makes the call once per line of its input: `run`, or `answer`, which prints numbers by which two
versions can be compared. It imports nothing else of `bench`, and only public names that every version has, so that it
runs on any source tree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from torch import Tensor

import rearview
from rearview import Mask, attend
from rearview.generation import generate
from rearview.models import GPT, GPTConfig

# Returns tensors that two correct versions agree on, up to rounding.
Call = Callable[[], list[Tensor]]


def attention(mask: Mask, length: int, *, dtype: torch.dtype = torch.float32, backward: bool = False, queries: int = 0,
              heads: int = 8, repeats: int = 1) -> Call:  # fmt: skip
    torch.manual_seed(0)
    query = torch.randn(1, heads, queries or length, 64, dtype=dtype, requires_grad=backward)
    key, value = (torch.randn(1, heads, length, 64, dtype=dtype, requires_grad=backward) for _ in range(2))

    def call() -> list[Tensor]:
        out = query
        for _ in range(repeats):
            out = attend(query, key, value, mask=mask)
        if backward:
            return [out.detach(), *torch.autograd.grad(out.sum(), [query, key, value])]
        return [out]

    return call


def packed(length: int, mean: int) -> list[int]:
    """Document ids: lengths around `mean`, the same in every process."""
    lengths = torch.randint(mean // 2, mean * 3 // 2, (2 * length // mean,), generator=torch.Generator().manual_seed(0))
    return torch.arange(len(lengths)).repeat_interleave(lengths)[:length].tolist()


def small_model() -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=65, context=256, layers=6, heads=6, width=384)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return model


def generation() -> Call:
    model = small_model()
    return lambda: [torch.tensor(generate(model, [1, 2, 3, 4], max_new_tokens=60, temperature=0).finish().tokens)]


def training() -> Call:
    model, ids = small_model(), torch.arange(4 * 256).reshape(4, 256) % 65

    def call() -> list[Tensor]:
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return [loss.detach(), torch.stack([each.norm() for each in gradients])]

    return call


def observation() -> Call:
    model, ids = small_model(), torch.arange(256)[None] % 65

    def call() -> list[Tensor]:
        with torch.no_grad(), rearview.observe(model):
            return [model(ids)]

    return call


def auditing() -> Call:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=65, context=64, layers=2, heads=2, width=32)).eval()
    return lambda: [torch.tensor(float(rearview.audit(model, torch.arange(24)[None]).verdict.name == "PROVEN"))]


def lowering() -> Call:
    ids = packed(100_000, 400)

    def call() -> list[Tensor]:
        spans = (rearview.causal() & rearview.documents(ids)).spans(len(ids))
        return [spans.starts.double().mean(), spans.ends.double().mean()]

    return call


def _causal() -> Mask:
    return rearview.causal()


CALLS: dict[str, Callable[[], Call]] = {
    "causal 2k": lambda: attention(_causal(), 2048),
    "causal 2k, backward": lambda: attention(_causal(), 2048, backward=True),
    "causal 2k, bfloat16": lambda: attention(_causal(), 2048, dtype=torch.bfloat16),
    "causal 2k, bfloat16, backward": lambda: attention(_causal(), 2048, dtype=torch.bfloat16, backward=True),
    "causal 512, 2 heads": lambda: attention(_causal(), 512, heads=2),
    "window 256 of 4k": lambda: attention(_causal() & rearview.window(256), 4096),
    "documents 4k, backward": lambda: attention(_causal() & rearview.documents(packed(4096, 400)), 4096, backward=True),
    "prefix 500 of 2k": lambda: attention(rearview.prefix(500), 2048),
    "one token over 4k": lambda: attention(_causal(), 4096, queries=1, repeats=10),
    "16 tokens, 100 calls": lambda: attention(_causal(), 16, heads=2, repeats=100),
    "ranges of 100,000 tokens": lowering,
    "training step, 10.6 M": training,
    "generate 60 tokens, 10.6 M": generation,
    "observe 256 tokens, 10.6 M": observation,
    "audit a GPT of 2 layers": auditing,
}


def main() -> None:
    name, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    call = CALLS[name]()
    call()
    print("started", rearview.__file__, flush=True)
    for line in sys.stdin:
        found = call()
        print(json.dumps([figure(each) for each in found]) if line.strip() == "answer" else "done", flush=True)


def figure(tensor: Tensor) -> list[float]:
    """The mean, and the mean with weights that tell the elements apart."""
    numbers = tensor.detach().double().flatten()
    return [numbers.mean().item(), (numbers * torch.arange(1, len(numbers) + 1)).mean().item() / len(numbers)]


if __name__ == "__main__":
    main()
