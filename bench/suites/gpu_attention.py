"""Masked attention at one shape on a GPU: ours beside cuDNN (causal) and FlexAttention at its best (other masks).

Runs in a process of its own for each shape, so that FlexAttention is compiled for static shapes and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.suites.gpu_timing import difference, kernel_us
from rearview import Mask, attend, causal, documents, plan, prefix, window

# The largest error of bfloat16, relative to the norm.
TOLERANCE = 1e-2
JUDGED_ROWS = 128
SINKS, DOCUMENTS = 4, 12

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Function = Callable[..., Tensor]


def masks(length: int) -> dict[str, tuple[Mask, Rule | None]]:
    """Each mask, as ours and as a mask_mod of FlexAttention."""
    wide, first = (1024 if length > 4096 else 512), length // 4
    ids = torch.arange(length) // (length // DOCUMENTS + 1)
    on_gpu = ids.cuda()
    return {
        "causal": (causal(), None),
        "window": (causal() & window(wide), lambda b, h, q, k: (q >= k) & (q - k < wide)),
        "documents": (causal() & documents(ids), lambda b, h, q, k: (q >= k) & (on_gpu[q] == on_gpu[k])),
        "prefix": (causal() | prefix(first), lambda b, h, q, k: (q >= k) | (k < first)),
        "sinks and window": (
            (causal() & window(wide)) | (causal() & prefix(SINKS)),
            lambda b, h, q, k: (q >= k) & ((q - k < wide) | (k < SINKS)),
        ),
    }


def measured(
    *, batch: int, heads: int, length: int, dim: int, names: list[str], engine: str,
    ready: Callable[[], None] = lambda: None,
) -> list[dict]:  # fmt: skip
    """For each mask: microseconds of ours and of the rival, forward and backward, and the errors.

    `ready` is called when everything is compiled and judged.
    """
    torch.manual_seed(0)
    query, key, value, d_out = (
        torch.randn(batch, heads, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    leaves = [each.clone().requires_grad_() for each in (query, key, value)]
    contestants: dict[str, tuple[Mask, Function, Function]] = {}
    errors: dict[str, dict[str, float]] = {}
    for name in names:
        mask, rule = masks(length)[name]
        ours, rival = partial(attend, mask=mask, engine=engine), _cudnn if rule is None else _flex(rule, length)
        contestants[name] = mask, ours, rival
        errors[name] = _errors(ours, rival, mask, query, key, value, leaves, d_out)
    ready()
    found = []
    for name, (mask, ours, rival) in contestants.items():
        visible = mask.spans(length).share * length * length
        operations = 4 * dim * batch * heads * visible
        with torch.no_grad():
            forward = kernel_us(
                {name: partial(each, query, key, value) for name, each in (("ours", ours), ("rival", rival))}
            )
        outs = {"ours": ours(*leaves), "rival": rival(*leaves)}
        backward = kernel_us(
            {
                each: lambda out=out: torch.autograd.grad(out, leaves, d_out, retain_graph=True)
                for each, out in outs.items()
            }
        )
        row = {
            "mask": name, "shape": f"B{batch} H{heads} L{length} D{dim}",
            "rival": "cuDNN" if rival is _cudnn else "Flex",
            "forward": forward, "backward": backward, "operations": operations, "errors": errors[name],
            "engines": [plan(query, key, value, mask=mask, engine=engine).engine,
                        plan(*leaves, mask=mask, engine=engine).engine],
        }  # fmt: skip
        found.append(row)
    return found


def _cudnn(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(query, key, value, is_causal=True)


def _flex(rule: Rule, length: int) -> Function:
    import torch._dynamo.config
    import torch._functorch.config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # The backward pass is repeated, so nothing of it may be freed.
    torch._functorch.config.donated_buffer = False
    torch._dynamo.config.recompile_limit = 64
    blocks = create_block_mask(rule, None, None, length, length, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def rival(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return compiled(query, key, value, block_mask=blocks)

    return rival


def _errors(
    ours: Function,
    rival: Function,
    mask: Mask,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    leaves: list[Tensor],
    d_out: Tensor,
) -> dict[str, float]:
    """The output against the definition in float64 for the last rows of one head; all gradients against the rival's."""
    first = max(0, query.shape[2] - JUDGED_ROWS)
    head = [each[:1, -1:].double() for each in (query[:, :, first:], key, value)]
    with torch.no_grad():
        wanted = attend(*head, mask=mask, q_start=first, engine="reference")
        out, other = ours(query, key, value), rival(query, key, value)
    errors = {"the last rows": difference(out[:1, -1:, first:], wanted), "the output": difference(out, other)}
    grads = [torch.autograd.grad(each(*leaves), leaves, d_out) for each in (ours, rival)]
    for name, mine, theirs in zip(("query", "key", "value"), *grads, strict=True):
        errors[f"the gradient of {name}"] = difference(mine, theirs)
    return errors


def fault(errors: dict[str, float]) -> str:
    """What is wrong, or "".

    >>> fault({"the output": 0.004}), fault({"the output": float("nan")})
    ('', 'the output is off by NaN')
    """
    for name, error in errors.items():
        if not error <= TOLERANCE:
            return f"{name} is off by {'NaN' if math.isnan(error) else f'{error:.1e}'}"
    return ""
