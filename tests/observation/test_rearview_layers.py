"""Rearview's models: the statistics are those of `weights`, and watching changes nothing."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from rearview import MaskedSelfAttention, alibi, causal, full, padding, per_head, prefix, window
from rearview.attention import weights
from rearview.errors import Unsupported
from rearview.generation import generate
from rearview.masks.lagged import lagged
from rearview.models.attention import CrossAttention
from rearview.models.explainer import queries_keys_values
from rearview.observation import observe
from tests.observation.judge import check
from tests.observation.models import bert, gpt, t5, tokens

MAP = 5


@pytest.mark.parametrize("options", [{}, {"kv_heads": 2, "positions": "rotary"}, {"mask": causal() & window(4)}])
def test_gpt(options):
    model, ids = gpt(**options), tokens()
    before = model(ids)
    with observe(model, map_size=MAP) as seen:
        assert torch.equal(model(ids), before)
    assert [layer.name for layer in seen.layers] == ["blocks.0.attention", "blocks.1.attention"]
    assert {layer.kind for layer in seen.layers} == {"self"}
    for layer in seen.layers:
        mask = model.config.masks[layer.index]
        exact = []
        for item in range(2):
            query, key, _ = queries_keys_values(model, ids[item : item + 1], layer.index)
            exact.append(weights(query.unsqueeze(0), key.unsqueeze(0), mask=mask)[0])
        check(seen, layer, torch.stack(exact), map_size=MAP, visible=mask.to_bool(17).expand(2, -1, -1))


def test_bert_with_padding():
    model, ids, mask = bert(), tokens(), padding([17, 9])
    with observe(model, map_size=MAP) as seen:
        model(ids, mask=mask)
    assert {layer.kind for layer in seen.layers} == {"encoder"}
    # The first layer's input is the same for every mask.
    query, key, _ = queries_keys_values(model, ids[1:], 0)
    exact = weights(query.unsqueeze(0), key.unsqueeze(0), mask=padding([9]))[0]
    torch.testing.assert_close(seen.tile(0, 2, item=1), exact[2], atol=1e-5, rtol=1e-4)
    assert seen.received(0, 2, item=1)[9:].abs().max() == 0


def test_a_layer_with_everything():
    layer = MaskedSelfAttention(
        32,
        4,
        num_kv_heads=2,
        mask=per_head([causal(), causal() & window(3), full(), causal() & prefix(2)]),
        score_bias=alibi(4),
    )
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
    with observe(layer, map_size=MAP, heads=[1, 3]) as seen:
        out = layer(x, mask=padding([9, 6]))
    assert torch.equal(out, layer(x, mask=padding([9, 6])))
    query, key, _ = layer.heads(x)
    exact = weights(query, key, mask=layer.mask & padding([9, 6]), bias=alibi(4)).detach()
    check(seen, seen.layers[0], exact[:, [1, 3]], map_size=MAP)
    assert seen.layers[0].heads == (1, 3)


def test_t5_encoder_decoder_and_cross():
    model, source, target = t5(), tokens(11), tokens(6, seed=2)
    with observe(model, map_size=MAP, source_labels=[f"s{n}" for n in range(11)], labels=["t0", "t1"]) as seen:
        out = model(source, target, mask=padding([11, 7]))
    assert torch.equal(out, model(source, target, mask=padding([11, 7])))
    kinds = [layer.kind for layer in seen.layers]
    assert kinds == ["encoder", "encoder", "self", "cross", "self", "cross"]
    assert [layer.index for layer in seen.layers] == list(range(6))
    assert seen.length == 6
    assert seen.labels == ["t0", "t1", "", "", "", ""]
    cross = seen.layer("decoder.blocks.0.cross")
    assert seen.key_labels(cross) == seen.query_labels(0) == [f"s{n}" for n in range(11)]
    assert seen.query_labels(cross) == seen.labels
    # For layers of different shapes the result is a list.
    assert [tuple(one.shape) for one in seen.received()] == [(4, 11)] * 2 + [(4, 6), (4, 11)] * 2
    assert seen.received(3, 0, item=1)[7:].abs().max() == 0
    for layer in seen.layers:
        rows = seen.tile(layer, 1, item=1).sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows))


def test_cross_attention_alone_starts_a_new_sequence():
    layer, x, memory = CrossAttention(8, 2), torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    with observe(layer) as seen:
        layer(x, layer.keys_values(memory))
        layer(x, layer.keys_values(memory))
    assert seen.runs == 2
    assert seen.layers[0].statistics.frame.q_start == 0


@pytest.mark.parametrize("kind", ["gpt", "t5"])
def test_generation_is_one_sequence(kind):
    model = gpt() if kind == "gpt" else t5()
    prompt = tokens(7, batch=2).tolist()
    plain = generate(model, prompt, max_new_tokens=12, temperature=0).finish().tokens
    with observe(model, map_size=MAP) as seen:
        said = generate(model, prompt, max_new_tokens=12, temperature=0).finish().tokens
    assert said == plain
    if kind == "gpt":
        # The last token is generated but not read.
        whole = torch.tensor([p + s[:-1] for p, s in zip(prompt, said, strict=True)])
        with observe(model, map_size=MAP) as once:
            model(whole)
    else:
        target = torch.tensor([[0, *s[:-1]] for s in said])
        with observe(model, map_size=MAP) as once:
            model(torch.tensor(prompt), target)
    assert seen.runs == once.runs == 1
    assert seen.length == once.length == (18 if kind == "gpt" else 12)
    for layer, other in zip(seen.layers, once.layers, strict=True):
        assert (layer.name, layer.statistics.frame) == (other.name, other.statistics.frame)
        exact = torch.stack(
            [torch.stack([once.tile(other, head, item=item) for head in range(4)]) for item in range(2)]
        )
        stored = max(MAP, 1)
        for item in range(2):
            for head in range(4):
                at: dict[str, Any] = {"item": item}
                torch.testing.assert_close(seen.tile(layer, head, **at), exact[item, head], atol=1e-5, rtol=1e-4)
                for view in (seen.received, seen.entropy, seen.distance):
                    wanted = getattr(once, view.__name__)(other, head, **at)
                    torch.testing.assert_close(view(layer, head, **at), wanted, atol=1e-4, rtol=1e-4)
                mapped = seen.map(layer, head, **at)
                assert max(mapped.shape) <= stored
                torch.testing.assert_close(mapped.sum(-1), torch.ones(len(mapped)), atol=1e-5, rtol=1e-4)


def test_a_new_prompt_is_a_new_sequence():
    model = gpt()
    with observe(model) as seen:
        model(tokens(9))
        model(tokens(5, batch=1))
    assert (seen.runs, seen.length, seen.layers[0].batch) == (2, 5, 1)
    assert repr(seen) == "Observation(2 layers x 4 heads, 5 positions, the last of 2 sequences)"


def test_unequal_prompts_are_refused_with_advice():
    model = gpt()
    with pytest.raises(Unsupported, match="unequal length") as caught, observe(model):
        generate(model, [[1, 2, 3], [4, 5]], max_new_tokens=3).finish()
    assert "one at a time" in str(caught.value)
    # The model is unchanged.
    assert "attend" not in model.blocks[0].attention.__dict__


def test_a_lagged_mask_inside_another_is_refused_too():
    layer = MaskedSelfAttention(8, 2)
    for mask in (~lagged(~causal(), [0, 2]), causal() | ~lagged(~causal(), [0, 2])):
        with pytest.raises(Unsupported, match="Prompts of unequal length cannot be watched together"), observe(layer):
            layer(torch.randn(2, 4, 8), mask=mask)


def test_a_batch_that_shrinks_is_refused():
    model = gpt()
    ids = tokens(5)
    cache = model.new_cache(2)
    with observe(model):
        model(ids, cache=cache)
        for layer in cache:
            layer.take([0])
        with pytest.raises(Unsupported, match="from 2 to 1 sequences"):
            model(ids[:1, :1], cache=cache)


def test_a_prompt_that_was_not_watched_is_missing():
    model, ids = gpt(), tokens(6, batch=1)
    cache = model.new_cache(1)
    model(ids[:, :4], cache=cache)
    with observe(model, map_size=8) as seen:
        model(ids[:, 4:], cache=cache)
    with observe(model, map_size=8) as whole:
        model(ids)
    frame = seen.layers[0].statistics.frame
    assert (frame.q_start, frame.q_len, frame.k_len) == (4, 2, 6)
    torch.testing.assert_close(seen.tile(1, 3), whole.tile(1, 3, rows=slice(4, 6)), atol=1e-5, rtol=1e-4)


def test_training_works_and_dropout_is_not_observed():
    model, ids = gpt(dropout=0.5), tokens()
    with observe(model) as calm:
        model(ids)
    model.train()
    torch.manual_seed(5)
    plain = model(ids)
    plain.sum().backward()
    gradient, model.tokens.weight.grad = model.tokens.weight.grad, None
    assert gradient is not None
    model.zero_grad()
    torch.manual_seed(5)
    with observe(model) as seen:
        watched = model(ids)
    watched.sum().backward()
    assert torch.equal(plain, watched)
    assert model.tokens.weight.grad is not None
    assert torch.equal(gradient, model.tokens.weight.grad)
    # In the first layer only the embeddings have dropout before the scores; rows still sum to 1.
    rows = seen.tile(0, 0).sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))
    assert not seen.received(0).requires_grad
    assert not torch.equal(calm.received(0), seen.received(0))


def test_inside_inference_mode_and_autocast():
    model, ids = gpt(), tokens()
    with torch.inference_mode(), observe(model) as seen:
        model(ids)
    assert not seen.layers[0].statistics.received.is_inference()
    seen.received(0).add_(1)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        before = model(ids)
        with observe(model) as half:
            assert torch.equal(model(ids), before)
    assert half.received(0).dtype == torch.float32


def test_a_custom_model_with_rearview_layers():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = MaskedSelfAttention(16, 2), MaskedSelfAttention(16, 4, mask=full())

        def forward(self, x):
            return self.second(self.first(x))

    model = Mine()
    with observe(model, layers="second") as seen:
        model(torch.randn(6, 16))
    assert [(layer.name, layer.index, layer.heads) for layer in seen.layers] == [("second", 1, (0, 1, 2, 3))]
    assert seen.layer(-1) is seen.layer(1) is seen.layer("second")


@torch.no_grad()
def test_a_compiled_model_is_watched_between_its_graphs():
    model, ids = gpt(), tokens()
    before = model(ids)
    compiled: Any = torch.compile(model, backend="eager")
    compiled(ids)
    with observe(compiled) as seen:
        torch.testing.assert_close(compiled(ids), before)
    assert [layer.name for layer in seen.layers] == ["blocks.0.attention", "blocks.1.attention"]
    with observe(model) as plain:
        model(ids)
    torch.testing.assert_close(seen.received(), plain.received())
    compiled(ids)
    assert seen.runs == 1


def test_copies_are_not_watched():
    model, ids = gpt(), tokens()
    with torch.no_grad(), observe(model) as seen:
        model(ids)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        for each in copies:
            each(ids[:, :3])
    assert (seen.runs, seen.length) == (1, 17)
    for each in copies:
        assert torch.equal(each(ids), model(ids))
        with torch.no_grad(), observe(each) as again:
            each(ids)
        assert again.length == 17
