"""Transformers models: the statistics are those of eager weights, with any kernel, and watching changes nothing."""

import pytest
import torch
from torch import nn

from rearview.errors import BadArgument, RearviewError, Unsupported
from rearview.integrations.transformers import register
from rearview.observation import observe
from tests.observation.judge import check
from tests.observation.models import theirs, tokens, with_large_weights

transformers = pytest.importorskip("transformers")

from tests.integrations.transformers_releases import T5_USES_INTERFACE, set_attention  # noqa: E402

pytestmark = pytest.mark.usefixtures("quiet")
MAP = 5


@pytest.fixture
def quiet():
    with torch.no_grad():
        yield


def left_padded(ids: torch.Tensor) -> torch.Tensor:
    real = torch.ones_like(ids)
    real[1, :4] = 0
    return real


def eager_attentions(model, ids, real=None, **options):
    """The weights that the model returns, with rows of padding set to 0, where eager attention is uniform."""
    before = model.config._attn_implementation
    set_attention(model, "eager")
    found = model(ids, attention_mask=real, output_attentions=True, **options)
    set_attention(model, before)
    return found


def without_padded_rows(weights: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
    return weights if real is None else weights.masked_fill(real[:, None, :, None] == 0, 0)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("implementation", ["sdpa", "eager", "rearview"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "bert"])
def test_agrees_with_eager_weights(kind, implementation, padded):
    register()
    model, ids = theirs(kind), tokens()
    real = left_padded(ids) if padded else None
    model.set_attn_implementation(implementation)
    before = model(ids, attention_mask=real)[0]
    with observe(model, map_size=MAP) as seen:
        assert torch.equal(model(ids, attention_mask=real)[0], before)
    assert model.config._attn_implementation == implementation
    assert {layer.kind for layer in seen.layers} == {"encoder" if kind == "bert" else "self"}
    for layer, exact in zip(seen.layers, eager_attentions(model, ids, real).attentions, strict=True):
        # In an encoder, a query that is padding hears other padding, and no query hears it.
        rows = real if kind != "bert" else None
        exact = without_padded_rows(exact, rows)
        check(seen, layer, exact, map_size=MAP, visible=(exact > 0).any(1) if kind != "mistral" else None)


def test_masks_are_not_dropped():
    # An implementation whose name the mask interface does not know silently gets no mask.
    model, ids = theirs("mistral"), tokens()
    real = left_padded(ids)
    with observe(model) as seen:
        model(ids, attention_mask=real)
    assert seen.received(0, item=1)[:, :4].abs().max() == 0
    window = seen.tile(0, 0, rows=slice(10, 17))
    assert window[:, :6].abs().max() == 0
    assert window.sum() > 6.99


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_softcap_and_learned_sinks(kind):
    model, ids = theirs(kind, attn_implementation="eager"), tokens()
    before = model(ids).logits
    with observe(model, map_size=MAP) as seen:
        assert torch.equal(model(ids).logits, before)
    for layer, exact in zip(seen.layers, eager_attentions(model, ids).attentions, strict=True):
        check(seen, layer, exact, map_size=MAP)
    # The share of a learned sink goes to no key.
    assert (seen.tile(0, 0).sum(-1) < 0.999).any() == (kind == "gpt_oss")


t5_asks = pytest.mark.skipif(not T5_USES_INTERFACE, reason="T5 asks no attention function in this release")


@t5_asks
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_t5(implementation):
    model, source, target = theirs("t5"), tokens(11), tokens(6, seed=2)
    real = torch.ones_like(source)
    real[1, 7:] = 0
    set_attention(model, implementation)
    before = model(source, attention_mask=real, decoder_input_ids=target).logits
    with observe(model, map_size=MAP) as seen:
        again = model(source, attention_mask=real, decoder_input_ids=target).logits
    assert torch.equal(again, before)
    assert [layer.kind for layer in seen.layers] == ["encoder", "encoder", "self", "cross", "self", "cross"]
    found = eager_attentions(model, source, real, decoder_input_ids=target)
    for kind, all_exact in (
        ("encoder", found.encoder_attentions),
        ("self", found.decoder_attentions),
        ("cross", found.cross_attentions),
    ):
        layers = [layer for layer in seen.layers if layer.kind == kind]
        for layer, exact in zip(layers, all_exact, strict=True):
            check(seen, layer, exact, map_size=MAP)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize(
    ("kind", "implementation"),
    [("llama", "sdpa"), ("mistral", "sdpa"), ("mistral", "eager"), ("mistral", "rearview"), ("gemma2", "eager")],
)
def test_generation_is_one_sequence(kind, implementation, cache):
    register()
    model, ids = theirs(kind, attn_implementation=implementation), tokens(7)
    real = torch.ones_like(ids)
    real[1, :2] = 0
    how = {"max_new_tokens": 9, "do_sample": False, "attention_mask": real, "cache_implementation": cache}
    before = model.generate(ids, **how)
    # Bins double on the way: 15 positions in 5 bins or fewer.
    with observe(model, map_size=MAP) as seen:
        said = model.generate(ids, **how)
    assert torch.equal(said, before)
    assert (seen.runs, seen.length) == (1, 15)
    real = torch.cat([real, torch.ones(2, 8, dtype=torch.long)], 1)
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    found = eager_attentions(model, said[:, :-1], real, position_ids=positions, use_cache=False)
    for layer, exact in zip(seen.layers, found.attentions, strict=True):
        exact = without_padded_rows(exact, real)
        for item in range(2):
            for head in range(4):
                weights = exact[item, head]
                torch.testing.assert_close(seen.tile(layer, head, item=item), weights, atol=1e-5, rtol=1e-4)
                torch.testing.assert_close(seen.received(layer, head, item=item), weights.sum(0), atol=1e-5, rtol=1e-4)
                mapped = seen.map(layer, head, item=item)
                width = layer.statistics.bin_width
                heard = (weights[:width].sum(-1) > 0).sum().clamp(min=1)
                torch.testing.assert_close(mapped[0, 0], weights[:width, :width].sum() / heard)


def test_beam_search_is_refused():
    model, ids = theirs("llama"), tokens(7)
    with pytest.raises(Unsupported, match="Beam search cannot be watched"), observe(model):
        model.generate(ids, max_new_tokens=9, num_beams=3, do_sample=False)
    # Several samples of each prompt keep their places.
    with observe(model) as seen:
        said = model.generate(ids, max_new_tokens=9, do_sample=True, num_return_sequences=2)
    found = eager_attentions(model, said[:, :-1])
    torch.testing.assert_close(seen.tile(1, 2, item=3), found.attentions[1][3, 2], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("keep", ["auto", None])
def test_tokens_that_are_taken_back(keep):
    """Speculative decoding reads tokens ahead and drops those that were wrong from the cache."""
    model, ids = theirs("mistral"), tokens(17)
    with observe(model, keep=keep, map_size=MAP) as seen:
        past = transformers.DynamicCache()
        model(ids[:, :6], past_key_values=past)
        for end, wrong in ((9, 2), (12, 1), (16, 3)):
            start = past.get_seq_length()
            model(torch.cat([ids[:, start:end], ids[:, :wrong]], 1), past_key_values=past)
            past.crop(-wrong)
        model(ids[:, 16:], past_key_values=past)
    assert (seen.runs, seen.length) == (1, 17)
    for layer, exact in zip(seen.layers, eager_attentions(model, ids).attentions, strict=True):
        for head in range(4):
            torch.testing.assert_close(seen.received(layer, head), exact[0, head].sum(0), atol=1e-5, rtol=1e-4)
            if keep is not None:
                torch.testing.assert_close(seen.tile(layer, head), exact[0, head], atol=1e-5, rtol=1e-4)


def test_a_prompt_that_is_continued_in_two_ways():
    model, ids = theirs("llama"), tokens(12)
    with observe(model) as seen:
        past = transformers.DynamicCache()
        model(ids, past_key_values=past)
        past.crop(-5)
        other = torch.cat([ids[:, :7], ids[:, :4]], 1)
        model(other[:, 7:], past_key_values=past)
    assert (seen.runs, seen.length) == (1, 11)
    exact = eager_attentions(model, other).attentions
    torch.testing.assert_close(seen.tile(1, 3, item=1), exact[1][1, 3], atol=1e-5, rtol=1e-4)
    # A sequence that continues in the middle of this one with other keys is a new sequence.
    with observe(model) as seen:
        past = transformers.DynamicCache()
        model(ids.flip(1)[:, :7], past_key_values=past)
        model(ids)
        model(ids[:, 7:8], past_key_values=past)
    assert (seen.runs, seen.layers[0].statistics.frame.q_start) == (3, 7)


@t5_asks
def test_generation_by_t5():
    model, source = theirs("t5"), tokens(7)
    how = {"max_new_tokens": 9, "do_sample": False}
    with observe(model) as seen:
        said = model.generate(source, **how)
    assert torch.equal(said, model.generate(source, **how))
    found = eager_attentions(model, source, decoder_input_ids=said[:, :-1])
    for kind, all_exact in (("self", found.decoder_attentions), ("cross", found.cross_attentions)):
        layers = [layer for layer in seen.layers if layer.kind == kind]
        for layer, exact in zip(layers, all_exact, strict=True):
            torch.testing.assert_close(seen.tile(layer, 2, item=1), exact[1, 2], atol=1e-5, rtol=1e-4)
    assert seen.runs == 1


def test_the_model_is_restored_after_an_error():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model, ids = theirs("llama"), tokens()
    local = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    hook = model.lm_head.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError), observe(model) as seen:
        model(ids)
    hook.remove()
    assert seen.length == 17
    assert local == ALL_ATTENTION_FUNCTIONS._local_mapping
    assert not any(module._forward_pre_hooks for module in model.modules())
    model(ids)
    assert seen.runs == 1
    with observe(model) as again:
        model(ids)
    assert again.length == 17


def test_a_model_is_watched_once_but_two_models_may_be_watched():
    model, other, ids = theirs("llama"), theirs("gpt2"), tokens()
    with observe(model) as first:
        with (
            pytest.raises(
                RearviewError,
                match=r"^observe: this model is being watched already\. Leave the first .* before starting another\.$",
            ),
            observe(model),
        ):
            pass
        with observe(other) as second:
            model(ids)
            other(ids)
        other(ids)
        model(ids[:, :3])
    assert (first.runs, first.length, second.runs, second.length) == (2, 3, 1, 17)


def test_a_layer_without_the_interface_is_reported():
    # With one of its options GPT-2 computes attention itself, without the interface.
    model, ids = theirs("gpt2", attn_implementation="eager", reorder_and_upcast_attn=True), tokens()
    with pytest.raises(Unsupported, match="GPT2Attention ran without using the attention interface"), observe(model):
        model(ids)


def test_what_cannot_be_watched_says_why():
    with pytest.raises(Unsupported, match="Linear cannot be watched") as caught, observe(nn.Linear(2, 2)):
        pass
    assert "attention interface of transformers" in str(caught.value)
    with pytest.raises(BadArgument, match=r"model: expected a torch.nn.Module, got str"), observe("gpt2"):  # type: ignore[arg-type]
        pass
    model = theirs("llama")
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(Unsupported, match="flash_attention_2") as caught, observe(model):
        pass
    assert 'set_attn_implementation("sdpa")' in str(caught.value)


def test_layers_and_heads_are_chosen():
    model, ids = theirs("llama", num_attention_heads=8), tokens()
    with observe(model, layers=[-1], heads=slice(2, 5)) as seen:
        model(ids)
    (layer,) = seen.layers
    assert (layer.index, layer.name, layer.heads) == (1, "model.layers.1.self_attn", (2, 3, 4))
    with observe(model, keep=None) as whole:
        model(ids)
    # Grouped queries: each head keeps its own key head.
    for head in (2, 3, 4):
        torch.testing.assert_close(seen.received(1, head), whole.received(1, head))
        torch.testing.assert_close(seen.received(-1, head), whole.received(-1, head))
    with pytest.raises(BadArgument, match=r"^layers: expected"), observe(model, layers=2):
        pass
    with pytest.raises(BadArgument, match=r"^layers: expected"), observe(model, layers="nothing.*"):
        pass
    with pytest.raises(BadArgument, match=r"^heads: expected"), observe(model, heads=8):
        pass


def test_training_with_dropout_draws_the_same_numbers():
    model, ids = theirs("gpt2", attn_pdrop=0.5), tokens()
    model.train()
    torch.manual_seed(3)
    plain = model(ids).logits
    torch.manual_seed(3)
    with observe(model) as seen:
        assert torch.equal(model(ids).logits, plain)
    rows = seen.tile(0, 0).sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))


def test_part_of_a_larger_model_is_watched():
    inner = theirs("bert")
    model = with_large_weights(nn.Sequential(nn.Identity(), inner))
    with observe(model) as seen:
        model(tokens())
    assert seen.layers[0].name == "1.encoder.layer.0.attention.self"
