from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AutoModel, DynamicCache, GPT2Config, LlamaConfig, PretrainedConfig
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    create_causal_mask,
    flash_attention_mask,
    padding_mask_function,
)

from rearview import (
    Mask,
    RearviewError,
    Unsupported,
    causal,
    documents,
    full,
    padding,
    per_head,
    prefix,
    where,
    window,
)
from rearview.masks.exchange import from_huggingface, to_huggingface, to_mask_function

Size = tuple[int, int, int | None]
RIGHT = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
LEFT = RIGHT.flip(-1)
LLAMA = LlamaConfig(
    vocab_size=31,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)
GPT2 = GPT2Config(vocab_size=31, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
NO_MASK: Any = None
TOKENS = torch.arange(14).view(2, 7)


def model_of(config: PretrainedConfig, implementation: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModel.from_config(config, attn_implementation=implementation).eval()


def written(mask: Mask, *sizes: int, **options: Any) -> Any:
    """`to_huggingface`, whose type depends on the implementation."""
    return to_huggingface(mask, *sizes, **options)


def hidden(model: torch.nn.Module, attention_mask: Tensor, positions: Tensor) -> Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS, attention_mask=attention_mask, position_ids=positions).last_hidden_state


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["Llama", "GPT2"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("real", [RIGHT, LEFT], ids=["right", "left"])
def test_a_model_computes_the_same_as_with_its_own_mask(config, implementation, real):
    model = model_of(config, implementation)
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    # A query that hears itself keeps every row non-empty, which eager attention needs.
    mask = (causal() & from_huggingface(real)) | window(1)
    ours = hidden(model, written(mask, 7, implementation=implementation), positions)
    theirs = hidden(model, real, positions)
    torch.testing.assert_close(ours[real.bool()], theirs[real.bool()])
    # And the mask is what made it so.
    other = hidden(model, written(full(), 7, implementation=implementation, batch=2), positions)
    assert not torch.allclose(other[real.bool()], theirs[real.bool()], atol=1e-3)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_model_with_a_mask_of_every_head(implementation):
    model = model_of(LLAMA, implementation)
    positions = torch.arange(7).expand(2, -1)
    both = hidden(model, written(per_head([causal(), causal()]), 7, implementation=implementation, batch=2), positions)
    torch.testing.assert_close(both, hidden(model, torch.ones_like(RIGHT), positions))


def test_decoding_over_a_cache():
    model = model_of(LLAMA, "sdpa")
    mask = causal() & documents([0, 0, 0, 1, 1, 1, 1])
    with torch.no_grad():
        whole = model(input_ids=TOKENS, attention_mask=written(mask, 7, implementation="sdpa", batch=2))
        cache = DynamicCache(config=LLAMA)
        model(
            input_ids=TOKENS[:, :5],
            attention_mask=written(mask, 5, implementation="sdpa", batch=2),
            past_key_values=cache,
        )
        last = model(
            input_ids=TOKENS[:, 5:],
            attention_mask=written(mask, 2, 7, implementation="sdpa", batch=2),
            past_key_values=cache,
        )
    torch.testing.assert_close(last.last_hidden_state, whole.last_hidden_state[:, 5:])


def test_there_and_back(mask: Mask, size: Size):
    q_len, k_len, q_start = size
    visible = mask.to_bool(q_len, k_len, q_start=q_start)
    made = written(mask, q_len, k_len, q_start=q_start, implementation="sdpa", batch=2)
    assert torch.equal(from_huggingface(made).to_bool(q_len, k_len), visible.expand_as(made))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_eager_is_exact_or_refused(mask: Mask, dtype):
    visible = mask.to_bool(9)
    if not bool(visible.any(-1).all()):
        with pytest.raises(Unsupported, match="queries hear nothing, such as query") as caught:
            written(mask, 9, implementation="eager", dtype=dtype)
        assert "becomes mean(V), and in float16 it is not masked at all" in str(caught.value)
        mask = mask | window(1)
        visible = mask.to_bool(9)
    made = written(mask, 9, implementation="eager", dtype=dtype)
    assert made.dtype == dtype
    assert torch.equal(made, torch.where(visible.expand_as(made), 0.0, torch.finfo(dtype).min).to(dtype))


def test_flex_blocks_are_those_of_transformers():
    ours = written(causal() & padding(RIGHT.bool()), 7, implementation="flex_attention")
    function = and_masks(causal_mask_function, padding_mask_function(RIGHT.bool()))
    theirs = create_block_mask(function, 2, None, 7, 7, device="cpu")
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    assert from_huggingface(ours).equals(from_huggingface(theirs), 7)


@pytest.mark.parametrize("real", [RIGHT, LEFT, torch.ones_like(RIGHT)], ids=["right", "left", "none"])
@pytest.mark.parametrize("q_len", [7, 3])
def test_flash_gets_the_padding_mask(real, q_len):
    expected: Any = flash_attention_mask(2, q_len, 7, attention_mask=real.bool())
    by_rule = where(lambda b, h, i, j: real[b, j] > 0, batch=2)
    masks = [causal() & padding(real.bool()), causal() & by_rule]
    # Queries that are at padding may hear nothing; if they are all that is asked for, no key is heard either.
    masks += [causal() & padding(real.bool()) & documents(real)] if q_len == 7 else []
    for mask in masks:
        made = written(mask, q_len, 7, implementation="flash_attention_2")
        assert (made is None) == (expected is None)
        if made is not None:
            assert made.dtype == torch.int64
            assert torch.equal(made.bool(), expected)


def test_flash_for_masks_of_one_item():
    assert written(causal(), 7, implementation="flash_attention_2", batch=2) is None
    assert written(causal() & window(99), 7, implementation="flash_attention_2") is None
    made = written(causal() & ~prefix(2), 7, implementation="flash_attention_2", batch=2)
    assert made.tolist() == [[0, 0, 1, 1, 1, 1, 1]] * 2


@pytest.mark.parametrize(
    ("mask", "sizes"),
    [
        (causal() | prefix(3), (7, 7, None)),
        (causal() & window(3), (7, 7, None)),
        (causal() & documents([0, 0, 0, 1, 1, 1, 1]), (7, 7, None)),
        (full(), (7, 7, None)),
        (padding([4, 7]), (7, 7, None)),
        (per_head([causal(), full()]), (7, 7, None)),
        # It aligns at the bottom right, whatever the positions are.
        (causal(), (2, 7, 3)),
    ],
    ids=str,
)
def test_flash_never_drops_a_mask(mask: Mask, sizes):
    q_len, k_len, q_start = sizes
    with pytest.raises(Unsupported, match="adds causal itself; it would drop the rest of this mask"):
        written(mask, q_len, k_len, q_start=q_start, implementation="flash_attention_2")


@pytest.mark.parametrize("and_or", ["and", "or"])
@pytest.mark.parametrize("seen", [0, 4])
def test_mask_functions_in_transformers(and_or, seen):
    config = LlamaConfig(**{**LLAMA.to_dict(), "attn_implementation": "sdpa"})
    ids = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 2, 2, 2]])
    extra = documents(ids) if and_or == "and" else prefix([2, 7])
    cache = DynamicCache(config=config)
    cache.update(torch.zeros(2, 1, seen, 8), torch.zeros(2, 1, seen, 8), 0)
    functions: dict[str, Any] = {f"{and_or}_mask_function": to_mask_function(extra, length=9)}
    made: Any = create_causal_mask(
        config=config,
        inputs_embeds=torch.zeros(2, 9 - seen, 16),
        attention_mask=None,
        past_key_values=cache,
        **functions,
    )
    mask = causal() & extra if and_or == "and" else causal() | extra
    assert torch.equal(made, mask.to_bool(9 - seen, 9))


