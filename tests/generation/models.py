"""Small models with well separated logits: the usual initialization gives near ties, which rounding would decide."""

from typing import Any

import torch

from rearview import Mask, causal, chunks, prefix, window
from rearview.models import GPT, T5, GPTConfig, T5Config

VOCAB = 37

# Masks that only look back; a tuple has one mask per layer.
MASKS: dict[str, Mask | tuple[Mask, ...]] = {
    "causal": causal(),
    "window": causal() & window(5),
    "sinks": (causal() & window(5)) | (causal() & prefix(2)),
    "chunks": causal() & chunks(4),
    "per layer": (causal() & window(3), causal()),
}


def loud(model: Any) -> Any:
    """The same model with larger weights, in evaluation mode."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)
    return model.eval()


def small_gpt(context: int = 16, **changes: Any) -> GPT:
    torch.manual_seed(3)
    return loud(
        GPT(
            GPTConfig(
                **{"vocab_size": VOCAB, "context": context, "layers": 2, "heads": 4, "width": 32, "tied": False}
                | changes
            )
        )
    )


def small_t5(**changes: Any) -> T5:
    torch.manual_seed(3)
    model = T5(T5Config(**{"vocab_size": VOCAB, "layers": 2, "heads": 4, "width": 32, "end_id": None} | changes))
    with torch.no_grad():
        model.head.weight.mul_(4.0)
    return model.eval()
