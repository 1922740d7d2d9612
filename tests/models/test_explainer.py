"""explain_model: the numbers of the Trace are those that the model computes."""

from typing import Any

import pytest
import torch

from rearview import causal, full, window
from rearview.errors import BadArgument, Unsupported
from rearview.models import BERT, GPT, T5, BERTConfig, GPTConfig, T5Config
from rearview.models.explainer import explain_model

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9]])


def made(**options: Any) -> GPT:
    torch.manual_seed(0)
    config = GPTConfig(**{"vocab_size": 31, "context": 8, "layers": 2, "heads": 4, "width": 32, **options})
    return GPT(config).double().eval()


@torch.no_grad()
@pytest.mark.parametrize(
    "options", [{}, {"positions": "rotary"}, {"kv_heads": 2}, {"mask": causal() & window(2)}], ids=str
)
def test_the_output_is_what_the_layer_projects(options: dict[str, Any]):
    model = made(**options)
    seen = []
    attention = list(model.blocks)[1].attention
    attention.out.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model(TOKENS)
    trace = explain_model(model, TOKENS, layer=1)
    heads = trace["output"].matrix.movedim(0, 1).flatten(1)
    torch.testing.assert_close(heads, seen[0][0].double(), atol=1e-9, rtol=1e-9)


def test_bert_hears_all_positions():
    torch.manual_seed(0)
    trace = explain_model(BERT(BERTConfig(vocab_size=31, layers=1)), TOKENS)
    assert isinstance(trace.mask, type(full()))
    assert bool((trace["weights"].matrix > 0).all())


def test_the_training_mode_of_the_model_is_restored():
    model = made().train()
    explain_model(model, TOKENS)
    assert model.training
    assert not next(iter(model.blocks)).attention._forward_pre_hooks


def test_the_mask_can_be_replaced():
    trace = explain_model(made(), TOKENS, layer=-1, mask=causal() & window(2), title="Seen through a window")
    assert trace.title == "Seen through a window"
    assert float(trace["weights"].matrix[0, 5, 0]) == 0


def test_errors():
    with pytest.raises(BadArgument, match="layer: expected a layer from 0 to 1, got 2"):
        explain_model(made(), TOKENS, layer=2)
    with pytest.raises(BadArgument, match=r"tokens: expected shape \[1, time\], one sequence, got"):
        explain_model(made(), TOKENS.repeat(2, 1))
    with pytest.raises(
        Unsupported, match="it adds a relative position bias to its scores, which a Trace has no step for"
    ):
        explain_model(T5(T5Config(vocab_size=31)), TOKENS)  # type: ignore[arg-type]
