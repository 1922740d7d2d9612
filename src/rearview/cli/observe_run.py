"""What `rearview observe` watches: the model and the tokenizer of a folder, run over a text.

>>> numbers("0,3-5", "--layers")
[0, 3, 4, 5]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rearview.cli.terminal import console
from rearview.errors import BadArgument, Unsupported
from rearview.masks import Mask
from rearview.models import BERT, GPT, T5
from rearview.observe import Seen, observe
from rearview.text import Tokenizer, load_tokenizer
from rearview.text.labels import token_labels

# From so many tokens, or so many parameters, on a pipe is told what is going on.
LONG, LARGE = 2048, 50_000_000


@dataclass(frozen=True)
class Watched:
    """A model with its tokenizer, and what is asked of it.

    Args:
        generate: tokens that it writes after the text.
        options: of `observe`.
    """

    name: str
    model: nn.Module
    tokenizer: Tokenizer
    generate: int
    options: dict[str, Any]

    def over(self, ids: list[int], *, mask: Mask | None = None) -> Seen:
        """What is seen when the model reads these tokens, narrowed by `mask` if given."""
        tokens = torch.tensor([ids], device=next(self.model.parameters()).device)
        with torch.inference_mode(), observe(self.model, **self.options) as seen, _progress(self, seen, len(ids)):
            written = self._run(tokens, mask)
        seen.title = self.name if mask is None else f"{self.name} & {mask!r}"
        labels = token_labels(self.tokenizer, ids)
        if isinstance(self.model, T5):
            # The decoder begins with a token that it did not write, and does not hear the last one.
            start = self.model.config.start_id
            seen.source_labels = labels
            seen.labels = token_labels(self.tokenizer, [start, *written])[: seen.length]
        else:
            seen.labels = [*labels, *token_labels(self.tokenizer, written)][: seen.length]
        return seen

    def _run(self, tokens: torch.Tensor, mask: Mask | None) -> list[int]:
        """Read the tokens; those that were written behind them."""
        if mask is not None and (self.generate or not isinstance(self.model, (GPT, BERT))):
            why = "it generates" if self.generate else "only a GPT or a BERT of Rearview takes a mask for one call"
            raise Unsupported("--mask", [why])
        if isinstance(self.model, (GPT, T5)) and self.generate:
            from rearview.generation import generate

            ids = tokens[0].tolist()
            options: dict[str, Any] = {"max_new_tokens": self.generate, "temperature": 0, "when_full": "stop"}
            return generate(self.model, ids, **options).finish().tokens[0]
        if isinstance(self.model, (GPT, BERT)):
            if self.generate:
                raise BadArgument("--generate", expected="a model that generates", came="a BERT, which does not")
            self.model(tokens, mask=mask)
            return []
        if isinstance(self.model, T5):
            advice = "A T5 reads the text with its encoder; --generate N lets its decoder write."
            raise BadArgument("--generate", expected="a number of tokens", came="none", advice=advice)
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


def watched(folder: str, *, generate: int, options: dict[str, Any]) -> Watched:
    """The model and tokenizer in a folder: of Rearview, or of any architecture that transformers loads."""
    from rearview.audit.loading import folder as checkpoints
    from rearview.models.checkpoint import load as load_own
    from rearview.models.checkpoint.load import ARCHITECTURES, read_config
    from rearview.training.checkpoint.folders import model_folder

    inside = model_folder(folder)
    known = {name for architecture in ARCHITECTURES for name in architecture.types}
    device = "cuda" if torch.cuda.is_available() else None
    if read_config(inside).get("model_type") in known:
        model: nn.Module = load_own(inside, device=device)
    else:
        model = checkpoints.load(str(inside)).model.to(device or "cpu")
    return Watched(Path(folder).resolve().name, model, load_tokenizer(inside), generate, options)


def tokens_of(watched: Watched, text: str, length: int | None) -> tuple[list[int], str]:
    """The tokens of a text, at most `length`, and what has to be said about it."""
    ids = watched.tokenizer.encode(text, specials=True)
    if not ids:
        raise BadArgument("--text", expected="a text of one token or more", came="none")
    room = _context(watched.model)
    if length is not None and room is not None and length > room:
        expected = f"at most {room}, as many as the model has positions for"
        raise BadArgument("--length", expected=expected, came=length)
    most = length or (None if room is None else max(1, room - watched.generate))
    if most is None or len(ids) <= most:
        return ids, ""
    why = "as --length says" if length else f"what the model's {room:,} positions have room for"
    return ids[:most], f"the first {most:,} of {len(ids):,} tokens, {why}"


def _context(model: nn.Module) -> int | None:
    config: Any = getattr(model, "config", None)
    if isinstance(model, T5):
        return None
    names = ("max_position_embeddings", "n_positions", "context", "max_seq_len")
    sizes = (getattr(config, name, None) for name in names)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def numbers(text: str, option: str) -> list[int]:
    """`0,3-5` as numbers."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        ends = (low, high if dash else low)
        if not all(end.isascii() and end.isdigit() for end in ends) or int(ends[0]) > int(ends[1]):
            raise BadArgument(option, expected="numbers and ranges such as 0,3-5", came=repr(text))
        found += range(int(ends[0]), int(ends[1]) + 1)
    return found


@contextmanager
def _progress(watched: Watched, seen: Seen, tokens: int) -> Iterator[None]:
    """Which layer runs, on a terminal; in a pipe one line, where it takes long."""
    doing = f"reading {tokens:,} tokens" + (f", writing {watched.generate:,}" if watched.generate else "")
    if not sys.stderr.isatty():
        if tokens >= LONG or sum(p.numel() for p in watched.model.parameters()) >= LARGE:
            aside(doing)
        yield
        return
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Layers(ProgressColumn):
        """How many layers have run."""

        def render(self, task: Task) -> Text:
            return Text(f"layer {len(seen.layers)} of {seen.model_layers}")

    paper = console()
    paper.stderr = True
    columns = (SpinnerColumn(), TextColumn("{task.description}"), Layers(), TimeElapsedColumn())
    with Progress(*columns, console=paper, transient=True) as progress:
        progress.add_task(doing, total=None)
        yield


def aside(text: str) -> None:
    """Beside the drawing, so that what is printed stays what was asked for."""
    print(f"rearview: {text}", file=sys.stderr, flush=True)
