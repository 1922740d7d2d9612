"""Nobody is timed before the answer is right: output and gradients against the float64 reference.

Heads are independent of each other, so the first and the last are judged, at the full length; of long cases, where
a head takes gigabytes in float64, only the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.cases import Case
from bench.rivals import Attention
from rearview import attend

# The largest error that is rounding, relative to the largest number of the answer.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Inputs:
    """[batch, heads, time, dim] each; `d_out` is 0 in rows that nobody reads."""

    query: Tensor
    key: Tensor
    value: Tensor
    d_out: Tensor

    @classmethod
    def of(cls, case: Case, device: torch.device, dtype: torch.dtype) -> Inputs:
        generator = torch.Generator().manual_seed(0)

        def numbers(length: int) -> Tensor:
            shape = (case.batch, case.heads, length, case.dim)
            return torch.randn(shape, generator=generator).to(device, dtype)

        query, key, value, d_out = (numbers(length) for length in (case.q_len, case.k_len, case.k_len, case.q_len))
        if case.read is not None:
            d_out = d_out * case.read.to(device)[:, None, :, None]
        return cls(query, key, value, d_out)

    def judged(self, heads: list[int]) -> Inputs:
        """These heads, in float64."""
        return Inputs(*(x[:, heads].double() for x in (self.query, self.key, self.value, self.d_out)))


@dataclass(frozen=True)
class Judge:
    """What the right answer is: the output, then the gradients of query, key and value where the case trains."""

    case: Case
    inputs: Inputs
    heads: list[int]
    right: dict[str, Tensor]

    @classmethod
    def of(cls, case: Case, inputs: Inputs) -> Judge:
        def reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return attend(query, key, value, mask=case.make_mask(), engine="reference")

        heads = [case.heads - 1] if case.is_long else sorted({0, case.heads - 1})
        return cls(case, inputs, heads, _answers(case, reference, inputs.judged(heads), backward=case.trains))

    def fault(self, attention: Attention, *, backward: bool) -> str | None:
        """What is wrong with the answer, or None. Whatever the contestant raises is raised here."""
        answers = _answers(self.case, attention, self.inputs, backward=backward)
        most = TOLERANCE[self.inputs.query.dtype]
        for name, answer in answers.items():
            right = self.right[name]
            if answer.shape != (*right.shape[:1], self.inputs.query.shape[1], *right.shape[2:]):
                return f"{name} has the shape {list(answer.shape)}"
            answer = answer[:, self.heads].double()
            error = float((answer - right).abs().max() / right.abs().max())
            if not error <= most:
                return f"{name} is off by {'NaN' if math.isnan(error) else f'{error:.1e}'} (allowed {most:.0e})"
        return None


def _answers(case: Case, attention: Attention, inputs: Inputs, *, backward: bool) -> dict[str, Tensor]:
    leaves = [x.detach().requires_grad_(backward) for x in (inputs.query, inputs.key, inputs.value)]
    with torch.set_grad_enabled(backward):
        out = attention(*leaves)
    answers = {"the output": out.detach()}
    if backward:
        grads = torch.autograd.grad(out, leaves, inputs.d_out)
        answers |= {
            f"the gradient of {name}": grad for name, grad in zip(("query", "key", "value"), grads, strict=True)
        }
    if case.read is not None:
        # What stands in rows that nobody reads is not judged, not even NaN.
        unread = ~case.read.to(out.device)[:, None, :, None]
        answers["the output"] = answers["the output"].masked_fill(unread, 0)
    return answers
