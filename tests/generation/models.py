"""Small models whose logits are far apart: random weights as they start out give near ties, which rounding decides."""

from typing import Any

import torch

from rearview import Mask, causal, chunks, prefix, window
from rearview.models import GPT, T5, GPTConfig, T5Config

VOCAB = 37

# Every mask that looks back; a tuple is one a layer.
MASKS: dict[str, Mask | tuple[Mask, ...]] = {
    "causal": causal(),
    "window": causal() & window(5),
    "sinks": (causal() & window(5)) | (causal() & prefix(2)),
    "chunks": causal() & chunks(4),
    "per layer": (causal() & window(3), causal()),
}


def loud(model: Any) -> Any:
    """The same model with larger weights, ready to answer."""
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
