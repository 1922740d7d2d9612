"""The call that everything carries: its options, its signature in `help`, and how it is changed."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rearview import alibi, attend, causal, full, plan, window
from rearview.attention import statistics, weights, weights_tile
from rearview.attention.call import Call, CallOptions, ScoreOptions
from rearview.errors import BadArgument
from rearview.masks import Frame


def tensors(q_len: int = 5, k_len: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    make = torch.Generator().manual_seed(0)
    shapes = ((2, 4, q_len, 8), (2, 2, k_len, 8), (2, 2, k_len, 8))
    query, key, value = (torch.randn(shape, generator=make) for shape in shapes)
    return query, key, value


def test_every_option_is_written_in_one_place():
    """`Call.of` has the options of the two TypedDicts and no other, each with its default."""
    every = inspect.signature(Call.of).parameters
    named = [name for name, each in every.items() if each.kind is inspect.Parameter.KEYWORD_ONLY]
    assert named == [*CallOptions.__annotations__, "return_lse"]
    others = {"dropout", "generator", "pages", "lengths", "batch_invariant"}
    assert set(ScoreOptions.__annotations__) == set(CallOptions.__annotations__) - others


@pytest.mark.parametrize(
    ("function", "options", "own"),
    [
        (attend, CallOptions, ["engine", "return_lse"]),
        (plan, CallOptions, ["engine", "return_lse"]),
        (weights, ScoreOptions, ["rows"]),
        (statistics, ScoreOptions, ["map_size", "links", "bin_width"]),
        (weights_tile, ScoreOptions, []),
    ],
)
def test_help_shows_every_option(function, options, own: list[str]):
    shown = inspect.signature(function).parameters
    keywords = [name for name, each in shown.items() if each.kind is inspect.Parameter.KEYWORD_ONLY]
    assert keywords == [*options.__annotations__, *own]
    assert repr(shown["mask"].default) == "causal()"
    assert all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in shown.values())


def test_an_unknown_keyword_is_named_and_a_near_one_suggested():
    query, key, value = tensors()
    with pytest.raises(BadArgument) as error:
        attend(query, key, value, maks=causal())  # type: ignore[call-overload]
    assert str(error.value) == (
        "maks: expected one of the keywords mask, q_start, bias, scale, softcap, sinks, dropout, generator, pages, "
        "lengths, batch_invariant, engine, return_lse, got 'maks'. Did you mean mask=?"
    )
    with pytest.raises(BadArgument, match=r"expected one of the keywords .*, got 'enigne'. Did you mean engine=\?"):
        plan(query, key, value, enigne="sdpa")  # type: ignore[call-arg]
    with pytest.raises(BadArgument, match=r"scale, softcap, sinks, got 'dropout'\.$"):
        weights(query, key, dropout=0.1)  # type: ignore[call-arg]
    with pytest.raises(BadArgument, match=r"got 'is_causal'\.$"):
        statistics(query, key, is_causal=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("q_start", [None, 0, 3])
@pytest.mark.parametrize("bias", [None, alibi(4), torch.ones(5)])
def test_the_options_give_the_same_call_again(q_start: int | None, bias):
    given: dict[str, Any] = {
        "mask": causal() & window(3),
        "bias": bias,
        "scale": 0.3,
        "softcap": 2.0,
        "sinks": torch.zeros(4),
    }
    call = Call.of(*tensors(2, 5), q_start=q_start, dropout=0.5, **given)
    again = Call.of(call.query, call.key, call.value, **call.options)
    assert again.frame == call.frame == Frame.of(2, 5, q_start)
    for name in ("mask", "scale", "softcap", "dropout", "generator", "return_lse"):
        assert getattr(again, name) is getattr(call, name) or getattr(again, name) == getattr(call, name)
    assert again.sinks is call.sinks
    plain = replace(call, dropout=0.0)
    assert torch.equal(attend(*tensors(2, 5), **plain.options), attend(*tensors(2, 5), q_start=q_start, **given))
    assert torch.equal(
        weights(call.query, call.key, **call.score_options), weights(*tensors(2, 5)[:2], q_start=q_start, **given)
    )


def test_a_changed_call_simplifies_its_mask_again():
    call = Call.of(*tensors(), mask=causal() & window(3))
    assert repr(replace(call, mask=causal() & window(9)).simplified) == "causal()"
    assert repr(replace(call, mask=full()).simplified) == "full()"
    assert repr(replace(call, frame=Frame(5, 5, 100)).simplified) == "window(3)"


@pytest.mark.parametrize("bias", [alibi(4), torch.ones(5)])
def test_what_a_backward_pass_keeps_holds_no_tensor(bias):
    call = Call.of(*tensors(), bias=bias, sinks=torch.zeros(4), scale=0.3)
    kept = call.without_tensors()
    assert (kept.query.numel(), kept.key.numel(), kept.value.numel(), kept.sinks) == (0, 0, 0, None)
    assert kept.bias is call.alibi
    for name in ("mask", "simplified", "frame", "scale", "softcap", "dropout", "seed"):
        assert getattr(kept, name) is getattr(call, name)
