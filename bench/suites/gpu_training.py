"""A training step at 124 million parameters on a GPU, with packed documents, compiled.

Ours is `Trainer`, as `rearview train` runs it. Its rivals are a plain model on FlexAttention with a BlockMask per step,
and the same on SDPA without masks between documents, which computes something else and is there for scale.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.suites.gpu_timing import kernel_us
from bench.suites.plain_gpt import PlainGPT
from rearview.models import GPT, GPTConfig
from rearview.text import ByteTokenizer
from rearview.training import TextData, TrainConfig
from rearview.training.trainer import Trainer

VOCABULARY, CONTEXT, LAYERS, HEADS, WIDTH, BATCH = 50304, 4096, 12, 12, 768, 4
WARM_UP, ROUNDS, STEPS = 4, 5, 4
# Documents of 100 to 3,000 tokens, many short, as in real text.
DOCUMENTS = 4000


def data() -> TextData:
    generator = torch.Generator().manual_seed(0)
    lengths = (100 + 2900 * torch.rand(DOCUMENTS, generator=generator) ** 3).int().tolist()
    letters = torch.randint(97, 123, (sum(lengths),), generator=generator).to(torch.uint8).numpy().tobytes().decode()
    texts, start = [], 0
    for length in lengths:
        texts.append(letters[start : start + length])
        start += length
    return TextData.of(texts, ByteTokenizer())


def stepped(*, which: str, batch: int = BATCH, compile: bool = True, ready: Callable[[], None] = lambda: None) -> dict:
    """Milliseconds per step, the median of rounds of steps, and the losses.

    `ready` is called when everything is compiled.
    """
    torch.manual_seed(0)
    config = TrainConfig(steps=1000, batch=batch, precision="bfloat16", compile=compile, sample_every=0)
    text = data()
    model = GPT(GPTConfig(vocab_size=VOCABULARY, context=CONTEXT, layers=LAYERS, heads=HEADS, width=WIDTH)).cuda()
    trainer = Trainer(model, text, config)
    step = partial(_step, trainer) if which == "ours" else _rival(which, trainer.batches, config)
    if which != "ours":
        del model, trainer
    losses = [step(number) for number in range(1, WARM_UP + 1)]
    ready()
    samples = []
    for first in range(WARM_UP + 1, WARM_UP + 1 + ROUNDS * STEPS, STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        # As in training, the host prepares a step while the GPU computes the one before.
        losses += [step(number) for number in range(first, first + STEPS)]
        torch.cuda.synchronize()
        samples.append(1000 * (time.perf_counter() - start) / STEPS)
    ms = statistics.median(samples)
    tokens_per_s, memory = 1000 * batch * CONTEXT / ms, torch.cuda.max_memory_allocated()
    return {"which": which, "ms": ms, "tokens_per_s": tokens_per_s, "losses": [float(x) for x in losses],
            "memory": memory, "share": 6 * weights_in_products() * tokens_per_s / matrix_rate()}  # fmt: skip


def weights_in_products() -> int:
    """The weights that every token is multiplied with, once forward and twice backward; without attention itself.

    >>> weights_in_products() // 10**6
    123
    """
    return 12 * LAYERS * WIDTH**2 + VOCABULARY * WIDTH


def matrix_rate(size: int = 8192) -> float:
    """Operations per second of one large product of matrices in bfloat16, on this GPU as it is now."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2e6 * size**3 / kernel_us({"product": lambda: a @ b})["product"]


def _step(trainer: Trainer, number: int) -> Tensor:
    return trainer.step(number)[0]


def _rival(which: str, batches, config: TrainConfig) -> Callable[[int], Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask

    torch.manual_seed(0)
    model = PlainGPT(vocab_size=VOCABULARY, context=CONTEXT, layers=LAYERS, heads=HEADS, width=WIDTH).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(config.beta1, config.beta2), weight_decay=0.1, fused=True)
    make_mask = torch.compile(create_block_mask)

    def loss_of(tokens: Tensor, targets: Tensor, block_mask: object) -> Tensor:
        logits = model(tokens, block_mask)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    compiled = torch.compile(loss_of, dynamic=False)
    # One rule over one tensor, which every step fills anew: nothing is compiled again.
    ids = torch.zeros(config.batch, CONTEXT, dtype=torch.int64, device="cuda")

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (ids[b, q] == ids[b, k])

    def step(number: int) -> Tensor:
        batch = batches[number - 1].to(torch.device("cuda"))
        blocks = None
        if which == "flex":
            assert batch.ids is not None, "every row holds several documents"
            ids.copy_(batch.ids.pin_memory(), non_blocking=True)
            blocks = make_mask(rule, config.batch, None, CONTEXT, CONTEXT, device="cuda")
        for group in optimizer.param_groups:
            group["lr"] = 1e-4
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(batch.tokens, batch.targets, blocks)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
