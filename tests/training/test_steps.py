"""The parts of a step: the rate, the optimizer, the precision, the seeds, the settings."""

import copy
import json

import pytest
import torch
from torch import nn

from rearview.errors import BadArgument, BadFile
from rearview.training import TrainConfig
from rearview.training.optimizer import Optimizer
from rearview.training.precision import chosen
from rearview.training.randomness import generator_of, seed_everything, seed_of
from rearview.training.schedule import learning_rate


def rate(step: int, warmup: int = 10) -> float:
    return learning_rate(step, steps=110, peak=2.0, warmup=warmup, floor=0.1)


def test_the_rate_rises_linearly_and_falls_as_a_cosine():
    assert [rate(step) for step in (1, 5, 10)] == [0.2, 1.0, 2.0]
    assert rate(60) == pytest.approx(1.1)
    assert rate(110) == pytest.approx(0.2)
    falling = [rate(step) for step in range(10, 111)]
    assert falling == sorted(falling, reverse=True)
    # Steps that were not planned stay at the floor, and no warm-up starts below the peak.
    assert rate(200) == pytest.approx(0.2)
    assert rate(1, warmup=0) == pytest.approx(2.0, rel=1e-3)
    assert learning_rate(1, steps=1, peak=2.0, warmup=1, floor=0.1) == 2.0


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


@pytest.mark.parametrize("clip", [0.0, 0.05, 100.0])
@pytest.mark.parametrize("fused", [True, False])
def test_it_is_adamw_with_clipping(clip: float, fused: bool, monkeypatch: pytest.MonkeyPatch):
    if not fused:
        monkeypatch.setattr("rearview.training.optimizer.FUSED_ON", ())
    ours = small()
    theirs = copy.deepcopy(ours)
    optimizer = Optimizer(ours, weight_decay=0.3, betas=(0.9, 0.99), clip=clip)
    matrices = [p for p in theirs.parameters() if p.ndim > 1]
    vectors = [p for p in theirs.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
    plain = torch.optim.AdamW(groups, betas=(0.9, 0.99), foreach=False)
    for step in range(5):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
        ours(x).pow(2).sum().backward()
        theirs(x).pow(2).sum().backward()
        wanted = nn.utils.clip_grad_norm_(theirs.parameters(), clip or float("inf"))
        for group in plain.param_groups:
            group["lr"] = 0.01 * (step + 1)
        plain.step()
        plain.zero_grad()
        norm = optimizer.step(lr=0.01 * (step + 1))
        assert norm.item() == pytest.approx(wanted.item(), rel=1e-5)
        assert all(p.grad is None for p in ours.parameters())
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_an_optimizer_continues_from_its_state():
    model = small()
    optimizer = Optimizer(model, weight_decay=0.1, betas=(0.9, 0.99), clip=1.0)
    x = torch.randn(4, 5)

    def steps(model: nn.Module, optimizer: Optimizer) -> list[float]:
        found = []
        for _ in range(3):
            model(x).pow(2).sum().backward()
            found.append(optimizer.step(lr=0.01).item())
        return found

    steps(model, optimizer)
    again = copy.deepcopy(model)
    state = {name: value.clone() for name, value in optimizer.state().items()}
    assert {name.partition(".")[0] for name in state} == {"step", "exp_avg", "exp_avg_sq"}
    resumed = Optimizer(again, weight_decay=0.1, betas=(0.9, 0.99), clip=1.0)
    resumed.load(state, "optimizer.safetensors")
    assert steps(model, optimizer) == steps(again, resumed)
    with pytest.raises(
        BadFile, match=r"optimizer\.safetensors: does not belong to this model: exp_avg\.0\.weight \[2, 2\]"
    ):
        resumed.load({"exp_avg.0.weight": torch.zeros(2, 2)}, "optimizer.safetensors")
    with pytest.raises(BadFile, match=r"does not belong to this model: exp_avg\.9\.weight"):
        resumed.load({"exp_avg.9.weight": torch.zeros(2, 2)}, "optimizer.safetensors")
    state.popitem()
    with pytest.raises(BadFile, match=r"does not belong to this model: it has no exp_avg_sq\.2\.bias"):
        resumed.load(state, "optimizer.safetensors")


def test_parameters_without_a_gradient_do_not_change():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    before = copy.deepcopy(model[1].state_dict())
    optimizer = Optimizer(model, weight_decay=0.5, betas=(0.9, 0.99), clip=1.0)
    model[0](torch.ones(1, 2)).sum().backward()
    optimizer.step(lr=0.1)
    assert all(torch.equal(before[name], value) for name, value in model[1].state_dict().items())


def test_precision_is_what_the_hardware_supports(monkeypatch: pytest.MonkeyPatch):
    cpu = torch.device("cpu")
    for has in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=has: has)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        assert chosen("auto", cpu) == (torch.bfloat16 if has else torch.float32)
    assert chosen("bfloat16", cpu) == torch.bfloat16
    assert chosen("float32", cpu) == torch.float32
    assert chosen("auto", torch.device("meta")) == torch.float32
    with pytest.raises(BadArgument, match="precision: expected"):
        chosen("float16", cpu)


def test_seeds_are_far_apart_and_always_the_same():
    assert seed_of(0, "epoch", 1) == 32407960846407049
    assert len({seed_of(seed, what, n) for seed in range(5) for what in ("epoch", "step") for n in range(50)}) == 500
    assert torch.equal(torch.rand(3, generator=generator_of(1, "a")), torch.rand(3, generator=generator_of(1, "a")))
    seed_everything(7, torch.device("cpu"))
    first = torch.rand(3)
    seed_everything(7, torch.device("cpu"))
    assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps: expected an integer of at least 1, got 0"),
        ({"batch": 1.5}, "batch: expected an integer of at least 1, got 1.5"),
        ({"context": 0}, "context: expected an integer of at least 1, got 0"),
        ({"save_every": -1}, "save_every: expected an integer of at least 0, got -1"),
        ({"lr": -1.0}, "lr: expected a number of at least 0, got -1.0"),
        ({"lr": float("nan")}, "lr: expected a number of at least 0, got nan"),
        ({"floor": 1.5}, "floor: expected a number from 0 to 1, got 1.5"),
        ({"precision": "half"}, "precision: expected"),
    ],
)
def test_invalid_settings_are_refused(options: dict, message: str):
    with pytest.raises(BadArgument) as error:
        TrainConfig(**options)
    assert str(error.value).startswith(message)


def test_settings_are_restored_from_json():
    config = TrainConfig(steps=7, lr=0.1, precision="float32", sample_prompt="é")
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert TrainConfig.from_json({**config.to_json(), "of_tomorrow": 1}) == config
