"""The masks of transformers, read as masks: equal to its own tensor at every place, in memory of O(T)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import masking_utils as theirs

from rearview import causal, full, padding, window
from rearview.errors import BadArgument
from rearview.integrations.transformers import mask_functions, register
from rearview.integrations.transformers.mask_tensor import MaskTensor
from rearview.integrations.transformers.registered_functions import rearview_mask
from rearview.masks import Frame
from tests.integrations.transformers_releases import at

LENGTH = 20


def real(length: int = LENGTH) -> Tensor:
    """Which keys are real: item 1 is padded on the left."""
    return torch.stack([torch.arange(length) >= 0, torch.arange(length) >= 5])


def functions(length: int = LENGTH) -> dict[str, Callable[..., Any]]:
    """Every function that transformers has for masks, and compositions as its models make them."""
    position = torch.arange(length)
    ids = torch.stack([torch.bucketize(position, torch.tensor(cuts), right=True) for cuts in ([4, 13], [11, 13])])
    # -1 belongs to no block.
    blocks = torch.full((2, length), -1)
    blocks[0, 3:8], blocks[0, 10:14], blocks[1, :6] = 0, 1, 0
    look_back = theirs.causal_mask_function
    both_and, both_or, recent = theirs.and_masks, theirs.or_masks, theirs.sliding_window_overlay
    found = {
        "causal": look_back,
        "both ways": theirs.bidirectional_mask_function,
        "window": theirs.sliding_window_causal_mask_function(5),
        "window of the past, open to the future": recent(5),
        "chunks": theirs.chunked_causal_mask_function(4, torch.tensor([0, 0])),
        "chunks behind padding": theirs.chunked_causal_mask_function(4, torch.tensor([0, 5])),
        "packed": both_and(look_back, theirs.packed_sequence_mask_function(ids)),
        "padding": both_and(theirs.padding_mask_function(real(length)), look_back),
    }
    # Earlier releases have none of these.
    if hasattr(theirs, "sliding_window_bidirectional_mask_function"):
        found["window both ways"] = theirs.sliding_window_bidirectional_mask_function(3)
    if hasattr(theirs, "blockwise_overlay"):
        block = theirs.blockwise_overlay(blocks)
        found["images"] = both_or(look_back, block)
        found["images in a window"] = both_and(both_or(look_back, block), recent(5))
        found["a window inside"] = both_and(both_or(recent(2), block), look_back)
    return found


FUNCTIONS = functions()
# q_length, kv_length, q_offset, kv_offset: all at once, a step, a chunk of a prompt, a static cache that is larger than
# its contents, a sliding cache that has dropped its first keys.
PLACES = [(20, 20, 0, 0), (1, 12, 11, 0), (4, 12, 8, 0), (3, 20, 6, 0), (1, 6, 14, 9), (4, 9, 13, 8)]


def both(function: Callable[..., Any], place: tuple[int, ...], **more: Any) -> tuple[MaskTensor, Tensor]:
    q_length, kv_length, q_offset, kv_offset = place
    given: dict[str, Any] = {
        "batch_size": 2,
        "kv_length": kv_length,
        "kv_offset": kv_offset,
        "mask_function": function,
        **at(q_length, q_offset),
    }
    got = rearview_mask(**given, **more, allow_is_causal_skip=True, local_size=3)
    assert isinstance(got, MaskTensor)
    expected = theirs.sdpa_mask(**given, **more, allow_is_causal_skip=False)
    assert expected is not None
    return got, expected


def heard(mask: MaskTensor) -> Tensor:
    return mask.mask.visible_in(mask.frame, mask.device).expand(mask.shape)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_at_every_place(name: str, place: tuple[int, ...], padded: bool):
    got, expected = both(FUNCTIONS[name], place, attention_mask=real() if padded else None)
    assert got.mask.has_ranges
    assert torch.equal(heard(got), expected)
    # The ranges say the same as the rule.
    spans = got.mask.spans_in(got.frame, got.device)
    frame = got.frame
    filled = torch.zeros(spans.batch, spans.heads, frame.q_len, frame.k_len, dtype=torch.bool)
    for item in range(spans.batch):
        for row, ranges in enumerate(spans.rows(batch=item)):
            for start, end in ranges:
                filled[item, :, row, start:end] = True
    assert torch.equal(filled.expand(2, 1, -1, -1), expected)


def test_masks_print_as_expressions():
    assert repr(both(FUNCTIONS["window"], PLACES[0])[0].mask) == "causal() & window(5)"
    assert repr(both(FUNCTIONS["chunks"], PLACES[0])[0].mask) == "causal() & chunks(4)"
    assert repr(both(FUNCTIONS["both ways"], PLACES[0])[0].mask) == "full()"
    # Padding that pads nothing here is none.
    got, _ = both(theirs.causal_mask_function, (1, 6, 14, 9), attention_mask=real())
    assert repr(got) == "MaskTensor(causal(), 1 query at 5, 6 keys)"


def test_a_mask_shorter_than_a_static_cache_leaves_the_rest_unheard():
    got, expected = both(theirs.causal_mask_function, (3, 20, 6, 0), attention_mask=real(9))
    assert torch.equal(heard(got), expected)
    assert not heard(got)[..., 9:].any()


def test_a_static_cache_passes_its_offset_as_a_tensor():
    got = rearview_mask(batch_size=1, q_length=2, kv_length=8, q_offset=torch.tensor(3))
    assert repr(got) == "MaskTensor(causal(), 2 queries at 3, 8 keys)"


def test_a_function_of_the_users_is_evaluated():
    def every_other(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key) % 2 == 0

    function = theirs.and_masks(theirs.causal_mask_function, every_other)
    for place in PLACES:
        for use_vmap in (False, True):
            got, expected = both(function, place, attention_mask=real(), use_vmap=use_vmap)
            assert repr(got.mask).startswith("dense(")
            assert torch.equal(heard(got), expected)


@pytest.mark.parametrize("known", [True, False])
def test_releases_that_pass_the_position_of_each_query(known: bool, monkeypatch: pytest.MonkeyPatch):
    place, made = {"batch_size": 2, "kv_length": 12, "kv_offset": 0, "attention_mask": real()}, theirs.sdpa_mask

    def earlier(cache_position: Tensor, **given: Any) -> Tensor | None:
        return made(**at(len(cache_position), int(cache_position[0])), **given)

    monkeypatch.setattr(theirs, "sdpa_mask", earlier)
    function = FUNCTIONS["window"] if known else theirs.and_masks(FUNCTIONS["window"], lambda b, h, q, k: k % 2 == 0)
    got = rearview_mask(**place, mask_function=function, cache_position=torch.arange(8, 12))
    assert isinstance(got, MaskTensor)
    assert repr(got.mask).startswith("dense(") != known
    expected = made(**place, **at(4, 8), mask_function=function, allow_is_causal_skip=False)
    assert expected is not None
    assert torch.equal(heard(got), expected)
    with pytest.raises(
        BadArgument, match=r"^q_length: expected the number of queries, or cache_position, got neither\.$"
    ):
        rearview_mask(**place)


def test_queries_before_the_first_key_are_evaluated():
    got, expected = both(theirs.chunked_overlay(4, torch.tensor([0, 0])), (4, 6, 1, 3))
    assert expected.any()
    assert torch.equal(heard(got), expected)


def test_a_function_with_a_changed_meaning_is_not_misread(monkeypatch: pytest.MonkeyPatch):
    """Another release of transformers may count a window differently under the same names."""

    def sliding_window_overlay(sliding_window: int) -> Callable[..., Any]:
        def inner_mask(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
            return kv_idx >= q_idx - sliding_window

        return inner_mask

    def packed_sequence_mask_function(ids: Tensor) -> Callable[..., Any]:
        # Another variable in its closure.
        return lambda batch_idx, head_idx, q_idx, kv_idx: ids[batch_idx, q_idx] == ids[batch_idx, kv_idx]

    monkeypatch.setattr(theirs, "sliding_window_overlay", sliding_window_overlay)
    monkeypatch.setattr(theirs, "packed_sequence_mask_function", packed_sequence_mask_function)
    for name in ("blockwise_overlay", "sliding_window_bidirectional_overlay"):
        monkeypatch.delattr(theirs, name, raising=False)
    mask_functions._readers.cache_clear()
    try:
        known = {reader.__name__ for reader in mask_functions._readers().values()}
        assert known == {"_causal", "_both_ways", "_chunks", "_real"}
        for function in (sliding_window_overlay(5), packed_sequence_mask_function(real().long())):
            got, expected = both(theirs.and_masks(theirs.causal_mask_function, function), PLACES[0])
            assert torch.equal(heard(got), expected)
    finally:
        mask_functions._readers.cache_clear()


class Largest(TorchDispatchMode):
    """Records the largest number of elements of a tensor with memory."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and not isinstance(tensor, MaskTensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_32768_positions_make_no_dense_mask():
    register()
    time = 32768
    sizes: Any = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = hf.MistralConfig(**sizes, num_key_value_heads=1, vocab_size=16, sliding_window=64)
    model = hf.MistralModel._from_config(config, attn_implementation="rearview").eval()
    with torch.no_grad(), Largest() as largest:
        model(torch.zeros(2, time, dtype=torch.long), attention_mask=real(time))
    # The rows, and the scores of a strip of them: nothing near T x T.
    assert largest.elements < 128 * time


