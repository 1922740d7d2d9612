"""Decoding, the host's time per call, and generation on a GPU, each in a process of its own."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.suites.gpu_timing import difference, graph_us, host_us
from rearview import attend, causal, prefix, window

QUERY_HEADS, KEY_HEADS, DIM = 32, 8, 128
# Inputs in turn, so that a call finds nothing in the L2 that an earlier one has read.
INPUT_BYTES = 2_000_000_000
TOKENS, PROMPT = 240, [1, 2, 3, 4]


def decoded(
    *, batch: int, length: int, window_keys: int | None, ready: Callable[[], None] = lambda: None
) -> dict:  # fmt: skip
    """One token over a cache: microseconds of ours and of SDPA, which gets the keys of the window only.

    `ready`, here and below, is called when everything is compiled and judged.
    """
    torch.manual_seed(0)
    heard = window_keys or length
    read = 4 * batch * KEY_HEADS * heard * DIM
    sets = max(1, min(8, INPUT_BYTES // (4 * batch * KEY_HEADS * length * DIM)))

    def drawn(heads: int, keys: int) -> list[Tensor]:
        shape = (batch, heads, keys, DIM)
        return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]

    queries, keys, values = drawn(QUERY_HEADS, 1), drawn(KEY_HEADS, length), drawn(KEY_HEADS, length)
    mask = causal() if window_keys is None else causal() & window(window_keys)
    lengths = torch.full((batch,), length, device="cuda", dtype=torch.int32)

    def theirs(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = key[:, :, length - heard :], value[:, :, length - heard :]
        return scaled_dot_product_attention(query, key, value, enable_gqa=True)

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, mask=mask)

    def with_lengths(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, mask=mask, lengths=lengths)

    def in_turn(attention: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: [attention(*each) for each in zip(queries, keys, values, strict=True)]

    wide = [each[0][-1:].double() for each in (queries, keys, values)]
    error = difference(ours(queries[0], keys[0], values[0])[-1:], attend(*wide, mask=mask, engine="reference"))
    with_lengths(queries[0], keys[0], values[0])
    ready()
    found = graph_us({"ours": in_turn(ours), "rival": in_turn(theirs), "lengths": in_turn(with_lengths)})
    us = {name: each / sets for name, each in found.items()}
    return {"batch": batch, "length": length, "window": window_keys, "bytes": read, "error": error, **us}


def called(*, ready: Callable[[], None] = lambda: None) -> dict[str, dict[str, float]]:
    """Microseconds of the host per warm call: SDPA's, and ours for calls that SDPA expresses and for others."""
    tensors = [torch.randn(1, 16, 256, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    leaves = [each.clone().requires_grad_() for each in tensors]
    step = [
        torch.randn(1, heads, keys, 128, device="cuda", dtype=torch.bfloat16) for heads, keys in ((32, 1), (8, 4096))
    ]
    masks = {"window": causal() & window(64), "sinks and window": (causal() & window(64)) | (causal() & prefix(4))}
    lengths = torch.tensor([4000], device="cuda", dtype=torch.int32)
    query, cache = step
    groups: dict[str, dict[str, Callable[[], object]]] = {
        "causal": {
            "SDPA": lambda: scaled_dot_product_attention(tensors[0], tensors[1], tensors[2], is_causal=True),
            "rearview": lambda: attend(*tensors),
            **{f"rearview, {name}": lambda mask=mask: attend(*tensors, mask=mask) for name, mask in masks.items()},
        },
        "causal, with gradients": {
            "SDPA": lambda: scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=True),
            "rearview": lambda: attend(*leaves),
            **{f"rearview, {name}": lambda mask=mask: attend(*leaves, mask=mask) for name, mask in masks.items()},
        },
        "one token": {
            "SDPA": lambda: scaled_dot_product_attention(query, cache, cache, enable_gqa=True),
            "rearview": lambda: attend(query, cache, cache),
            **{f"rearview, {name}": lambda mask=mask: attend(query, cache, cache, mask=mask)
               for name, mask in masks.items()},
            "rearview, lengths on the GPU": lambda: attend(query, cache, cache, lengths=lengths),
        },
    }  # fmt: skip
    for calls in groups.values():
        for call in calls.values():
            call()
    ready()
    return {name: host_us(calls) for name, calls in groups.items()}


def generated(*, which: str, rounds: int = 3, ready: Callable[[], None] = lambda: None) -> dict:
    """Milliseconds per token at 124 million parameters in bfloat16, greedy, and the tokens."""
    from rearview.generation import generate
    from rearview.models import GPT, GPTConfig

    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=50304, context=1024, layers=12, heads=12, width=768)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                # Larger than at the start of training, so that no two logits are nearly equal.
                parameter.mul_(4.0)
    model = model.to("cuda", torch.bfloat16)
    if which == "transformers":
        speak = _theirs(model)
    else:
        graph = which == "graph"

        def speak() -> list[int]:
            return generate(model, PROMPT, max_new_tokens=TOKENS, temperature=0, cuda_graph=graph).finish().tokens[0]

    # The first call compiles.
    said, samples = speak(), []
    ready()
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        said = speak()
        torch.cuda.synchronize()
        samples.append(1000 * (time.perf_counter() - start) / TOKENS)
    return {"which": which, "ms": sorted(samples)[len(samples) // 2], "tokens": said}


def _theirs(model: Any) -> Callable[[], list[int]]:
    from transformers import GPT2LMHeadModel

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        other: Any = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.bfloat16)
    other = other.to("cuda").eval()
    prompt = torch.tensor([PROMPT], device="cuda")
    # No token ends the text. The static cache makes transformers compile the step, with CUDA graphs.
    options = {
        "max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0,
        "cache_implementation": "static",
    }  # fmt: skip

    def speak() -> list[int]:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = other.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        return said[0, len(PROMPT) :].tolist()

    return speak
