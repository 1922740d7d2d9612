"""What `rearview observe` does: run a model over a text, or open a saved run, and draw its attention.

>>> numbers("0,3-5", "--layers")
[0, 3, 4, 5]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text
from torch import nn

from rearview.cli.commands import option_name
from rearview.cli.observe import ENDINGS
from rearview.cli.terminal import console, note
from rearview.cli.text_file import read_text_file
from rearview.errors import BadArgument, MissingExtra, Unsupported
from rearview.files import target_of, write_whole
from rearview.masks import Mask
from rearview.masks.parser import parse
from rearview.models import BERT, GPT, T5
from rearview.observation import Observation, ObservationDiff, observe
from rearview.observation.views.scales import CHANGE_SCALES, SCALES, check_scale
from rearview.observation.views.terminal_colours import depth_of
from rearview.text import Tokenizer, token_labels
from rearview.text_model import context_of, load_text_model

# From this many tokens or parameters on, a line in a pipe says what is running.
LONG, LARGE = 2048, 50_000_000


def run_observe(
    what: str,
    given: set[str],
    *,
    text: str | None,
    prompt: str | None,
    length: int | None,
    generate: int,
    layers: str | None,
    heads: str | None,
    map_size: int,
    against: str | None,
    mask: str | None,
    which: str | None,
    scale: str,
    item: int,
    out: Sequence[str],
) -> None:
    """Observe the model in a folder, or open a saved run; `given` are the options on the command line."""
    is_change = against is not None or mask is not None
    check_scale(scale, CHANGE_SCALES if is_change else SCALES)
    place = _place(which)
    narrower = None if mask is None else parse(mask)
    if against is not None and mask is not None:
        raise BadArgument("--against, --mask", expected="one of them", got="both")
    # Names that cannot be written to are refused before anything is run.
    for path in out:
        ending = target_of(path, ENDINGS).suffix.lower()
        if ending == ".npz" and is_change:
            advice = "Save each run, and open one with --against the other."
            raise BadArgument("--out", expected="another ending for a difference", got=path, advice=advice)
        if ending in (".png", ".svg", ".pdf"):
            _needs_matplotlib()
    if os.path.isdir(what):
        options: dict[str, Any] = {"map_size": map_size}
        chosen = {"layers": layers, "heads": heads}
        options |= {name: numbers(text, f"--{name}") for name, text in chosen.items() if text is not None}
        seen = _run(what, _text(text, prompt), against, narrower, length=length, generate=generate, options=options)
    else:
        _check_saved(what)
        _refuse_running(given)
        seen = _opened(what) if against is None else _opened(what).diff(_opened(against), item=item)
    drawing = seen.show(*place, scale=scale, item=item)
    # Before anything is printed: the files must be written even if the reader leaves early (| head).
    for path in out:
        _write(seen, drawing, Path(path), place, scale, item)
        note(f"wrote {path}")
    print(drawing.painted(depth_of(sys.stdout)))


def _run(
    folder: str,
    text: str,
    against: str | None,
    narrower: Mask | None,
    *,
    length: int | None,
    generate: int,
    options: dict[str, Any],
) -> Observation | ObservationDiff:
    if against is not None and not os.path.isdir(against):
        raise BadArgument("--against", expected="a folder with a model, like the first argument", got=against)
    model = loaded(folder, generate=generate, options=options)
    ids, remark = tokens_of(model, text, length)
    if remark:
        note(remark)
    seen = model.over(ids)
    if narrower is not None:
        return seen.diff(model.over(ids, mask=narrower))
    if against is None:
        return seen
    other = loaded(against, generate=generate, options=options)
    if other.tokenizer.encode(text, specials=True)[: len(ids)] != ids:
        advice = "Both models must read the same tokens at the same positions."
        raise BadArgument("--against", expected="a model with the same tokens", got=against, advice=advice)
    return seen.diff(other.over(ids))


def _text(text: str | None, prompt: str | None) -> str:
    if (text is None) == (prompt is None):
        got = "neither" if text is None else "both"
        raise BadArgument("--text, --prompt", expected="one of them: the text that the model reads", got=got)
    if prompt is not None:
        return prompt
    assert text is not None
    if text == "-":
        return sys.stdin.read()
    advice = "Use --prompt to give the text itself."
    return read_text_file(Path(text), expected="a file of text, or -", advice_if_missing=advice)


def _opened(path: str) -> Observation:
    _check_saved(path)
    return Observation.load(path)


def _check_saved(path: str) -> None:
    if not path.lower().endswith(".npz") or not os.path.exists(path):
        got = f"{path}, which is neither" if os.path.exists(path) else f"{path}, which does not exist"
        raise BadArgument("DIR|FILE.npz", expected="a folder with a model, or a .npz of an earlier run", got=got)


def _refuse_running(given: set[str]) -> None:
    """Refuse options that would need the model: a saved run does not run again."""
    for name in ("text", "prompt", "length", "generate", "layers", "heads", "map_size", "mask"):
        if name in given:
            raise BadArgument(option_name(name), expected="a folder with a model to run", got="a saved run")


def _place(which: str | None) -> tuple[int, ...]:
    if which is None:
        return ()
    layer, dot, head = which.partition(".")
    parts = (layer, head) if dot else (layer,)
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadArgument("--show", expected="a layer, or a layer and a head: 2 or 2.1", got=repr(which))
    return tuple(map(int, parts))


def _needs_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", extra="pictures", needed_for="A picture of attention")


def _write(
    seen: Observation | ObservationDiff, drawing: str, path: Path, place: tuple[int, ...], scale: str, item: int
) -> None:
    ending = path.suffix.lower()
    if ending == ".html":
        seen.to_html(path, item=item)
    elif ending == ".npz":
        assert isinstance(seen, Observation), "a difference is refused before the model runs"
        seen.save(path)
    elif ending == ".txt":
        write_whole(path, f"{drawing}\n".encode())
    else:
        seen.picture(path, *place, scale=scale, item=item)


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer, and how to run it.

    Args:
        generate: the number of tokens that it generates after the text.
        options: the options of `observe`.
    """

    name: str
    model: nn.Module
    tokenizer: Tokenizer
    generate: int
    options: dict[str, Any]

    def over(self, ids: list[int], *, mask: Mask | None = None) -> Observation:
        """The observation of the model on these tokens, with its mask narrowed by `mask` if there is one."""
        tokens = torch.tensor([ids], device=next(self.model.parameters()).device)
        with torch.inference_mode(), observe(self.model, **self.options) as seen, _progress(self, seen, len(ids)):
            written = self._run(tokens, mask)
        seen.title = self.name if mask is None else f"{self.name} & {mask!r}"
        labels = token_labels(self.tokenizer, ids)
        if isinstance(self.model, T5):
            # The decoder starts with a token that it did not generate, and does not read the last one.
            start = self.model.config.start_id
            seen.source_labels = labels
            seen.labels = token_labels(self.tokenizer, [start, *written])[: seen.length]
        else:
            seen.labels = [*labels, *token_labels(self.tokenizer, written)][: seen.length]
        return seen

    def _run(self, tokens: torch.Tensor, mask: Mask | None) -> list[int]:
        """Run the model on the tokens; returns those that it generated after them."""
        if mask is not None and (self.generate or not isinstance(self.model, (GPT, BERT))):
            why = "not with --generate" if self.generate else "only a GPT or a BERT of Rearview takes a mask per call"
            raise Unsupported("--mask", [why])
        if isinstance(self.model, (GPT, T5)) and self.generate:
            from rearview.generation import generate

            ids = tokens[0].tolist()
            options: dict[str, Any] = {"max_new_tokens": self.generate, "temperature": 0, "when_full": "stop"}
            return generate(self.model, ids, **options).finish().tokens[0]
        if isinstance(self.model, (GPT, BERT)):
            if self.generate:
                raise BadArgument("--generate", expected="a model that generates", got="a BERT")
            self.model(tokens, mask=mask)
            return []
        if isinstance(self.model, T5):
            advice = "The encoder of a T5 reads the text; --generate N runs its decoder."
            raise BadArgument("--generate", expected="a number of tokens", got="none", advice=advice)
        if not self.generate:
            self.model(input_ids=tokens, use_cache=False)
            return []
        end: Any = getattr(self.model.config, "eos_token_id", None)
        end = end[0] if isinstance(end, list) else end
        whole: Any = self.model.generate(  # pyright: ignore[reportCallIssue]
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=self.generate,
            do_sample=False,
            pad_token_id=0 if end is None else end,
        )
        return whole[0, tokens.shape[1] :].tolist()


