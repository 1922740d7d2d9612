"""Processes that form a new world, as torchrun would start it, for every test that asks for one."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from rearview.training.processes import world as world_module
from rearview.training.processes.world import STORE, World
from tests.parallel.processes import PATIENCE, Processes


class Worlds(Processes):
    """`run(function, size, *arguments)` calls `function(world, *arguments)` in a world of `size` processes."""

    def __init__(self, folder: Path):
        super().__init__(folder, _serve)
        self._number = 0

    def run(self, function: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
        # Every world has a file of its own, in which its processes find each other.
        self._number += 1
        return super().run(function, size, self._number, *arguments)


def _serve(rank: int, store: str, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    world_module.TIMEOUT = PATIENCE
    while True:
        try:
            function, size, (number, *arguments) = pipe.recv()
        except EOFError:
            break
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), STORE: f"{store}-{number}"}
        try:
            world = World.join(device="cpu")
            try:
                pipe.send((function(world, *arguments), None))
            finally:
                world.leave()
        except Exception:
            pipe.send((None, traceback.format_exc()))
