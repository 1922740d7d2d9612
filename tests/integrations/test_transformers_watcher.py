"""Watching transformers: which modules are found, and that the interfaces are left as they were."""

import copy
import pickle
import threading
from typing import Any

import pytest
import torch

from rearview.attention.functional import weights_of
from rearview.attention.layer_call import LayerCall
from rearview.errors import Unsupported
from rearview.integrations.transformers import register
from rearview.integrations.transformers.function_slots import slots_of
from rearview.integrations.transformers.watcher import attention_modules, watching

transformers = pytest.importorskip("transformers")

from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

SIZES = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}


def gpt2(**options):
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **ends, **options)).eval()


def modules_of(model):
    return [module for _, module in attention_modules(model)]


def test_modules_that_use_the_interface_are_found():
    assert [name for name, _ in attention_modules(gpt2())] == ["transformer.h.0.attn", "transformer.h.1.attn"]
    assert attention_modules(torch.nn.MultiheadAttention(8, 2)) == []

    class Later(transformers.models.gpt2.modeling_gpt2.GPT2Attention):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    class Other(transformers.models.gpt2.modeling_gpt2.GPT2Attention):
        def forward(self, hidden_states, **kwargs):
            return hidden_states, None

    config = gpt2().config
    assert len(attention_modules(torch.nn.ModuleList([Later(config), Other(config)]))) == 1


def test_watchers_may_leave_in_any_order():
    one, other, seen = gpt2(), gpt2(), []
    before = (dict(ALL_ATTENTION_FUNCTIONS._local_mapping), dict(ALL_MASK_ATTENTION_FUNCTIONS._local_mapping))

    def watch(model):
        def see(one: LayerCall) -> None:
            seen.append(model)

        return watching(modules_of(model), see)

    first, second = watch(one), watch(other)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        one(ids)
        other(ids)
    second.__exit__(None, None, None)
    assert seen == [other, other]
    assert before == (ALL_ATTENTION_FUNCTIONS._local_mapping, ALL_MASK_ATTENTION_FUNCTIONS._local_mapping)


def test_an_entry_of_the_user_is_restored():
    def own(*args, **kwargs):
        return transformers.integrations.sdpa_attention.sdpa_attention_forward(*args, **kwargs)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = own
    try:
        seen = []
        model = gpt2()
        with torch.no_grad(), watching(modules_of(model), seen.append):
            model(torch.tensor([[1, 2, 3]]))
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is own
        assert len(seen) == 2
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]


def test_positions_of_queries():
    model, seen = gpt2(), []
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad(), watching(modules_of(model)[:1], seen.append):
        past = model(ids[:, :3], use_cache=True).past_key_values
        past = model(ids[:, 3:4], past_key_values=past, use_cache=True).past_key_values
        model(ids[:, 4:], past_key_values=past)
    assert [(each.position, each.dropped_keys, each.is_cross) for each in seen] == [
        (0, 0, False),
        (3, 0, False),
        (4, 0, False),
    ]
    assert [each.call.key.shape[2] for each in seen] == [3, 4, 5]


def test_what_cannot_be_read_is_refused_before_anything_changes():
    model = gpt2()
    model.config._attn_implementation_internal = "flash_attention_2"
    with (
        pytest.raises(
            Unsupported,
            match="'flash_attention_2' receives only a part of the mask; the rest is in arguments of its own",
        ),
        watching(modules_of(model), print),
    ):
        pass
    assert not any(module._forward_pre_hooks for module in model.modules())
    model.config._attn_implementation_internal = None
    with pytest.raises(Unsupported, match="names no attention implementation"), watching(modules_of(model), print):
        pass


def test_every_name_of_eager_attention_is_found():
    """Files with several kinds of attention have several names for it; the module's own function must be watched."""
    from transformers.models.llama4.modeling_llama4 import Llama4TextAttention, Llama4VisionAttention

    def own(kind: type) -> list[str]:
        return [seam.key for seam in slots_of(kind) if seam.implementation == "eager"]

    assert own(Llama4TextAttention) == ["eager_attention_forward"]
    assert own(Llama4VisionAttention) == ["vision_eager_attention_forward"]


def test_another_implementation_while_watched():
    model, seen, ours = gpt2(), [], register()
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad(), watching(modules_of(model), seen.append):
        for implementation in ("sdpa", "eager", ours):
            model.set_attn_implementation(implementation)
            model(ids)
    assert len(seen) == 6
    for number, one in enumerate(seen):
        torch.testing.assert_close(weights_of(one.call), weights_of(seen[number % 2].call))


def test_a_compiled_model_is_watched_between_its_graphs():
    model, seen = gpt2(), []
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(torch.tensor([[1, 2, 3]]))
        with watching(modules_of(model), seen.append):
            compiled(torch.tensor([[4, 5, 6]]))
        compiled(torch.tensor([[1, 2, 3]]))
        with watching(modules_of(model), seen.append):
            model(torch.tensor([[4, 5, 6]]))
    assert len(seen) == 4
    torch.testing.assert_close(seen[0].call.query, seen[2].call.query)
    torch._dynamo.reset()


def test_copies_are_not_watched():
    model, seen = gpt2(), []
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad(), watching(modules_of(model), lambda one: seen.append(one.module)):
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        for each in copies:
            each(ids)
        assert seen == []
    # The hooks that remain in the copies need nothing of this package, and can be saved again.
    for each in copies:
        assert b"rearview" not in pickle.dumps(each)
        assert torch.equal(each(ids).logits, model(ids).logits)


def test_one_model_in_two_threads_at_once_is_refused():
    model, ids = gpt2(), torch.tensor([[1, 2, 3]])
    inside = threading.Barrier(2, timeout=30)

    def meet(*_: object) -> None:
        inside.wait()

    handle = model.transformer.h[0].attn.c_attn.register_forward_pre_hook(meet)

    def run_two() -> None:
        threads = [threading.Thread(target=model, args=(ids,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with pytest.raises(Unsupported, match="several threads at once"), watching(modules_of(model), lambda *_: None):
        run_two()
    handle.remove()
    seen: list[int] = []
    with watching(modules_of(model), lambda *_: seen.append(threading.get_ident())):
        thread = threading.Thread(target=model, args=(ids,))
        thread.start()
        thread.join()
        model(ids)
    assert len(seen) == 4


def test_a_failed_call_is_not_taken_for_one_without_the_interface():
    model, ids = gpt2(), torch.tensor([[1, 2, 3]])

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    seen: list[Any] = []
    with watching(modules_of(model), seen.append):
        handle = model.transformer.h[1].attn.c_attn.register_forward_pre_hook(fail)
        with pytest.raises(ZeroDivisionError):
            model(ids)
        handle.remove()
        model(ids)
    assert len(seen) == 3