@pytest.mark.parametrize("name", FUNCTIONS)
def test_32768_positions_of_every_function(name: str):
    time = 32768
    given: dict[str, Any] = {"batch_size": 2, "kv_length": time, "attention_mask": real(time), **at(time)}
    function = functions(time)[name]
    with Largest() as largest:
        mask = rearview_mask(**given, mask_function=function)
        assert isinstance(mask, MaskTensor)
        assert mask.mask.spans_in(mask.frame, mask.device).starts.shape[0] == 2
    assert largest.elements <= 16 * time


# MaskTensor.

MASK = MaskTensor.of(causal() & window(3), Frame.of(4, 6), batch=2)


def test_operations_that_keep_the_mask():
    for same in (MASK[:, :, :, :6], MASK.detach(), MASK.clone(), MASK.contiguous(), MASK.to("cpu"), MASK[:, :, :4, :]):
        assert isinstance(same, MaskTensor)
        assert (repr(same.mask), same.frame, same.shape) == (repr(MASK.mask), MASK.frame, MASK.shape)
    cropped = MASK[:, :, :, :5]
    assert isinstance(cropped, MaskTensor)
    assert cropped.frame == Frame(4, 5, 2)
    assert torch.equal(cropped.dense(), MASK.dense()[..., :5])
    half = MASK.to(torch.float16)
    assert isinstance(half, MaskTensor)
    assert half.dense().min() == torch.finfo(torch.float16).min