def test_mask_functions_beyond_their_length():
    function = to_mask_function(documents([0, 0, 1]), length=3)
    query, key = torch.arange(5).view(-1, 1), torch.arange(5)
    zero = torch.zeros((), dtype=torch.long)
    assert torch.equal(
        function(zero, zero, query, key), torch.nn.functional.pad(documents([0, 0, 1]).to_bool(3), (0, 2, 0, 2))
    )
    with pytest.raises(RearviewError, match="expected an id for each of the 4 positions, got 3 ids"):
        to_mask_function(documents([0, 0, 1]), length=4)


def test_padding_masks():
    for real in (RIGHT, RIGHT.bool(), RIGHT.float()):
        assert from_huggingface(real).equals(padding([7, 4]), 7)


def test_additive_masks_of_transformers():
    config = LlamaConfig(**{**LLAMA.to_dict(), "attn_implementation": "eager"})
    made: Any = create_causal_mask(
        config=config, inputs_embeds=torch.zeros(2, 7, 16), attention_mask=RIGHT, past_key_values=None
    )
    assert made.dtype == torch.float32
    assert from_huggingface(made).equals(causal() & padding([7, 4]), 7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: from_huggingface(torch.tensor([[1, 2, 2]])),
            r"0 and 1 in a 2-D padding mask, 1 = real, got values from 1 to 2.*documents\(ids\)",
        ),
        (lambda: from_huggingface(torch.tensor([[0.0, -1e9]])), r"got values from -1e\+09 to 0"),
        (
            lambda: from_huggingface(torch.ones(2, 3, 3)),
            r"a 2-D padding mask, a 4-D bool or float mask.*got a float32 tensor of shape \[2, 3, 3\]",
        ),
        (lambda: from_huggingface(torch.ones(1, 1, 3, 3).int()), r"got an int32 tensor of shape \[1, 1, 3, 3\]"),
        (lambda: from_huggingface(NO_MASK), r"got NoneType"),
        (
            lambda: written(causal(), 3, implementation="flash"),
            r"implementation: expected 'eager', 'sdpa'.*got 'flash'",
        ),
        (
            lambda: written(causal(), 3, implementation="eager", dtype=torch.int32),
            r"dtype: expected the floating point dtype",
        ),
        (
            lambda: written(padding([1, 2]), 3, implementation="sdpa", batch=3),
            r"batch: expected 2, the batch size of the mask",
        ),
        (
            lambda: written(causal(), 0, implementation="sdpa"),
            r"q_len: expected an integer of at least 1, got 0",
        ),
        (lambda: to_mask_function(causal(), length=0), r"length: expected an integer of at least 1"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(RearviewError, match=message):
        call()
