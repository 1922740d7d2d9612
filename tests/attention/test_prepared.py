"""A call of a known kind gives what the usual way gives, and everything that the answer depends on is in the kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rearview import Mask, RearviewError, alibi, attend, causal, documents, full, prefix, window
from rearview.attention import prepared
from rearview.attention.call import Call
from rearview.attention.functional import run


def inputs(q_len: int = 12, k_len: int = 12, *, heads: int = 4, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(q_len + k_len)
    shapes = ((2, heads, q_len, 32), (2, 2, k_len, 32), (2, 2, k_len, 32))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def by_the_usual_way(tensors: list[Tensor], *, engine: str = "auto", **options: Any) -> tuple[Tensor, Tensor | None]:
    return run(Call.of(*tensors, **options), engine=engine)


MASKS: dict[str, Callable[[], Mask]] = {
    "causal": causal,
    "everything": full,
    "a window": lambda: causal() & window(5),
    "sinks and a window": lambda: (causal() & window(5)) | (causal() & prefix(2)),
    "documents": lambda: causal() & documents([0] * 7 + [1] * 5),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a scale": {"scale": 0.3},
    "a negative scale": {"scale": -0.3},
    "a softcap": {"softcap": 2.0},
    "alibi": {"bias": alibi(4)},
    "sinks": {"sinks": torch.tensor([0.0, 1.0, -1.0, 2.0])},
    "the log-sum-exp": {"return_lse": True},
    "batch-invariant": {"batch_invariant": True},
    "a later start": {"q_start": 0},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("trains", [False, True], ids=["", "with gradients"])
def test_a_repeated_call_equals_the_usual_way(mask: str, name: str, trains: bool):
    options = {**OPTIONS[name], "mask": MASKS[mask]()}
    for number in range(3):
        tensors = [(tensor + number).requires_grad_(trains) for tensor in inputs()]
        answer = attend(*tensors, **options)
        out, lse = answer if options.get("return_lse") else (answer, None)
        wanted, wanted_lse = by_the_usual_way(tensors, **options)
        assert torch.equal(out, wanted)
        assert lse is None or (wanted_lse is not None and torch.equal(lse, wanted_lse))
        if trains:
            grads = [torch.autograd.grad(each.sum(), tensors) for each in (out, wanted)]
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(*grads, strict=True))


@pytest.mark.parametrize("engine", ["auto", "native", "sdpa"])
def test_a_cache_that_grows(engine: str):
    for make_mask in MASKS.values():
        mask, (_, key, value) = make_mask(), inputs(1, 12)
        for length in (1, 2, 7, 12):
            query = torch.randn(2, 4, 1, 32, generator=torch.Generator().manual_seed(length))
            step = [query, key[:, :, :length], value[:, :, :length]]
            assert torch.equal(
                attend(*step, mask=mask, engine=engine), by_the_usual_way(step, mask=mask, engine=engine)[0]
            )


@pytest.mark.parametrize("mask", ["causal", "everything", "a window"])
def test_a_step_of_pytorch_is_remembered_for_any_number_of_keys(mask: str):
    one, (_, key, value) = MASKS[mask](), inputs(1, 12)
    query = torch.randn(2, 4, 1, 32)
    attend(query, key[:, :, :3], value[:, :, :3], mask=one, engine="sdpa")
    (step,) = prepared.plans_of(one).values()
    assert step is not None
    key, value = key.clone(), value.clone()
    if mask == "a window":
        key[:, :, :7], value[:, :, :7] = torch.nan, torch.nan
    answer = step(query, key, value, None)
    assert answer is not None
    torch.testing.assert_close(answer[0], attend(query, key, value, mask=one, engine="reference"))


def kind(tensors: list[Tensor], engine: str = "auto", **options: Any) -> prepared.Kind | None:
    return prepared.kind_of(tensors[0], tensors[1], tensors[2], engine, False, options)


def test_what_makes_another_kind():
    tensors = inputs()
    known = kind(tensors)
    assert known is not None
    assert known == kind([tensor + 1 for tensor in tensors])
    strided = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors]
    others = [
        kind(inputs(11)), kind(inputs(12, 13)), kind(inputs(heads=2)), kind(inputs(dtype=torch.float64)),
        kind([tensors[0], tensors[1].double(), tensors[2]]), kind(strided), kind(tensors, "sdpa"),
        kind(tensors, scale=0.5), kind(tensors, scale=1), kind(tensors, scale=1.0), kind(tensors, scale=True),
        kind(tensors, sinks=torch.zeros(4)), kind(tensors, sinks=torch.zeros(4, requires_grad=True)),
        kind(tensors, lengths=torch.tensor([3, 4])), kind(tensors, bias=alibi(4)), kind(tensors, q_start=0),
        kind([tensors[0].requires_grad_(), *tensors[1:]]),
    ]  # fmt: skip
    with torch.autocast("cpu", torch.bfloat16):
        assert kind(tensors) is None
        others.append(kind([tensor.detach().bfloat16() for tensor in tensors]))
    others.append(kind([tensor.detach().bfloat16() for tensor in tensors]))
    assert None not in others
    assert len({known, *others}) == len(others) + 1
    with torch.no_grad():
        assert kind(tensors) == known


def test_calls_that_are_not_remembered():
    tensors = inputs()
    wrapped = [torch.nn.Parameter(tensors[0]), *tensors[1:]]
    assert kind(wrapped) is not None

    class Subclass(Tensor):
        pass

    assert kind([tensors[0].as_subclass(Subclass), *tensors[1:]]) is None
    assert kind([tensors[0].to_sparse(), *tensors[1:]]) is None
    assert kind([torch.complex(tensors[0], tensors[0]).conj().imag, *tensors[1:]]) is None
    assert kind([tensor[0] for tensor in tensors]) is None
    assert kind(tensors, bias=torch.zeros(12, 12)) is None
    assert kind(tensors, generator=torch.Generator()) is None
    assert kind(tensors, unknown=3) is None
    seen = []
    torch.func.vmap(lambda x: (seen.append(kind([x, x, x])), x)[1])(torch.randn(3, 2, 4, 5, 8))
    with torch.autograd.forward_ad.dual_level():
        seen.append(kind(tensors))
    with torch.overrides.BaseTorchFunctionMode():
        seen.append(kind(tensors))
    assert seen == [None, None, None]


WRONG: list[dict[str, Any]] = [{"scale": True}, {"batch_invariant": 1}, {"softcap": -1.0}, {"sinks": torch.zeros(3)}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_wrong_argument_is_found_after_a_right_one(wrong: dict[str, Any]):
    tensors, mask = inputs(), causal()
    right = {"scale": 1.0, "batch_invariant": True, "softcap": 1.0, "sinks": torch.zeros(4)}
    (name,) = wrong
    attend(*tensors, mask=mask, **{name: right[name]})
    with pytest.raises(RearviewError, match=f"^{name}: "):
        attend(*tensors, mask=mask, **wrong)


def test_a_step_finds_what_is_wrong_with_the_keys():
    query, key, value = inputs(1, 12)
    mask = causal() & documents([0] * 12)
    attend(query, key, value, mask=mask)
    longer = torch.cat([key, key], dim=2)
    with pytest.raises(RearviewError, match="documents"):
        attend(query, longer, longer, mask=mask)
    with pytest.raises(RearviewError, match=r"^value: expected the batch, heads and time of key"):
        attend(query, key, longer, mask=mask)
    assert bool((attend(query, key[:, :, :0], value[:, :, :0], mask=mask) == 0).all())


def test_kinds_are_forgotten():
    mask = causal() & window(3)
    for length in range(2, prepared.MOST_KINDS + 9):
        attend(*inputs(length, length), mask=mask)
    assert len(prepared.plans_of(mask)) == prepared.MOST_KINDS


def test_a_dropout_is_drawn_each_time():
    tensors, mask = inputs(), causal()
    first, second = (attend(*tensors, mask=mask, dropout=0.5) for _ in range(2))
    assert not torch.equal(first, second)