def loaded(folder: str, *, generate: int, options: dict[str, Any]) -> LoadedModel:
    """The model and the tokenizer in a folder: of Rearview, or of any architecture that transformers loads."""
    found = load_text_model(folder)
    return LoadedModel(found.name, found.model, found.tokenizer, generate, options)


def tokens_of(model: LoadedModel, text: str, length: int | None) -> tuple[list[int], str]:
    """The tokens of a text, at most `length`, and a remark if some were left out."""
    ids = model.tokenizer.encode(text, specials=True)
    if not ids:
        raise BadArgument("--text", expected="a text of at least one token", got="an empty text")
    room = context_of(model.model)
    if length is not None and room is not None and length > room:
        expected = f"at most {room}, the number of positions of the model"
        raise BadArgument("--length", expected=expected, got=length)
    most = length or (None if room is None else max(1, room - model.generate))
    if most is None or len(ids) <= most:
        return ids, ""
    why = "because of --length" if length else f"because the model has {room:,} positions"
    return ids[:most], f"reading the first {most:,} of {len(ids):,} tokens, {why}"


def numbers(text: str, option: str) -> list[int]:
    """The numbers of a list such as `0,3-5`."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        ends = (low, high if dash else low)
        if not all(end.isascii() and end.isdigit() for end in ends) or int(ends[0]) > int(ends[1]):
            raise BadArgument(option, expected="numbers and ranges such as 0,3-5", got=repr(text))
        found += range(int(ends[0]), int(ends[1]) + 1)
    return found


@contextmanager
def _progress(loaded: LoadedModel, seen: Observation, tokens: int) -> Iterator[None]:
    """Show which layer runs, on a terminal; in a pipe print one line if it takes long."""
    doing = f"reading {tokens:,} tokens" + (f", generating {loaded.generate:,}" if loaded.generate else "")
    if not sys.stderr.isatty():
        if tokens >= LONG or sum(p.numel() for p in loaded.model.parameters()) >= LARGE:
            note(doing)
        yield
        return

    class Layers(ProgressColumn):
        """The number of layers that have run."""

        def render(self, task: Task) -> Text:
            return Text(f"layer {len(seen.layers)} of {seen.model_layers}")

    columns = (SpinnerColumn(), TextColumn("{task.description}"), Layers(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        progress.add_task(doing, total=None)
        yield
