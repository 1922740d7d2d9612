"""Dropout: repeatable with a generator, right on average, never where the mask forbids, and with its own gradient."""

import pytest
import torch
from torch import Tensor

from rearview import Mask, Unsupported, attend, causal, dilated, full, padding, per_head, prefix, weights, window
from rearview.attention.engines.blocks import schedule
from tests.native_kernel import NATIVE, needs_native

BATCH, HEADS, TIME, DIM = 2, 2, 9, 4

engines = pytest.mark.parametrize("engine", ["reference", "blocks", NATIVE])
RANGES = [causal(), (causal() & window(3)) | prefix(1), per_head([causal(), full()])]
engines_and_masks = pytest.mark.parametrize(
    ("engine", "mask"),
    [
        *((engine, mask) for engine in ("reference", "blocks") for mask in (*RANGES, causal() & dilated(2))),
        *(pytest.param("native", mask, marks=needs_native) for mask in RANGES),
    ],
    ids=str,
)


@pytest.fixture(autouse=True)
def many_tiles(monkeypatch: pytest.MonkeyPatch):
    """Strips of 4 queries and tiles of 3 keys, so that these small inputs are dropped out tile by tile."""
    for name, size in {"SHORT_ROW_STRIP": 4, "LONG_ROW_STRIP": 4, "KEYS_PER_TILE": 3}.items():
        monkeypatch.setattr(schedule, name, size)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs() -> list[Tensor]:
    return [draw(BATCH, HEADS, TIME, DIM, seed=seed) for seed in (1, 2, 3)]


def dropped(tensors: list[Tensor], *, seed: int, dropout: float = 0.4, **options) -> Tensor:
    return attend(*tensors, dropout=dropout, generator=torch.Generator().manual_seed(seed), **options)


def used_weights(query: Tensor, key: Tensor, **options) -> Tensor:
    """The weights that a call with dropout really used: its output for values that are the unit vectors."""
    units = torch.eye(TIME, dtype=torch.float64).expand(BATCH, HEADS, TIME, TIME)
    return dropped([query, key, units], **options)


@engines
def test_a_generator_makes_it_repeatable(engine: str):
    tensors = inputs()
    first = dropped(tensors, seed=5, engine=engine)
    assert torch.equal(dropped(tensors, seed=5, engine=engine), first)
    assert not torch.allclose(dropped(tensors, seed=6, engine=engine), first)
    # A generator advances: two calls draw differently, and the global seed has no effect.
    generator = torch.Generator().manual_seed(5)
    one, two = (attend(*tensors, dropout=0.4, generator=generator, engine=engine) for _ in range(2))
    assert torch.equal(one, first)
    assert not torch.allclose(two, first)


@engines
def test_without_a_generator_the_global_seed_decides(engine: str):
    tensors = inputs()
    found = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        found.append(attend(*tensors, dropout=0.4, engine=engine))
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


@engines_and_masks
def test_a_weight_is_dropped_or_scaled_up(engine: str, mask: Mask):
    query, key, _ = inputs()
    used = used_weights(query, key, seed=1, dropout=0.25, mask=mask, engine=engine)
    kept = weights(query, key, mask=mask) / 0.75
    visible = mask.to_bool(TIME).expand_as(used)
    assert bool((used[~visible] == 0).all())
    gone = used == 0
    assert torch.allclose(used[~gone], kept[~gone])
    share = float(gone[visible].double().mean())
    # About 90 draws or more: three standard deviations.
    assert abs(share - 0.25) < 3 * (0.25 * 0.75 / int(visible.sum())) ** 0.5


@engines_and_masks
def test_the_mean_is_the_output_without_it(engine: str, mask: Mask):
    tensors = inputs()
    generator = torch.Generator().manual_seed(2)
    draws = [attend(*tensors, mask=mask, dropout=0.3, generator=generator, engine=engine) for _ in range(400)]
    outputs = torch.stack(draws)
    expected = attend(*tensors, mask=mask, engine="reference")
    error, deviation = (outputs.mean(0) - expected).abs(), outputs.std(0) / 400**0.5
    assert bool((error <= 5 * deviation + 1e-12).all())
    assert float(outputs.std(0).max()) > 0.1


@engines
def test_batch_items_and_heads_draw_independently(engine: str):
    same = draw(1, 1, TIME, DIM, seed=1).expand(BATCH, HEADS, TIME, DIM)
    used = used_weights(same, same, seed=3, dropout=0.5, mask=full(), engine=engine)
    patterns = {tuple((item == 0).flatten().tolist()) for item in used.flatten(0, 1)}
    assert len(patterns) == BATCH * HEADS


@pytest.mark.parametrize("engine", ["blocks", NATIVE])
@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize(
    "mask",
    [causal(), (causal() & window(3)) | prefix(1), causal() & padding([5, 2]), per_head([causal(), window(2)])],
    ids=str,
)
def test_the_gradient_is_that_of_the_same_draw(engine: str, mask: Mask, key_heads: int):
    query = draw(2, 2, 5, 3, seed=1).requires_grad_()
    key, value = (draw(2, key_heads, 5, 3, seed=seed).requires_grad_() for seed in (2, 3))
    bias = draw(2, 5, 5, seed=4).requires_grad_()

    def run(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        # Drawn from the same seed at each evaluation, so finite differences see one function.
        generator = torch.Generator().manual_seed(9)
        options = {"mask": mask, "bias": bias, "generator": generator, "engine": engine, "return_lse": True}
        out, lse = attend(query, key, value, dropout=0.4, **options)
        return out, lse.masked_fill(lse == -torch.inf, 0)

    assert torch.autograd.gradcheck(run, (query, key, value, bias), fast_mode=True)


@pytest.mark.parametrize("engine", ["reference", "blocks", "sdpa", "auto", NATIVE])
def test_a_row_that_hears_nothing_stays_zero(engine: str):
    tensors = [tensor.requires_grad_() for tensor in inputs()]
    out = attend(*tensors, mask=causal() & ~prefix(2), dropout=0.5, engine=engine)
    assert bool((out[:, :, :2] == 0).all())
    grads = torch.autograd.grad(out.sum(), tensors)
    assert all(bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.parametrize("engine", ["blocks", NATIVE])
def test_second_derivatives_of_a_draw_are_refused(engine: str):
    query, key, value = (tensor.requires_grad_() for tensor in inputs())
    out = attend(query, key, value, dropout=0.5, engine=engine)
    with pytest.raises(Unsupported, match=f"second derivatives of engine '{engine}'"):
        torch.autograd.grad(out.sum(), query, create_graph=True)
