"""The suite of a GPU: its items, tables and verdicts. Its processes need a GPU."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

import pytest
import torch

from bench.harness import Settings, Task
from bench.process import Failed
from bench.suites import gpu
from bench.suites.gpu import Found, GpuSuite

DECODED = [
    {"batch": 1, "length": 32768, "window": 4096, "bytes": 2**24, "error": 2e-3, "ours": 10.9, "rival": 11.1,
     "lengths": 11.4},
    {"batch": 8, "length": 8192, "window": None, "bytes": 2**28, "error": 2e-3, "ours": 67.0, "rival": 67.4,
     "lengths": 68.0},
]  # fmt: skip
HOST = {"one token": {"SDPA": 23.0, "rearview": 31.0, "rearview, window": 34.5}}
SHAPE = {
    "mask": "window", "shape": "B1 H16 L16384 D128", "rival": "Flex", "operations": 1e12,
    "forward": {"ours": 2000.0, "rival": 3200.0}, "backward": {"ours": 7000.0, "rival": 7700.0},
    "errors": {"the output": 2e-3}, "engines": ["hopper", "hopper"],
}  # fmt: skip
TRAINED = [{"which": which, "ms": ms, "tokens_per_s": 1e5, "losses": [5.0], "memory": 2**33, "share": 0.4}
           for which, ms in (("ours", 60.0), ("flex", 66.0), ("plain", 59.0))]  # fmt: skip


def arguments(**changes: object) -> Namespace:
    return Namespace(**{"quick": False, "engine": "auto", "together": 2, "cases": None, "rounds": None, **changes})


def test_every_shape_is_a_process_of_its_own():
    items = GpuSuite().items(arguments())
    names = [item.name for item in items]
    assert all(isinstance(item, Task) for item in items)
    assert len(names) == len(set(names)) == 5 + 1 + 3 + 10 + 3 + 3
    assert len(GpuSuite().items(arguments(quick=True))) < 14


def test_some_process_must_compile():
    with pytest.raises(SystemExit, match="--together: expected at least 1, got 0"):
        GpuSuite().items(arguments(together=0))


def test_the_host_is_measured_alone():
    suite = GpuSuite()
    items = suite.items(arguments(together=4))
    suite.expect(items)
    assert items[0].name == "host: host time"
    sizes = [len(group) for group in suite.processes._groups]
    assert sizes[:3] == [1, 4, 4]
    assert sum(sizes) == len(items)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_it_says_that_there_is_no_gpu():
    assert GpuSuite().missing(arguments()) == "torch finds no GPU here"


def test_a_process_that_fails_is_reported():
    suite = GpuSuite()
    items = [
        item for item in suite.items(arguments()) if isinstance(item, gpu.Process) and item.name == "host: host time"
    ]
    # A function that does not exist.
    items = [replace(item, function="bench.suites.gpu_serving:nothing") for item in items]
    suite.expect(items)
    with pytest.raises(Failed, match="has no attribute 'nothing'"):
        suite.processes.result(items[0].function, items[0].arguments, lambda text: None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_task_that_fails_is_reported():
    suite = GpuSuite()
    items = [
        item for item in suite.items(arguments()) if isinstance(item, gpu.Process) and item.name == "host: host time"
    ]
    suite.expect(items)
    found = items[0].run(Settings())
    report = suite.report(arguments(), [found])
    assert report.about[-1].startswith("host, host time: ")
    assert not report.tables


def test_the_report():
    results = [
        *(Found("one token", "a", row) for row in DECODED), Found("host", "b", HOST), Found("masks", "c", [SHAPE]),
        *(Found("training", row["which"], row) for row in TRAINED),
        Found("generation", "graph", {"which": "graph", "ms": 0.8, "tokens": [1, 2]}),
        Found("generation", "transformers", {"which": "transformers", "ms": 1.6, "tokens": [1, 3]}),
    ]  # fmt: skip
    report = GpuSuite().report(arguments(), results)
    assert not report.is_wrong
    assert report.verdicts == [
        "met: one token, window 4096 of 32768 keys: 10.9 us, asked at most 12 us",
        "NOT MET: one token, B8, 8192 keys: 0.994 of SDPA's time, asked at most 0.98",
        "met: host time, one token, rearview: +8.0 us over SDPA, asked +10",
        "NOT MET: host time, one token, rearview, window: +11.5 us over SDPA, asked +10",
        "met: window, B1 H16 L16384 D128, forward: 1.60x Flex, asked 1.5x",
        "NOT MET: window, B1 H16 L16384 D128, backward: 1.10x Flex, asked 1.2x",
        "NOT MET: a training step: 1.10x FlexAttention, asked 1.15x",
    ]
    tables = {name.split(" (")[0].split(",")[0]: table.plain() for name, table in report.tables}
    assert "B8, 8192 keys" in tables["one token over a cache"]
    assert "transformers, static cache, compiled         1.600       625               no" in tables["generation"]
    assert "500" in tables["masks"]


def test_a_wrong_answer_is_not_a_speed():
    wrong = {**SHAPE, "errors": {"the gradient of key": 0.14}}
    report = GpuSuite().report(arguments(), [Found("masks", "c", [wrong])])
    assert report.is_wrong
    assert report.verdicts[0].startswith("WRONG: window")
    assert "WRONG: the gradient of key is off by 1.4e-01" in report.tables[0][1].plain()
