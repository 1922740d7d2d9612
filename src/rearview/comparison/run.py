"""A comparison in a folder: started once, and resumed as often as needed.

>>> import tempfile
>>> from rearview.comparison import ComparisonConfig, ComparisonFinished, ComparisonRun
>>> config = ComparisonConfig(steps=2, context=8, layers=1, heads=2, width=8, exam_windows=2, new_tokens=4, lr=1e-2)
>>> *_, last = ComparisonRun.start(config, tempfile.mkdtemp()).compare()
>>> isinstance(last, ComparisonFinished)
True
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path

from rearview.comparison.events import ComparisonEvent, ComparisonFinished
from rearview.comparison.experiment import comparing
from rearview.comparison.folder import check_free, read_config, save, write_config
from rearview.comparison.settings import ComparisonConfig
from rearview.errors import MissingExtra
from rearview.training.data import TextData
from rearview.training.lock import FolderLock, check_unlocked
from rearview.training.run_config import KEPT_TEXT
from rearview.training.sync import make_folder, write_synced
from rearview.training.threads import running_on, threads_for
from rearview.training.token_file import Progress, silent

REFERENCE_TEXT = "Python's reference text (pydoc_data.topics)"


@dataclass(frozen=True)
class ComparisonRun:
    """A comparison that is ready to run; `start` and `resume` make one. Nothing is written before `compare` is read."""

    config: ComparisonConfig
    data: TextData
    out: Path
    # The text of a new comparison, if it was piped.
    _piped: bytes | None = field(default=None, repr=False)
    _is_new: bool = field(default=False, repr=False)

    @classmethod
    def start(
        cls, config: ComparisonConfig, out: str | os.PathLike[str], *, progress: Progress = silent
    ) -> ComparisonRun:
        """A new comparison in a new or empty folder. Everything is checked here: the settings, the text, the folder."""
        folder = Path(out)
        check_free(folder)
        _check_extra()
        source = config.source()
        config = replace(config.with_absolute_path(), threads=threads_for(config))
        data = config.new_data(source, kind="gpt", context=config.context, progress=progress)
        return cls(config, data, folder, config.copy_of(source) if config.is_piped else None, True)

    @classmethod
    def resume(cls, out: str | os.PathLike[str], *, progress: Progress = silent) -> ComparisonRun:
        """The comparison in a folder, with the settings that it was started with."""
        folder = Path(out)
        check_unlocked(folder)
        config = read_config(folder)
        _check_extra()
        source = config.source(folder / KEPT_TEXT if config.is_piped else None)
        return cls(config, config.new_data(source, kind="gpt", context=config.context, progress=progress), folder)

    @property
    def text_name(self) -> str:
        """The name of the text."""
        if self.config.is_piped:
            return "standard input"
        text = self.config.text or REFERENCE_TEXT
        return text if isinstance(text, str) else ", ".join(text)

    def compare(self, *, stop: Callable[[], bool] = lambda: False) -> Generator[ComparisonEvent, None, None]:
        """Train and examine both models, and save the result and its report; see `rearview.comparison.comparing`."""
        make_folder(self.out)
        name, command = self.text_name, self.config.command
        with FolderLock(self.out), running_on(self.config.threads):
            if self._is_new:
                # Again, now that no other process can write to it.
                check_free(self.out)
                if self._piped is not None:
                    write_synced(self.out / KEPT_TEXT, self._piped)
                write_config(self.config, self.out)
            for event in comparing(self.data, self.config, name=name, command=command, out=self.out, stop=stop):
                if isinstance(event, ComparisonFinished):
                    save(event.comparison, self.out)
                yield event


def _check_extra() -> None:
    # Before training rather than after it.
    try:
        import safetensors  # noqa: F401
    except ImportError as error:
        raise MissingExtra("safetensors", extra="models", needed_for="Comparing") from error