def test_other_operations_give_the_dense_tensor():
    dense = MASK.dense()
    assert not isinstance(dense, MaskTensor)
    added = torch.where((causal() & window(3)).to_bool(4, 6), 0.0, torch.finfo(torch.float32).min)
    assert torch.equal(dense, added.expand(2, 1, 4, 6))
    for got, expected in (
        (MASK[:, 0], dense[:, 0]),
        (MASK[:, :, 1:], dense[:, :, 1:]),
        (MASK[..., ::2], dense[..., ::2]),
        (MASK[..., :-1], dense[..., :-1]),
        (MASK == 0, dense == 0),
        (torch.cat([MASK, MASK], -1), torch.cat([dense, dense], -1)),
        (MASK.bool(), dense.bool()),
        (MASK.repeat(1, 4, 1, 1), dense.repeat(1, 4, 1, 1)),
        (torch.zeros(2, 3, 4, 6) + MASK, dense.expand(2, 3, 4, 6)),
    ):
        assert torch.equal(got.dense() if isinstance(got, MaskTensor) else got, expected)


def test_full_and_padding_pass_through_too():
    assert MaskTensor.of(full(), Frame.of(2, 3), batch=1).dense().tolist() == [[[[0.0] * 3] * 2]]
    got = MaskTensor.of(padding([1, 3]), Frame.of(1, 3), batch=2)
    assert (got == 0).int().tolist() == [[[[1, 0, 0]]], [[[1, 1, 1]]]]
