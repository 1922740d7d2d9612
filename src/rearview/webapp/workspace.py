"""What the worker holds: the models that may be opened, those in memory, and the latest observations.

>>> from rearview.models import GPT, GPTConfig
>>> from rearview.text import ByteTokenizer
>>> model = GPT(GPTConfig(vocab_size=257, context=8, layers=1, heads=2, width=8))
>>> workspace = Workspace(Limits())
>>> workspace.add(TextModel("mine", model, ByteTokenizer()))
>>> workspace.entries()[0]["name"]
'mine'
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rearview.attention.call import Call
from rearview.errors import BadArgument
from rearview.masks import Mask
from rearview.observation import Observation, ObservationDiff
from rearview.text_model import TextModel, load_text_model
from rearview.training.checkpoint.folders import checkpoints, step_of
from rearview.webapp.limits import Limits


@dataclass(frozen=True, eq=False)
class ReadRun:
    """One pass of a model over a text, as the page asks about it afterwards.

    Args:
        ids: the tokens that the model read.
        mask: the mask that edited those of its layers, if there was one; `replaces` if it took their place.
        block: the numbers of its maps, as the page reads them.
    """

    model: str
    ids: list[int]
    mask: Mask | None
    replaces: bool
    seen: Observation | ObservationDiff
    block: bytes = b""

    @property
    def bytes(self) -> int:
        """The memory of its maps, and of the queries and keys that an observation keeps.

        Those of a difference are the ones of its two sides, which are runs as well.
        """
        own = () if isinstance(self.seen, ObservationDiff) else self.seen.layers
        return len(self.block) + sum(layer.retained.bytes for layer in own if layer.retained is not None)


@dataclass(frozen=True)
class SavedPage:
    """A page in one file, and the name under which it is saved."""

    name: str
    content: str


class Workspace:
    """Models by name, and runs by number. Folders are named when the studio starts; no request names a path."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self._folders: dict[str, Path] = {}
        self._given: dict[str, TextModel] = {}
        self._loaded: OrderedDict[str, TextModel] = OrderedDict()
        self._runs: OrderedDict[str, ReadRun] = OrderedDict()
        self._pages: OrderedDict[str, SavedPage] = OrderedDict()
        # The queries, keys and values of one layer of a run, by the numbers of both.
        self.latest_calls: tuple[tuple[str, int], list[Call]] | None = None
        # The mask, the heads and the head size of a layer, by model, layer and number of tokens that were read.
        self.layer_masks: OrderedDict[tuple[str, int, int], tuple[Mask, int, int]] = OrderedDict()

    def add(self, model: TextModel) -> None:
        """Offer a model that is in memory."""
        self._given[self._free_name(model.name)] = model

    def add_folder(self, folder: str | Path) -> None:
        """Offer the model of a folder, and the checkpoints of a training run; each is loaded when it is first used."""
        path = Path(folder).resolve()
        if not path.is_dir():
            raise BadArgument("MODEL_DIR", expected="a folder with a model", got=f"{folder}, which does not exist")
        steps = checkpoints(path)
        if not steps and not (path / "config.json").is_file():
            raise BadArgument("MODEL_DIR", expected="a folder with a model", got=f"{folder}, which has no config.json")
        name = self._free_name(path.name)
        self._folders[name] = path
        for step in steps:
            self._folders[f"{name} at step {step_of(step):,}"] = step

    def entries(self) -> list[dict[str, Any]]:
        """What the page lists: a name per model, and the step for a checkpoint of a run."""
        steps = {name: step_of(path) for name, path in self._folders.items() if path.name.startswith("step-")}
        return [
            {"name": name, "step": steps.get(name), "run": name.rpartition(" at step ")[0] if name in steps else None}
            for name in (*self._given, *self._folders)
        ]

    def model(self, name: object) -> TextModel:
        """The model of this name, loaded if it is not in memory."""
        if not isinstance(name, str) or (name not in self._given and name not in self._folders):
            known = ", ".join((*self._given, *self._folders))
            raise BadArgument("model", expected=f"one of: {known}", got=repr(name))
        if name in self._given:
            return self._given[name]
        if name not in self._loaded:
            while len(self._loaded) >= self.limits.models:
                self._loaded.popitem(last=False)
            # Under the name by which it is listed: a checkpoint is called after its folder otherwise.
            self._loaded[name] = replace(load_text_model(self._folders[name]), name=name)
        self._loaded.move_to_end(name)
        return self._loaded[name]

    def keep(self, run: ReadRun) -> str:
        """Remember a run, and forget the oldest if there are too many or they are too large; returns its number."""
        number = secrets.token_hex(8)
        self._runs[number] = run
        while len(self._runs) > 1 and (
            len(self._runs) > self.limits.runs or sum(each.bytes for each in self._runs.values()) > self.limits.held
        ):
            self._runs.popitem(last=False)
        return number

    def replace(self, number: str, run: ReadRun) -> None:
        """Hold another run under a number."""
        self._runs[number] = run

    def run(self, number: object) -> ReadRun:
        """The run of this number."""
        if not isinstance(number, str) or number not in self._runs:
            raise BadArgument(
                "run", expected="a run that the studio still holds", got=repr(number), advice="Read again."
            )
        self._runs.move_to_end(number)
        return self._runs[number]

    def keep_page(self, page: SavedPage) -> str:
        """Remember a page that can be saved, and forget the oldest if there are too many; returns its number."""
        number = secrets.token_hex(8)
        self._pages[number] = page
        while len(self._pages) > self.limits.runs:
            self._pages.popitem(last=False)
        return number

    def page(self, number: object) -> SavedPage:
        """The page of this number."""
        if not isinstance(number, str) or number not in self._pages:
            raise BadArgument(
                "page", expected="a page that the studio still holds", got=repr(number), advice="Make it again."
            )
        return self._pages[number]

    def _free_name(self, name: str) -> str:
        taken, number = {*self._given, *self._folders}, 1
        while (free := name if number == 1 else f"{name} ({number})") in taken:
            number += 1
        return free
