"""`call_of`: what an attention function of transformers is called with, as a `Call`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask
from transformers import masking_utils as theirs
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss
from transformers.models.t5 import modeling_t5

from rearview import attend, causal, full
from rearview.attention.call import Call
from rearview.attention.functional import run, weights_of
from rearview.errors import BadArgument, Unsupported
from rearview.integrations.transformers import call_of
from rearview.integrations.transformers.registered_functions import rearview_attention, rearview_mask
from tests.integrations.transformers_releases import T5_USES_INTERFACE, at


class Attention(nn.Module):
    """The attributes that an attention function reads from its module."""

    def __init__(self, is_causal: bool = True, groups: int = 1):
        super().__init__()
        self.is_causal, self.num_key_value_groups = is_causal, groups
        self.sinks = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 0.0]))
        self.eval()


def states(q_len: int = 5, k_len: int = 5, key_heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    make = torch.Generator().manual_seed(0)
    sizes = ((4, q_len), (key_heads, k_len), (key_heads, k_len))
    query, key, value = (torch.randn(2, heads, length, 8, generator=make) for heads, length in sizes)
    return query, key, value


def close(call: Call, expected: Tensor) -> None:
    torch.testing.assert_close(run(call)[0].transpose(1, 2), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("q_len", "k_len"), [(5, 5), (1, 5), (3, 5)])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("said", [None, True, False])
def test_no_mask_means_is_causal_in_sdpa(q_len: int, k_len: int, is_causal: bool, said: bool | None):
    module, tensors = Attention(is_causal, groups=2), states(q_len, k_len, key_heads=2)
    expected, _ = sdpa_attention_forward(module, *tensors, None, is_causal=said)
    for implementation in ("sdpa", "rearview"):
        close(call_of(module, *tensors, None, implementation=implementation, is_causal=said), expected)


def test_no_mask_is_no_mask_in_eager():
    assert repr(call_of(Attention(), *states(), None, implementation="eager").mask) == "full()"
    assert repr(call_of(Attention(), *states(), None, implementation="flex_attention").mask) == "full()"
    assert repr(call_of(Attention(), *states(), None, implementation="sdpa").mask) == "causal()"


REAL = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]).bool()
FORMS = {"sdpa": theirs.sdpa_mask, "eager": theirs.eager_mask, "rearview": rearview_mask}


@pytest.mark.parametrize("implementation", FORMS)
@pytest.mark.parametrize(("q_len", "q_offset"), [(5, 0), (2, 3), (2, 1)])
def test_the_mask_of_each_implementation(implementation: str, q_len: int, q_offset: int):
    function = theirs.sliding_window_causal_mask_function(3)
    given: dict[str, Any] = {"batch_size": 2, "kv_length": 5, **at(q_len, q_offset)}
    given |= {"mask_function": function, "attention_mask": REAL}
    got = FORMS[implementation](**given)
    query, key, value = states(q_len)
    expected, _ = sdpa_attention_forward(Attention(), query, key, value, theirs.sdpa_mask(**given))
    call = call_of(Attention(), query, key, value, got, implementation=implementation)
    close(call, expected)
    assert call.bias is None


def test_a_block_mask():
    def look_back(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k

    made = create_block_mask(look_back, 1, 1, 128, 128, device="cpu")
    tensors = states(128, 128)
    call = call_of(Attention(), *tensors, made, implementation="flex_attention")
    assert call.mask.equals(causal(), 128)


def test_a_mask_that_is_the_same_for_every_query_is_padding():
    for seen in (REAL[:, None, None], torch.where(REAL, 0.0, -torch.inf)[:, None, None]):
        call = call_of(Attention(), *states(), seen, implementation="sdpa")
        assert call.mask.has_ranges
        assert torch.equal(call.mask.to_bool(5)[:, 0, 0], REAL)


def test_more_columns_than_keys_are_cropped_and_fewer_are_an_error():
    wide = causal().to_bool(8)[:5].expand(2, 1, 5, 8)
    assert call_of(Attention(), *states(), wide).mask.equals(causal(), 5)
    with pytest.raises(BadArgument, match=r"attention_mask: expected a tensor that broadcasts to \[2, 4, 5, 5\]"):
        call_of(Attention(), *states(), wide[..., :3])
    other = rearview_mask(batch_size=2, q_length=4, kv_length=4)
    with pytest.raises(BadArgument, match=r"a mask for 5 queries over 5 keys.*causal\(\), 4 queries"):
        call_of(Attention(), *states(), other)


def test_other_numbers_in_an_additive_mask_are_a_bias():
    query, key, value = states()
    bias = torch.randn(1, 4, 5, 5, requires_grad=True)
    added = torch.where(causal().to_bool(5), bias, torch.finfo(torch.float32).min)
    expected, _ = sdpa_attention_forward(Attention(), query, key, value, added)
    call = call_of(Attention(), query, key, value, added, implementation="eager")
    close(call, expected)
    (got,) = torch.autograd.grad(run(call)[0].sum(), bias, retain_graph=True)
    (same,) = torch.autograd.grad(expected.sum(), bias)
    torch.testing.assert_close(got, same, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not T5_USES_INTERFACE, reason="T5 has no attention function in this release")
@pytest.mark.parametrize("masked", [True, False])
def test_position_bias(masked: bool):
    module, tensors, bias = Attention(is_causal=False), states(3), torch.randn(1, 4, 3, 5)
    given: dict[str, Any] = {"batch_size": 2, "kv_length": 5, **at(3, 2)}
    mask = theirs.eager_mask(**given) if masked else None
    expected, _ = modeling_t5.eager_attention_forward(module, *tensors, mask, position_bias=bias)
    mask = rearview_mask(**given) if masked else None
    close(call_of(module, *tensors, mask, position_bias=bias), expected)


def test_sinks_take_their_share():
    module, tensors = Attention(groups=2), states(key_heads=2)
    given: dict[str, Any] = {"batch_size": 2, "kv_length": 5, "attention_mask": REAL, **at(5)}
    expected, weights = gpt_oss(module, *tensors, theirs.eager_mask(**given), scaling=0.4)
    call = call_of(module, *tensors, rearview_mask(**given), scaling=0.4, s_aux=module.sinks)
    close(call, expected)
    torch.testing.assert_close(weights_of(call), weights, rtol=1e-5, atol=1e-6)
    assert (weights_of(call).sum(-1) < 1).all()
    (got,) = torch.autograd.grad(run(call)[0].square().sum(), module.sinks)
    (same,) = torch.autograd.grad(expected.square().sum(), module.sinks)
    torch.testing.assert_close(got, same, rtol=1e-4, atol=1e-5)


def test_dropout_only_while_training():
    module = Attention()
    assert call_of(module, *states(), None, dropout=0.25).dropout == 0.0
    assert call_of(module.train(), *states(), None, dropout=0.25).dropout == 0.25


def test_packed_sequences_by_their_ends():
    """Padding-free batches pass the ends of sequences next to the mask; SDPA and eager attention ignore them."""
    query, key, value = (each[:1] for each in states())
    ends = torch.tensor([0, 2, 5], dtype=torch.int32)
    call = call_of(Attention(), query, key, value, None, cu_seq_lens_q=ends, cu_seq_lens_k=ends)
    assert call.mask.to_bool(5).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]
    theirs_call = call_of(Attention(), query, key, value, None, implementation="sdpa", cu_seq_lens_q=ends)
    assert repr(theirs_call.mask) == "causal()"
    reason = "cu_seq_lens is supported for a single row whose queries and keys are the same positions"
    with pytest.raises(Unsupported, match=reason):
        call_of(Attention(), *states(), None, cu_seq_lens_q=ends, cu_seq_lens_k=ends)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"implementation": "flash_attention_2"},
            "it receives only the padding as a mask; the rest is in arguments of its own",
        ),
        ({"sliding_window": 3}, "there is a sliding window of 3 over 5 keys, and no mask"),
        (
            {"relative_bias": torch.zeros(1)},
            "the keyword 'relative_bias' holds a tensor, which may change who is heard",
        ),
        ({"cache": object()}, "continuous batching passes its keys in pages"),
        (
            {"block_indices": torch.zeros(1)},
            "the module has no indexer.build_block_mask, or was called without a mask to combine the blocks with",
        ),
    ],
)
def test_what_cannot_be_translated_is_refused(given: dict[str, Any], reason: str):
    with pytest.raises(Unsupported, match=reason):
        call_of(Attention(), *states(), None, **given)


def test_a_call_that_cannot_be_watched_is_refused():
    advice = r"in pages\nThe model can run this way only while it is not watched\.$"
    with pytest.raises(Unsupported, match=advice):
        call_of(Attention(), *states(), None, implementation="sdpa", cache=object())


def test_arguments_for_other_parts_are_accepted():
    others = {"position_ids": torch.arange(5), "use_cache": True, "num_items_in_batch": torch.tensor(3), "extra": None}
    assert repr(call_of(Attention(), *states(), None, sliding_window=8, **others).mask) == "causal()"


def test_other_values_are_refused_as_masks():
    for wrong in (REAL, REAL[:, None, None].long(), "causal"):
        with pytest.raises(Unsupported, match="this attention_mask"):
            call_of(Attention(), *states(), wrong)  # type: ignore[arg-type]


def test_blocks_of_keys_that_a_model_chooses():
    class Indexer:
        def build_block_mask(self, blocks: Tensor, mask: Tensor, k_len: int, dtype: Any, *place: Any) -> Tensor:
            kept = torch.isin(torch.arange(k_len) // 2, blocks)
            return mask.masked_fill(~kept, torch.finfo(dtype).min)

    module = Attention()
    module.indexer = Indexer()  # type: ignore[assignment]
    mask = rearview_mask(batch_size=2, q_length=5, kv_length=5)
    call = call_of(module, *states(), mask, block_indices=torch.tensor([0]))
    assert call.mask.to_bool(5)[0, 0].int().tolist() == [[1, 0, 0, 0, 0]] + [[1, 1, 0, 0, 0]] * 4


def test_a_call_has_all_options_of_attend():
    query, key, value = states()
    out, none = rearview_attention(Attention(False), query, key, value, None, scaling=0.3, softcap=2.0)
    assert none is None
    assert torch.equal(out, attend(query, key, value, mask=full(), scale=0.3, softcap=2.0).transpose(1, 2))
